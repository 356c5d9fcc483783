"""Scored run folders: made without running anything, for tests of comparing, reports and bounds, or by a run."""

import csv
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from sextant.evals.run_folder import read_outcomes

CONFIG: dict[str, Any] = {
    "task": "obliq/congress",
    "data": "mini",
    "data_fingerprint": "0123456789abcdef",
    "split": "test",
    "asked": {"limit": None, "query_ids": []},
    "instruction": "ours",
    "depth": 1000,
    "max_p": False,
    "pool": None,
    "program": "multihop",
    "parameters": {"hops": 4},
    "compiled": None,
    "retriever": {"name": "bm25", "with": "bm25(k1=0.9,b=0.4)"},
    "lm": {"name": "offline", "model": "offline/1"},
    "code": "c0de",
    "versions": {},
    "provenance": {"data": "mini", "folder": None, "judgements": "gold"},
}
USAGE = {
    "calls": 12,
    "repairs": 0,
    "input_tokens": 600,
    "output_tokens": 30,
    "paid_usd": 0.0,
    "list_usd": 0.06,
}


def make(
    place: Path,
    columns: dict[str, list[float | None]],
    config: dict[str, Any] | None = None,
    **scores: Any,
) -> Path:
    """A folder at `place`; `columns` are metric -> values in the order of the queries, None an empty cell."""
    made = CONFIG | (config or {})
    made["provenance"] = made["provenance"] | {"data": made["data"]}
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(made))
    many = len(next(iter(columns.values())))
    table = [["query_id", *columns, "error"]]
    for row in range(many):
        cells = ["" if column[row] is None else repr(column[row]) for column in columns.values()]
        table.append([f"q{row}", *cells, ""])
    with (place / "scores.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(table)
    known = {key: made[key] for key in ("task", "split", "program", "pool", "compiled")}
    known |= {
        "data": made["data"],
        "judgements": "gold",
        "retriever": made["retriever"]["name"],
        "lm": made["lm"]["name"],
    }
    rest = {"queries": many, "failed": 0, "owed": 0, "usage": USAGE, "metrics": measured(columns)}
    (place / "scores.json").write_text(
        json.dumps(known | rest | {"metric": next(iter(columns))} | scores)
    )
    (place / "outcomes.jsonl").write_text("")
    return place


def run_in(place: Path, *words: object) -> Path:
    """The folder of a run on a miniature with these words, in silence; its home and its runs folder are in `place`."""
    from sextant.evals import run
    from sextant.tools.platform.cli import run_command

    before = set((place / "runs").glob("*/*"))
    given = [*map(str, words), "--data", "mini", "--runs", str(place / "runs")]
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        patch.setenv("SEXTANT_HOME", str(place / "home"))
        assert run_command(run.parser(), run.command, given) == 0
    [made] = set((place / "runs").glob("*/*")) - before
    return made


def measured(columns: dict[str, list[float | None]]) -> dict[str, dict[str, Any]]:
    """What scores.json says of them, with intervals that are easy to recognise; a metric may be undefined for all."""
    made: dict[str, dict[str, Any]] = {}
    for name, column in columns.items():
        known = [value for value in column if value is not None]
        mean = fmean(known) if known else None
        bounds = (
            dict.fromkeys(("low", "high"))
            if mean is None
            else {"low": mean - 0.01, "high": mean + 0.01}
        )
        made[name] = {"mean": mean, **bounds}
    return made


def retrieve(**others: Any) -> dict[str, Any]:
    """What the bare retriever's configuration has otherwise."""
    return {"program": "retrieve", "parameters": {}} | others


def pooled(kind: str, size: int, **others: Any) -> dict[str, Any]:
    """What the configuration of a ranking of pools has otherwise."""
    pool = {"kind": kind, "size": size, "of": ["bm25(k1=0.9,b=0.4)"]}
    pool |= {"put_in": "what is missing"} if kind == "oracle" else {}
    return {"program": "tournament", "parameters": {"batch": 20}, "pool": pool} | others


def unsealed(place: Path) -> Path:
    """The run in `place` without the digests of its lines and scores, as an earlier version has written it."""
    outcomes, scores = place / "outcomes.jsonl", place / "scores.json"
    rows = [
        json.loads(line) for line in outcomes.read_text(encoding="utf-8").rstrip("\n").split("\n")
    ]
    for row in rows:
        row.pop("digest", None)
    outcomes.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    kept = {
        key: value
        for key, value in json.loads(scores.read_text()).items()
        if key not in ("made_of", "digest")
    }
    scores.write_text(json.dumps(kept))
    return place


def lasting(path: Path) -> dict[str, Any]:
    """The outcomes of a run by query, without what depends on the hour."""

    def plain(found: Any) -> Any:
        if isinstance(found, dict):  # the digest is of a line, with its seconds
            return {
                key: plain(one)
                for key, one in found.items()
                if key not in ("seconds", "started", "digest")
            }
        return [plain(one) for one in found] if isinstance(found, list) else found

    return {key: plain(dict(one)) for key, one in read_outcomes(path).items()}
