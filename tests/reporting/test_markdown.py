"""The markdown page says everything a reviewer needs, and foreign text cannot leave its cell."""

from __future__ import annotations

import urllib.parse
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from quantaudit.core.decision import Outcome
from quantaudit.core.report import AuditReport
from quantaudit.reporting.markdown import render_markdown, render_markdown_files
from quantaudit.reporting.markdown_text import code, code_block, prose
from quantaudit.reporting.sentences import SAFETY_WARNING
from tests.reporting.sample import HOSTILE
from tests.reporting.sample_clauses import decision

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


def test_it_is_short_before_the_folds(admitted: AuditReport, rejected: AuditReport) -> None:
    for report in (admitted, rejected):
        text = render_markdown(report)
        seen = text[: text.index("<details>")].splitlines()
        rows = [line for line in seen if line.startswith("| ")]
        assert len(rows) <= 2 + 10 and len(seen) <= 40


def test_only_the_worst_ten_gates_are_in_sight(admitted: AuditReport) -> None:
    base = admitted.gates()[2]
    many = tuple(
        base.model_copy(update={"name": f"g{i}", "clause": base.clause.model_copy(update={"name": f"g{i}"})})
        for i in range(30)
    )
    failed = many[17].model_copy(update={"decision": decision(Outcome.FAIL, reason="Too much.")})
    text = render_markdown(admitted.model_copy(update={"clauses": (*many[:17], failed, *many[18:])}))
    rows = [line for line in text[: text.index("<details>")].splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + 10
    assert any(line.startswith("| `g17` |") and "**FAIL**" in line for line in rows)
    assert rows[-1] == "| 21 more |  |  |  |  | 21 pass |"


def test_changed_answers_and_alarms_are_counted(admitted: AuditReport) -> None:
    text = render_markdown(admitted)
    seen = text[: text.index("<details>")]
    assert "**45 answers changed:** 15 right to wrong, 15 wrong to right, 15 wrong to another wrong." in seen
    assert "**Alarms:** `expert-set-agreement` fired." in seen


def test_the_verdict_comes_first(rejected: AuditReport) -> None:
    text = render_markdown(rejected)
    assert text.startswith("## REJECT: nano-k3 under int2 against nano-k3\n\nREJECT at degeneracy")
    assert f"> **{SAFETY_WARNING}**" in text


def test_safety_is_not_warned_about_where_it_may_be_read(admitted: AuditReport) -> None:
    assert SAFETY_WARNING not in render_markdown(admitted)


def test_a_row_has_all_its_numbers(undecided: AuditReport) -> None:
    text = render_markdown(undecided)
    rows = [line for line in text[text.index("<details>") :].splitlines() if line.startswith("| `task[sorting]`")]
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
    assert "| `[redacted]` | 3.1 to 1.4 | margin only (text redacted) |" in render_markdown(admitted)


def test_digests_and_command_are_there(admitted: AuditReport) -> None:
    text = render_markdown(admitted)
    assert f"| report | `{admitted.report_digest()}` |" in text
    assert text.endswith("```\nquantaudit run --recipe k3-w4a8\n```\n\n</details>\n")


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
    page = tmp_path / "the audit.md"
    files = render_markdown_files(admitted, page)
    assert list(files)[-1] == page
    drawn = [path.name for path in list(files)[:-1]]
    assert drawn[0] == "the audit.forest.svg" and len(set(drawn)) == len(drawn) == 1 + 2 + 5 + 3 + 2
    images = [t for t in tokens(files[page].decode()) if t.type == "image"]
    assert [urllib.parse.unquote(str(t.attrs["src"])) for t in images] == drawn
    assert all(data.startswith(b"<svg") for path, data in files.items() if path != page)


def test_its_neighbours_are_linked(admitted: AuditReport, tmp_path: Path) -> None:
    files = render_markdown_files(admitted, tmp_path / "audit.md")
    links = [t for t in tokens(files[tmp_path / "audit.md"].decode()) if t.type == "link_open"]
    assert [t.attrs["href"] for t in links] == ["audit.html", "audit.json"]


def test_charts_of_one_name_get_two_files(admitted: AuditReport, tmp_path: Path) -> None:
    twice = admitted.model_copy(
        update={"expert_maps": admitted.expert_maps[:1] * 2, "layer_profiles": (), "series": (), "ladder": None}
    )
    names = [path.name for path in render_markdown_files(twice, tmp_path / "a.md")]
    assert names == ["a.forest.svg", "a.weight-sqnr.svg", "a.weight-sqnr-2.svg", "a.md"]
