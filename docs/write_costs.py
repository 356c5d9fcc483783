"""Writes evals/papers/costs.json: `python docs/write_costs.py`.

What each model of the papers' tables costs for all that the rows of a table, or of all tables, have
it read: dollars of an API at its list price, or hours of an H100. For the order in which things are
bought, and right within a factor of about three. Sizes of data are the papers' own (statistics in
evals/papers/*.toml); `sextant reproduce TABLE --dry-run` prices a table by the data itself.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from math import inf
from typing import Any, NamedTuple

from sextant import environments
from sextant.evals.papers.missing import COSTS, GPU_DOLLARS, list_needs
from sextant.evals.papers.sections import PaperTable, sections
from sextant.tools.models import prices
from sextant.tools.retrievers.neural import model_table

CHARACTERS_A_TOKEN = 4.5
WORDS_A_TOKEN = 0.75
# Tokens of a call without documents (docs/decisions/programs.md), and of its answer without thinking.
PROMPT = 750
ANSWER = 300
# Of an H100 in 16 bits: two fifths of its peak.
GPU_FLOPS = 0.4 * 989e12
# Of MultiConIR, whose paper does not count them: documents of a record, and words of a document.
LADDER = 11
PADDED_WORDS = 512
# Calls and documents of a query, by the program's defaults: OBLIQ-Bench's over pools of 300 and in four
# hops, BIRCO's over the release's pools of some 65 documents, with 6.4 facets (its Table 4). All others
# make one call without any.
CALLS: Mapping[str, tuple[float, float]] = {
    "multihop": (8, 100),
    "tournament": (19, 372),
    "rank": (5.5, 110),
    "score": (65, 65),
    "reason": (66, 65),
    "subtask": (417, 416),
}


class Reading(NamedTuple):
    """What a model reads once, however many rows need it: a task's documents, or a program's calls."""

    task: str
    # "" for a retriever.
    program: str = ""
    # What else tells two programs' calls apart: instruction and pool.
    condition: str = ""


def list_readings(tables: Iterable[PaperTable]) -> dict[str, set[Reading]]:
    """Return what is read by each model and retriever of tables."""
    readings: dict[str, set[Reading]] = {}
    for table in tables:
        for cell in table.cells:
            for system in table.runs_of(cell) if not cell.lacks else ():
                of_model = (
                    system.get("program", ""),
                    f"{system.get('instruction')} {system.get('pool')}",
                )
                for need in list_needs(system):
                    conditions = of_model if need == system.get("lm") or "@" in need else ()
                    for task in environments.expand_tasks(cell.task):
                        readings.setdefault(need.partition("(")[0], set()).add(
                            Reading(task, *conditions)
                        )
    return readings


def estimate_dollars(need: str, readings: Iterable[Reading]) -> tuple[float, float | None] | None:
    """Return (dollars, hours of an H100) of a retriever, an API or a model that is served,
    MODEL@URL; None for what is not known, and for the hours of an API.
    """
    row = model_table.rows().get(need.partition(":")[2].partition("(")[0])
    longest = (row and row.max_document_tokens) or inf
    counts = [count_tokens(reading, longest) for reading in readings]
    read, written = (round(sum(tokens)) for tokens in zip(*counts, strict=True))
    if row and row.price:
        return read * row.price / 1e6, None
    if price := prices.price(need):
        return price.of(read, 0, written), None
    size = re.search(r"([\d.]+)([bm])\b", row.needs if row else need, re.I)
    if not size or not (row or "@" in need):
        return None
    parameters = float(size[1]) * (1e9 if size[2] in "bB" else 1e6)
    hours = 2 * parameters * (read + written) / GPU_FLOPS / 3600
    return hours * GPU_DOLLARS, hours


def count_tokens(reading: Reading, longest: float) -> tuple[float, float]:
    """Return the tokens that are read, and those that are written."""
    plain = reading.task.partition(":")[0]
    suite, _, name = plain.partition("/")
    figures = read_statistics(reading.task) or read_statistics(plain)
    queries = environments.suite(suite).tasks[name].queries
    document = (
        figures.get("document characters", 0) / CHARACTERS_A_TOKEN
        or figures.get("document words", PADDED_WORDS) / WORDS_A_TOKEN
    )
    if not reading.program:
        documents = figures.get("documents") or queries * figures.get("pool size", LADDER)
        return documents * min(document, longest), 0
    calls, shown = CALLS.get(reading.program, (1, 0))
    return queries * (calls * PROMPT + shown * document), queries * calls * ANSWER


@cache
def read_statistics(task: str) -> Mapping[str, Any]:
    """Return the paper's statistics of a task's data."""
    cells = [cell for table in sections().values() for cell in table.cells]
    return {cell.metric: cell.published for cell in cells if cell.task == task and not cell.system}


def list_costs() -> dict[str, dict[str, list[float]]]:
    """Return table -> model -> dollars, and hours if it is run here; "" is for all tables together."""
    costs: dict[str, dict[str, list[float]]] = {}
    every = list(sections().values())
    for name, tables in [("", every), *((table.name, [table]) for table in every)]:
        costs[name] = {}
        for need, readings in list_readings(tables).items():
            if cost := estimate_dollars(need, readings):
                rounded = [float(f"{part:.3g}") for part in cost if part is not None]
                costs[name][need] = rounded
    return costs


def main() -> None:
    """Write the file, a line for each model of a table."""
    tables = []
    for name, by_need in list_costs().items():
        lines = [f"    {json.dumps(need)}: {json.dumps(cost)}" for need, cost in by_need.items()]
        body = ",\n".join(lines)
        tables.append(
            f"  {json.dumps(name)}: {{\n{body}\n  }}" if lines else f"  {json.dumps(name)}: {{}}"
        )
    COSTS.write_text("{\n" + ",\n".join(tables) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
