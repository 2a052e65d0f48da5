"""Recorded files made to order: plain rows, lm-eval samples, inspect logs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from quantaudit.core.contract import Contract
from quantaudit.core.recipe_file import load_contract
from quantaudit.core.report import AuditReport
from quantaudit.evaluation.recorded.request import Request, judge_files

DATA = Path(__file__).parent / "data"
HI, LO = DATA / "hi", DATA / "lo"
Cell = str | int | float | bool | None
Row = dict[str, Cell]
Change = Callable[[int, Row], None]


def digest(text: str) -> str:
    """Returns a digest as evaluators write it."""
    return hashlib.sha256(text.encode()).hexdigest()


def rows(count: int = 400, *, seed: int = 0, clusters: int | None = None, change: Change | None = None) -> list[Row]:
    """Returns plain rows of one task: four in five right, margins and likelihoods of a sound model."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        row: Row = {
            "id": f"q{i}",
            "family": "sums",
            "correct": int(i % 5 != 0),
            "nll": float(0.5 + rng.normal(0, 0.1)),
            "margin": float(3 + rng.normal(0, 0.5)),
            "prompt_hash": digest(f"q{i}")[:12],
        }
        if clusters is not None:
            row["cluster"] = f"c{i % clusters}"
        if change is not None:
            change(i, row)
        made.append(row)
    return made


def write_jsonl(path: Path, items: Iterable[Mapping[str, object]]) -> Path:
    """Writes an object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item) + "\n" for item in items), "utf-8")
    return path


def write_csv(path: Path, items: Sequence[Row]) -> Path:
    """Writes a header and a row an item."""
    header = ",".join(items[0].keys())
    body = [",".join("" if value is None else str(value) for value in item.values()) for item in items]
    lines = [header, *body]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def sample(i: int, *, acc: float, likelihoods: Sequence[float] = (), **extra: object) -> dict[str, object]:
    """Returns one line of lm-eval's samples; with likelihoods, the right choice is the first."""
    pairs: list[object] = [[str(value), "False"] for value in likelihoods]
    texts: list[object] = ["text"]
    return {
        "doc_id": i,
        "doc": {"question": f"q{i}"},
        "target": "0",
        "arguments": {f"gen_args_{k}": {"arg_0": f"q{i}", "arg_1": f" {k}"} for k in range(len(pairs))},
        "resps": [[pair] for pair in pairs] or [["text"]],
        "filtered_resps": pairs or texts,
        "filter": "none",
        "metrics": ["acc"],
        "doc_hash": digest(f"doc {i}"),
        "prompt_hash": digest(f"q{i}"),
        "target_hash": digest("0"),
        "acc": acc,
    } | extra


def log(values: Mapping[str | int, object], **extra: object) -> dict[str, object]:
    """Returns an inspect log with one scorer."""
    samples = [
        {
            "id": name,
            "epoch": 1,
            "input": f"question {name}",
            "target": "yes",
            "scores": {} if value is None else {"match": {"value": value, "answer": "x"}},
            "metadata": {},
        }
        for name, value in values.items()
    ]
    return {"version": 2, "status": "success", "eval": {"task": "quiz"}, "results": {}, "samples": samples} | extra


def contract(name: str = "recorded-answers", *, only: str | None = None, least: int | None = None) -> Contract:
    """Returns a bundled contract, perhaps with one clause or a smaller size."""
    agreed = load_contract(name)
    if only is not None:
        agreed = agreed.model_copy(update={"clauses": tuple(c for c in agreed.clauses if c.name == only)})
    return agreed if least is None else agreed.model_copy(update={"min_probes": least, "min_clusters": 5})


def judge(
    hi: Path, lo: Path, *, agreed: Contract | None = None, again: Path | None = None, metric: str | None = None
) -> AuditReport:
    """Judges two files."""
    request = Request(hi=hi, lo=lo, again=again, contract=agreed or contract(), contract_name="tests", metric=metric)
    return judge_files(request, version="0")
