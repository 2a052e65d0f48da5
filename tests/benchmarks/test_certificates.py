"""The table of certificates: runs what is missing, goes on where it was, and says what is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.certificates.__main__ import gather, main
from benchmarks.certificates.cells import Cell, list_cells, read_cell
from benchmarks.certificates.markdown import render_markdown, summarize
from benchmarks.certificates.table import Certificates
from quantaudit.backends import backend_names, load_backend
from quantaudit.core.certificate import Conclusion, Level
from quantaudit.identity.recheck import read_certificate

REPORTS = Path(__file__).parents[2] / "reports"
ONE = ["--only", "conventions:triton-mxfp4-down", "--dtype", "fp32"]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a work folder with one certificate, and the two files beside it."""
    folder = tmp_path_factory.mktemp("certificates")
    assert main([str(folder), *ONE, "--output", str(folder / "out")]) == 0
    return folder


def test_a_certificate_of_the_work_folder_can_be_checked(work: Path) -> None:
    (cell,) = list_cells(ONE[1:2], ("fp32",))
    certificate = read_certificate(cell.path(work))
    assert certificate.conclusion is Conclusion.IDENTICAL
    assert (certificate.pairs[0].a, certificate.pairs[0].b) == (cell.scheme, cell.quantizer)
    assert cell.command == "quantaudit certify mxfp4-floor conventions:triton-mxfp4-down --dtype fp32"


def test_what_is_there_is_not_made_again(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object, **settings: object) -> None:
        raise AssertionError("certified again")

    monkeypatch.setattr("benchmarks.certificates.cells.certify", fails)
    assert main([str(work), *ONE, "--output", str(work / "out")]) == 0


def test_the_table_has_what_is_there_and_lists_the_rest(work: Path) -> None:
    table = Certificates.from_json((work / "out" / "certificates.json").read_text())
    (row,) = table.rows
    assert (row.level, row.conclusion, row.special, row.first) == (Level.BOUNDARY, Conclusion.IDENTICAL, (), None)
    assert len(table.missing) == len(list_cells([])) - 1
    text = (work / "out" / "certificates.md").read_text()
    assert "| triton-mxfp4-down | mxfp4-floor | boundary |" in text
    assert "bf16, not run" in text


def test_a_quantizer_that_does_not_run_is_listed_with_the_reason(work: Path) -> None:
    (cell,) = list_cells(["torchao:int4-g32"], ("fp32",))
    (found,) = [m for m in gather(work, {cell: "no such library"}).missing if m.reason == "no such library"]
    assert (found.quantizer, found.scheme, found.dtype) == (cell.quantizer, cell.scheme, "fp32")


def test_every_offer_of_every_backend_has_a_cell() -> None:
    offered = {f"{name}:{offer}" for name in backend_names() for offer in load_backend(name).schemes()}
    cells = list_cells([])
    assert {cell.quantizer for cell in cells if not cell.quantizer.startswith("fused:")} == offered
    assert len({cell.path(Path()) for cell in cells}) == len(cells)
    assert [cell.dtype for cell in cells] == sorted((cell.dtype for cell in cells), reverse=True)


def test_a_deep_certificate_lies_beside_its_own(work: Path) -> None:
    plain, deep = (Cell("mxfp4-floor", "gguf:mxfp4", "fp32", is_deep) for is_deep in (False, True))
    assert plain.path(work) != deep.path(work)
    assert deep.command.endswith("--deep")
    assert read_cell(deep, work) is None


def test_an_unknown_pattern_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "nowhere:*"])
    assert "no quantizer is named nowhere:*" in capsys.readouterr().err


def test_the_published_table_is_that_of_its_json() -> None:
    table = Certificates.from_json((REPORTS / "certificates.json").read_text())
    assert render_markdown(table) == (REPORTS / "certificates.md").read_text()
    assert summarize(table) in render_markdown(table)
    assert len(table.rows) + len(table.missing) >= len(list_cells([]))
