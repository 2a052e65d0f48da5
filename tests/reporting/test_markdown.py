"""The markdown page says everything a reviewer needs, and foreign text cannot leave its cell."""

from __future__ import annotations

from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from quantaudit.core.report import AuditReport
from quantaudit.reporting.markdown import render_markdown, write_markdown
from quantaudit.reporting.markdown_text import code, code_block, prose
from quantaudit.reporting.sentences import SAFETY_WARNING
from tests.reporting.sample import HOSTILE

GITHUB = MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough")
FOLDING = ("<details>\n", "<summary>", "</details>")


def tokens(text: str) -> list[Token]:
    """Returns all tokens, those inside lines too."""
    flat: list[Token] = []
    for token in GITHUB.parse(text):
        flat += [token, *(token.children or [])]
    return flat


def text_of(markdown: str) -> str:
    """Returns what a reader sees."""
    return "".join(t.content for t in tokens(markdown) if t.type in {"text", "code_inline", "fence", "text_special"})


@pytest.mark.parametrize("name", ["admitted", "rejected", "undecided", "identical", "sparse", "unbounded", "hostile"])
def test_no_text_becomes_markup(name: str, request: pytest.FixtureRequest) -> None:
    parsed = tokens(render_markdown(request.getfixturevalue(name)))
    html = [t.content for t in parsed if t.type in {"html_block", "html_inline"}]
    assert all(block.startswith(FOLDING) for block in html)
    assert not [t for t in parsed if t.type in {"link_open", "image", "em_open", "s_open"}]


@pytest.mark.parametrize("name", ["admitted", "hostile", "sparse"])
def test_every_row_has_the_cells_of_its_header(name: str, request: pytest.FixtureRequest) -> None:
    counts: list[int] = []
    for token in GITHUB.parse(render_markdown(request.getfixturevalue(name))):
        if token.type == "tr_open":
            counts.append(0)
        elif token.type in {"td_open", "th_open"}:
            counts[-1] += 1
        elif token.type == "table_close":
            assert len(set(counts)) == 1
            counts = []


def test_headings_are_ours_alone(hostile: AuditReport, admitted: AuditReport) -> None:
    def headings(report: AuditReport) -> list[str]:
        parsed = GITHUB.parse(render_markdown(report))
        return [parsed[i + 1].content for i, token in enumerate(parsed) if token.type == "heading_open"]

    assert headings(hostile)[1:] == headings(admitted)[1:]


def test_the_verdict_comes_first(rejected: AuditReport) -> None:
    text = render_markdown(rejected)
    assert text.startswith("## REJECT: nano-k3 under int2 against nano-k3\n\nREJECT at degeneracy")
    assert f"> **{SAFETY_WARNING}**" in text


def test_safety_is_not_warned_about_where_it_may_be_read(admitted: AuditReport) -> None:
    assert SAFETY_WARNING not in render_markdown(admitted)


def test_a_row_has_all_its_numbers(undecided: AuditReport) -> None:
    rows = [line for line in render_markdown(undecided).splitlines() if line.startswith("| `task[sorting]`")]
    assert text_of(rows[0].replace("\\|", "")) != ""
    cells = [cell.strip().replace("\\", "") for cell in rows[0].strip("|").split(" | ")]
    assert cells == [
        "`task[sorting]`",
        "accuracy, share",
        "98.50%",
        "97.25%",
        "+1.25 pts",
        "[-0.33, +2.83]",
        "2 pts",
        "1,240",
        "**undecided**",
    ]


def test_all_gates_are_in_the_folded_table(admitted: AuditReport) -> None:
    text = render_markdown(admitted)
    folded = text[text.index("<details>") : text.index("</details>")]
    assert all(f"| {code(gate.name, in_table=True)} |" in folded for gate in admitted.gates())


def test_redacted_witnesses_say_so(admitted: AuditReport) -> None:
    assert "`[redacted]` | 3.1 to 1.4 | margin only (text redacted) |" in render_markdown(admitted)


def test_digests_and_command_are_there(admitted: AuditReport) -> None:
    text = render_markdown(admitted)
    assert f"| report | `{admitted.report_digest()}` |" in text
    assert text.endswith("To repeat it:\n\n```\nquantaudit run --recipe k3-w4a8\n```\n")


@pytest.mark.parametrize(
    "text",
    [HOSTILE, "``", "`", "a`b``c```d", " ", "", "\n", "*a* _b_ ~~c~~", "[x](http://y)", "# h", "- x", "+ x", "1. x",
     "---", "===", "> q", "<b>", "&lt;", "\\", "| a | b |", "    indented", "$x$", "![i](x)"],
)  # fmt: skip
def test_prose_stays_prose(text: str) -> None:
    parsed = tokens(prose(text))
    assert {t.type for t in parsed} <= {"paragraph_open", "inline", "text", "text_special", "paragraph_close"}
    assert text_of(prose(text)).strip() == text_of_plain(text)


def text_of_plain(text: str) -> str:
    return text.replace("\n", "\\n").replace("\x1b", "\\x1b").replace("\u202e", "\\u202e").strip()


@pytest.mark.parametrize("text", [HOSTILE, "``", "`", "a`b``c```d", "a|b", "|", "\\", "a\\|b", " a "])
def test_a_code_span_holds_any_text(text: str) -> None:
    assert text_of(code(text)) == text_of_plain(text) if text.strip() == text else text
    row = f"| a | b |\n| --- | --- |\n| {code(text, in_table=True)} | end |"
    inline = [t for t in GITHUB.parse(row) if t.type == "inline"]
    assert [t.type for t in inline[2].children or []] == ["code_inline"]
    assert inline[3].content == "end"


def test_a_mention_notifies_nobody() -> None:
    assert prose("@someone") == "@&#8203;someone"


def test_a_block_holds_any_command() -> None:
    (fence,) = [t for t in GITHUB.parse(code_block("a ``` b\n```\n# c")) if t.type == "fence"]
    assert fence.content == "a ``` b\\n```\\n# c\n"


def test_charts_lie_beside_the_page(admitted: AuditReport, tmp_path: Path) -> None:
    files = write_markdown(admitted, tmp_path / "audit.md")
    assert files[0] == tmp_path / "audit.md"
    assert [f.name for f in files[1:]] == [
        "audit.forest.svg",
        "audit.weight-sqnr.svg",
        "audit.load.svg",
        "audit.agreement.svg",
        "audit.hidden-error.svg",
        "audit.expert-agreement.svg",
    ]
    page = files[0].read_text()
    assert all(f"]({f.name})" in page and f.read_text().startswith("<svg") for f in files[1:])
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_charts_of_one_name_get_two_files(admitted: AuditReport, tmp_path: Path) -> None:
    twice = admitted.model_copy(update={"expert_maps": admitted.expert_maps[:1] * 2, "layer_profiles": ()})
    names = [f.name for f in write_markdown(twice, tmp_path / "a.md")]
    assert names == ["a.md", "a.forest.svg", "a.weight-sqnr.svg", "a.weight-sqnr-2.svg"]
