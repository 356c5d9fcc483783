"""The result tables of the four papers, and which of their figures may stand beside one of ours.

A CSV a paper, a line a figure, with the table and the row that it was read from. Values are
fractions as printed (43.5 % is 0.435); `error` is the standard error where one is printed; `note`
says what is odd: a misprint, a printed average that its own rows do not give. Tasks and metrics
have our names. `crumb/*` and the like are averages over tasks.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from evals.run_folder import PROVENANCE
from programs import FLOOR

# Ours -> the papers' name for the same system: (suite or task, program, retriever, model). A row is
# added where a system of ours is what a paper ran, parameters included; the nearest thing to it is
# not enough. OBLIQ-Bench names rank-bm25 for all tasks, but only WildChat's script calls it; those
# of Writing and Congress call bm25s as it comes. CRUMB's BM25 is bm25(analyzer=english) but for the
# lengths of documents, which Lucene rounds to a byte.
SYSTEMS = {
    ("obliq/wildchat", FLOOR, "rank_bm25", "offline"): "BM25",
    ("obliq/writing", FLOOR, "bm25s", "offline"): "BM25",
    ("obliq/congress", FLOOR, "bm25s", "offline"): "BM25",
    ("multiconir", FLOOR, "pool_bm25", "offline"): "BM25",
}


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """One number of a paper."""

    task: str
    system: str
    metric: str
    judgements: str  # "gold" or "pooled" where the paper has both, else empty
    split: str
    value: float
    error: float | None
    table: str
    row: str
    note: str


@cache
def figures() -> tuple[PaperFigure, ...]:
    """Every figure of the four papers, in the order of the files."""
    collected = []
    for path in sorted(Path(__file__).parent.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file))
        for row in rows:
            row |= {
                "value": float(row["value"]),
                "error": float(row["error"]) if row["error"] else None,
            }
            collected.append(PaperFigure(**{name: row[name] for name in PaperFigure.__slots__}))
    return tuple(collected)


def published_values_for(config: Mapping[str, Any]) -> dict[str, PaperFigure]:
    """The published figure by metric for the same system on the same task; none for a run that is
    not comparable.

    `config` is a run's config.json. Comparable is a run over the whole of the fetched release, on
    the queries that the paper reports, as the paper asked them; a miniature or a folder never is.
    """
    system = (config["program"], config["retriever"]["name"], config["lm"]["name"])
    plain = config["task"].partition(":")[0]
    name = SYSTEMS.get((plain, *system)) or SYSTEMS.get((plain.partition("/")[0], *system))
    selection = config["asked"]
    is_whole = config["data"] == "full" and not (selection["limit"] or selection["query_ids"])
    # Rankings are cut where the protocol cuts them, judged as the paper judges them, by a program
    # as it comes.
    usual = (
        config["depth"] == (2000 if config["max_p"] else 1000) and config["instruction"] == "task"
    )
    if name is None or not is_whole or not usual or config["compiled"] or config["parameters"]:
        return {}
    judgements = config[PROVENANCE]["judgements"]
    by_metric: dict[str, PaperFigure] = {}
    for figure in figures():
        matches = (figure.task, figure.system, figure.split) == (
            config["task"],
            name,
            config["split"],
        )
        if matches and figure.judgements in ("", judgements):
            by_metric.setdefault(figure.metric, figure)
    return by_metric
