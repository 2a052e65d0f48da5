"""`fingerprint` prints roots, writes a manifest, and refuses what it cannot digest."""

from __future__ import annotations

import json
from pathlib import Path

from quantaudit.core.manifest import Manifest
from tests.cli.command import Command, is_one_line


def test_a_master_under_the_scheme_and_the_packed_file_show_one_root(written: Path, quantaudit: Command) -> None:
    master = quantaudit("fingerprint", written / "plain", "--scheme", "mxfp4-even")
    packed = quantaudit("fingerprint", written / "sharded")
    assert master.code == packed.code == 0
    assert master.out.splitlines()[1] == packed.out.splitlines()[1] != ""
    assert "experts in mxfp4-even, codes decoded to bfloat16" in master.out


def test_the_manifest_is_written_and_is_what_json_prints(written: Path, tmp_path: Path, quantaudit: Command) -> None:
    path = tmp_path / "new" / "manifest.json"
    ended = quantaudit("fingerprint", written / "packed", "-o", path, "--json")
    assert ended.code == 0 and path.read_text() == ended.out
    manifest = Manifest.from_json(ended.out)
    assert (
        json.loads(ended.out)["kind"] == "manifest"
        and manifest.values_root in quantaudit("fingerprint", written / "packed").out
    )


def test_a_manifest_under_another_ending_is_refused(written: Path, quantaudit: Command) -> None:
    ended = quantaudit("fingerprint", written / "packed", "-o", "manifest.txt")
    assert ended.code == 2 and is_one_line(ended.err) and not Path("manifest.txt").exists()


def test_a_wrong_scheme_is_refused(written: Path, quantaudit: Command) -> None:
    ended = quantaudit("fingerprint", written / "packed", "--scheme", "mxfp4-evn")
    assert ended.code == 2 and is_one_line(ended.err) and "mxfp4-even" in ended.err


def test_quantizing_twice_is_refused(written: Path, quantaudit: Command) -> None:
    ended = quantaudit("fingerprint", written / "packed", "--scheme", "nf4-b64")
    assert ended.code == 2 and is_one_line(ended.err) and "quantizing twice" in ended.err
