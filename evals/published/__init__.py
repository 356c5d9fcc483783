"""The result tables of the four papers as data, and when one of their figures may stand beside one of ours.

A CSV a paper, a line a figure, with the table and the row that it was read from. Values are fractions as printed
(43.5 % is 0.435); `error` is the standard error where one is printed; `note` says what is odd: a misprint, a printed
average that its own rows do not give. Tasks and metrics have our names. `crumb/*` and the like are averages over tasks.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PAPERS = ("obliq", "crumb", "birco", "multiconir")

# Ours -> the papers' name for the same system: (suite, program, retriever, model). A row is added where a system of
# ours is what a paper ran, parameters included; the nearest thing to it is not enough.
SYSTEMS = {
    ("obliq", "retrieve", "rank_bm25", "offline"): "BM25",
    ("crumb", "retrieve", "bm25", "offline"): "BM25",
    ("multiconir", "retrieve", "pool_bm25", "offline"): "BM25",
}


@dataclass(frozen=True, slots=True)
class Figure:
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
def figures() -> tuple[Figure, ...]:
    """Every figure of the four papers, in the order of the files."""
    found = []
    for paper in PAPERS:
        path = Path(__file__).parent / f"{paper}.csv"
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                found.append(
                    Figure(
                        task=row["task"],
                        system=row["system"],
                        metric=row["metric"],
                        judgements=row["judgements"],
                        split=row["split"],
                        value=float(row["value"]),
                        error=float(row["error"]) if row["error"] else None,
                        table=row["table"],
                        row=row["row"],
                        note=row["note"],
                    )
                )
    return tuple(found)


def look_up(task: str, system: str, metric: str, judgements: str = "") -> list[Figure]:
    """The figures for a task, a system and a metric; several where a paper prints one more than once."""
    wanted = (task, system, metric)
    return [
        figure
        for figure in figures()
        if (figure.task, figure.system, figure.metric) == wanted and judgements in ("", figure.judgements)
    ]


def beside(config: Mapping[str, Any]) -> dict[str, Figure]:
    """By metric, the published figure for the same system on the same task; none for a run that is not comparable.

    `config` is a run's config.json. Comparable is a run over the whole of the fetched release, on the
    queries that the paper reports, as the paper asked them; a miniature or a folder never is.
    """
    suite = config["task"].partition("/")[0]
    name = SYSTEMS.get((suite, config["program"], config["retriever"]["name"], config["lm"]["name"]))
    asked = config["asked"]
    if name is None or config["data"] != "full" or config["compiled"] or asked["limit"] or asked["query_ids"]:
        return {}
    found: dict[str, Figure] = {}
    for figure in figures():
        if (
            (figure.task, figure.system, figure.split) == (config["task"], name, config["split"])
            and figure.judgements in ("", config["judgements"])
            and figure.metric not in found
        ):
            found[figure.metric] = figure
    return found
