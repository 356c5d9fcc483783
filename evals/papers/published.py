"""The result tables of the four papers, and which of their figures may stand next to figures of
ours.

A CSV a paper, a line a figure, with the table and the row that it was read from. Values are
fractions as printed (43.5 % is 0.435); `error` is the standard error, if it is printed; `note`
explains oddities: a misprint, a printed average that its own rows do not give. Tasks and metrics
have our names. `crumb/*` and the like are averages over tasks.
"""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sextant.evals.run_folder import PROVENANCE
from sextant.programs import FLOOR
from sextant.tools.records import JsonMapping, JsonObject

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
    """A number of a paper."""

    task: str
    system: str
    metric: str
    # "gold" or "pooled" if the paper has both, else "".
    judgements: str
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
            rows: list[JsonObject] = list(csv.DictReader(file))
        for row in rows:
            row |= {
                "value": float(row["value"]),
                "error": float(row["error"]) if row["error"] else None,
            }
            collected.append(PaperFigure(**{name: row[name] for name in PaperFigure.__slots__}))
    return tuple(collected)


def published_values_for(config: JsonMapping) -> dict[str, PaperFigure]:
    """The published figure by metric for the same system on the same task; none for a run that is
    not comparable.

    `config` is a run's config.json. Comparable is a run over the whole of the fetched release, on
    the queries that the paper reports, as the paper asked them; a miniature or a folder never is.
    """
    task = config["task"]
    system = (config["program"], config["retriever"]["name"], config["lm"]["name"])
    names = [SYSTEMS.get((of, *system)) for of in (task.partition(":")[0], task.partition("/")[0])]
    by_metric: dict[str, PaperFigure] = {}
    if not any(names) or not _is_comparable(config):
        return by_metric
    key = (task, names[0] or names[1], config["split"])
    for figure in figures():
        is_same_run = (figure.task, figure.system, figure.split) == key
        if is_same_run and figure.judgements in ("", config[PROVENANCE]["judgements"]):
            by_metric.setdefault(figure.metric, figure)
    return by_metric


def _is_comparable(config: JsonMapping) -> bool:
    """Return whether a run is over all queries, cut if the protocol cuts, by a plain program."""
    selection = config["asked"]
    if config["data"] != "full" or selection["limit"] or selection["query_ids"]:
        return False
    if config["depth"] != (2000 if config["max_p"] else 1000):
        return False
    if config["instruction"] not in ("ours", "paper") or config[PROVENANCE].get("relevant_from"):
        return False
    return not config["compiled"] and not config["parameters"]
