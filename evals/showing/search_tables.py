"""The tables of a replay: what surfaced then and now, in which hop, and which documents were gained and lost."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from evals.showing.headings import system_line, task_line
from evals.showing.tables import empty, plain, printed
from tools.console import put_out

Result = dict[str, Any]  # of evals.measuring.searches.replay
SHOWN = 10  # documents gained and lost that are printed, each
TEXT = 70  # characters of a search that are printed


def show(result: Result) -> None:
    """Print the tables."""
    replayed, recall = result["replayed"], result["recall"]
    on = replayed["retriever"] or "the retriever that each had"
    depth = f"{replayed['depth']} documents each" if replayed["depth"] else "to the depth that each had"
    searched = f"{result['searches']} searches, {replayed['distinct']} distinct ones issued again on {on}, {depth}"
    parts: list[str | Table] = [task_line(result), system_line(result), f"{searched}; {result['same']} bring the same"]
    if recall["paired"] is None:
        put_out(printed([*parts, "none of the queries has a relevant document, so there is nothing to surface"]))
        return
    gained = [row for row in result["relevant"] if row["now"] and not row["then"]]
    lost = [row for row in result["relevant"] if row["then"] and not row["now"]]
    parts += ["", _counts(result["documents"]), _recall(recall), "", _hops(result["hops"])]
    for words, when, rows in (("gained", "now", gained), ("lost", "then", lost)):
        if rows:
            more = f", the {SHOWN} that came first" if len(rows) > SHOWN else ""
            parts += [f"{words}: {len(rows)} relevant documents{more}", _moved(rows, when)]
    parts += ["the searches are the run's: with other results, its searcher would have gone on otherwise"]
    put_out(printed(parts))


def _counts(counts: Mapping[str, int]) -> Table:
    table, whole = empty("relevant documents that surfaced", "documents", "share"), sum(counts.values())
    words = {"both": "then and now", "only_then": "only then", "only_now": "only now", "neither": "neither"}
    for key, said in words.items():
        table.add_row(said, str(counts[key]), f"{counts[key] / whole:.4f}")
    return table


def _recall(recall: Result) -> str:
    test = recall["paired"]
    interval = "" if test["low"] is None else f" ({test['low']:+.4f} to {test['high']:+.4f})"
    p = "<0.001" if test["p"] < 0.001 else f"{test['p']:.3f}"
    means = f"{recall['then']:.4f} then, {recall['now']:.4f} now: {test['difference']:+.4f}{interval}, p {p}"
    return (
        f"recall of all that surfaced: {means}; {test['wins']} queries won, {test['ties']} tied, {test['losses']} lost"
    )


def _hops(rows: Sequence[Result]) -> Table:
    table = empty("hop", "searches", "first then", "recall so far", "first now", "recall so far")
    for row in rows:
        cells = [[str(row[when]["first"]), f"{row[when]['recall']:.4f}"] for when in ("then", "now")]
        table.add_row(str(row["hop"] or "none"), str(row["searches"]), *cells[0], *cells[1])
    return table


def _moved(rows: Sequence[Result], when: str) -> Table:
    table = empty("query", "document", "search", "grade", "hop", "rank", words=3)
    for row in sorted(rows, key=lambda row: (row[when]["hop"], row[when]["rank"]))[:SHOWN]:
        at = row[when]
        text = at["search"] if len(at["search"]) <= TEXT else f"{at['search'][: TEXT - 4]} ..."
        names = (plain(one) for one in (row["query_id"], row["unit"], " ".join(text.split())))
        table.add_row(*names, f"{row['grade']:g}", str(at["hop"]), str(at["rank"]))
    return table
