"""A comparison laid out as lines and tables (evals/showing/tables.py prints them).

The tables of a replay: what surfaced then and now, in which hop, and which documents were gained and lost.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from evals.measuring.comparison import is_lower_better
from evals.measuring.traces import WORDS
from evals.showing.tables import FORMS, Best, Grid, printed, system_line, task_line
from tools.console import brief, number, put_out, queries

Result = dict[str, Any]
Parts = list[str | Grid]
DIGITS = 4  # of means, as in the table of a run
FLOWS = 10  # flows shown; --json has all


def render(result: Result, form: str) -> str:
    """A comparison as text: for the terminal, as markdown or as latex."""
    return FORMS[form](lay_out(result))


def lay_out(result: Result) -> Parts:
    """All of it: what was asked, what answered, each comparison, what a query cost, what to know."""
    labels = ["baseline", *(f"run {number}" for number in range(1, len(result["runs"]) + 1))]
    parts: Parts = [task_line(result)]
    for label, system in zip(labels, result["systems"], strict=True):
        parts += [f"{label}: {system['run']}", f"    {system_line(system)}"]
        parts += [f"    repeat: {path}" for path in system["repeats"][1:]]
    for label, run, changed in zip(labels[1:], result["runs"], result["differences"], strict=True):
        parts += _comparison(result, label, run, changed["keys"])
    parts += [*_spread(result["systems"], labels), _cost(result["cost"], labels, task_line(result))]
    return [*parts, *_explained(result), *result["notes"]]


def _comparison(result: Result, label: str, run: str, changed: dict[str, list[Any]]) -> Parts:
    """The tables of one system against the baseline."""
    forced = f", forced although {', '.join(result['forced'])} differ" if result["forced"] else ""
    where = f"{task_line(result)}{forced}"
    note = f"{label} against baseline. {where}"
    keys = [f"{key} {brief(after)} (was {brief(before)})" for key, (before, after) in changed.items()]
    title = f"{label} against baseline{forced}: {', '.join(keys) or 'the same configuration'}"
    heads = ["metric", "baseline", "run", "change", "95 % interval", "p", "Holm", "w/t/l", "shows"]
    rows = _metric_rows([row for row in result["comparisons"] if row["run"] == run])
    parts: Parts = ["", Grid(title, heads, rows, note=". ".join([where, *_explained(result)]))]
    for losses in result["losses"]:
        parts += _losses(losses, note) if losses["run"] == run else []
    if moved := [row for row in result["moved"] if row["run"] == run]:
        cells = [[row["query_id"], *_change(row["baseline"], row["value"], row["difference"])] for row in moved]
        title = f"queries that moved most in {moved[0]['metric']}"
        parts.append(Grid(title, ["query", "baseline", "run", "change"], cells, note=note))
    return parts


def _metric_rows(rows: list[Result]) -> list[list[str]]:
    """A row a metric, with the number of its queries where it is defined for fewer than others."""
    most = max(row["queries"] for row in rows)
    made = []
    for row in rows:
        if not row["queries"]:
            made.append([row["metric"], "undefined", *[""] * 7])
            continue
        name = row["metric"] if row["queries"] == most else f"{row['metric']} ({row['queries']})"
        sign = -1 if is_lower_better(row["metric"]) else 1
        means = _change(row["baseline_mean"], row["mean"], row["difference"], best=sign)
        ps = ["<0.001" if row[key] < 0.001 else f"{row[key]:.3f}" for key in ("p", "p_holm")]
        counts = f"{row['wins']}/{row['ties']}/{row['losses']}"
        made.append([name, *means, _interval(row), *ps, counts, number(row["detectable"], "{:.3f}", "-")])
    return made


def _change(before: float, after: float, difference: float, *, best: int = 0) -> list[str]:
    """Both values and their difference; the better one is marked, which is the higher for 1, the lower for -1."""
    values = [f"{before:.{DIGITS}f}", f"{after:.{DIGITS}f}"]
    if best and values[0] != values[1]:
        better = int(best * after > best * before)
        values[better] = Best(values[better])
    return [*values, _round(difference, DIGITS, "+")]


def _interval(row: Result) -> str:
    if row["low"] is None or row["queries"] < 2:
        return "too few"
    return f"{_round(row['low'], 3)} to {_round(row['high'], 3)}"


def _round(value: float, digits: int, sign: str = "-") -> str:
    """A number with so many digits, and no minus before a zero."""
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}"


def _losses(losses: Result, note: str) -> Parts:
    """What became of relevant documents: the change of each fate, and the documents that changed theirs."""
    k, many = losses["cutoff"], losses["queries"]
    words = {fate.value: text.format(k=k) for fate, text in WORDS.items()}
    changes = [
        [
            words[row["fate"]],
            *_change(row["baseline"], row["share"], row["difference"]),
            _interval(row | {"queries": many}),
        ]
        for row in losses["changes"]
    ]
    title = f"R@{k}: what became of relevant documents, {queries(many)}"
    parts: Parts = [Grid(title, ["fate", "baseline", "run", "change", "95 % interval"], changes, note=note)]
    if flows := losses["flows"]:
        rows = []
        for row in flows[:FLOWS]:
            documents = row["documents"]  # with repeats it is a mean
            count = str(documents) if isinstance(documents, int) else f"{documents:.1f}"
            rows.append([count, words[row["from"]], words[row["to"]], str(row["queries"]), ", ".join(row["examples"])])
        more = f", the {FLOWS} largest of {len(flows)}" if len(flows) > FLOWS else ""
        heads = ["documents", "baseline", "run", "queries", "e.g."]
        parts.append(Grid(f"documents that changed their fate{more}", heads, rows, names=(1, 2, 4), note=note))
    return parts


def _spread(systems: list[Result], labels: list[str]) -> Parts:
    """The standard deviation between repeats of each metric's mean, of the systems that have repeats."""
    repeated = [(label, system) for label, system in zip(labels, systems, strict=True) if system["spread"] is not None]
    if not repeated:
        return []
    metrics = dict.fromkeys(metric for _, system in repeated for metric in system["spread"])
    rows = [[name, *(number(system["spread"].get(name), unknown="-") for _, system in repeated)] for name in metrics]
    heads = ["metric", *(f"{label} ({len(system['repeats'])} runs)" for label, system in repeated)]
    return [Grid("standard deviation of the mean between repeats", heads, rows)]


def _cost(rows: list[Result], labels: list[str], task: str) -> Grid:
    heads = ["", "calls", "tokens in", "tokens out", "paid", "list price", "failed queries"]
    cells = [
        [
            label,
            *(number(row[f"{key}_per_query"], "{:,.1f}") for key in ("calls", "input_tokens", "output_tokens")),
            *(number(row[f"{key}_per_query"], "${:.5f}") for key in ("paid_usd", "list_usd")),
            f"{row['failed']} of {row['queries']}",
        ]
        for label, row in zip(labels, rows, strict=True)
    ]
    return Grid("a query cost on average", heads, cells, note=task)


def _explained(result: Result) -> list[str]:
    """What the columns of a comparison are."""
    tested = sum(row["p"] is not None for row in result["comparisons"])
    return [
        f"p: two-sided sign-flip permutation test over queries; Holm: adjusted for all {tested} comparisons here",
        "w/t/l: queries won, tied, lost; shows: the smallest change that so many queries show at 80 % power",
    ]


SHOWN = 10  # documents gained and lost that are printed, each
TEXT = 70  # characters of a search that are printed


def show_replay(result: Result) -> None:
    """Print the tables."""
    replayed, recall = result["replayed"], result["recall"]
    on = replayed["retriever"] or "the retriever that each had"
    depth = f"{replayed['depth']} documents each" if replayed["depth"] else "to the depth that each had"
    searched = f"{result['searches']} searches, {replayed['distinct']} distinct ones issued again on {on}, {depth}"
    parts: Parts = [task_line(result), system_line(result), f"{searched}; {result['same']} bring the same"]
    if recall["paired"] is None:
        put_out(printed([*parts, "none of the queries has a relevant document, so there is nothing to surface"]))
        return
    gained = [row for row in result["relevant"] if row["now"] and not row["then"]]
    lost = [row for row in result["relevant"] if row["then"] and not row["now"]]
    parts += ["", _surfaced(result["documents"]), _recall(recall), "", _hops(result["hops"])]
    for words, when, rows in (("gained", "now", gained), ("lost", "then", lost)):
        if rows:
            more = f", the {SHOWN} that came first" if len(rows) > SHOWN else ""
            parts += [f"{words}: {len(rows)} relevant documents{more}", _moved(rows, when)]
    parts += ["the searches are the run's: with other results, its searcher would have gone on otherwise"]
    put_out(printed(parts))


def _surfaced(counts: Mapping[str, int]) -> Grid:
    words = {"both": "then and now", "only_then": "only then", "only_now": "only now", "neither": "neither"}
    whole = sum(counts.values())
    rows = [[said, str(counts[key]), f"{counts[key] / whole:.4f}"] for key, said in words.items()]
    return Grid("", ["relevant documents that surfaced", "documents", "share"], rows)


def _recall(recall: Result) -> str:
    test = recall["paired"]
    interval = "" if test["low"] is None else f" ({test['low']:+.4f} to {test['high']:+.4f})"
    p = "<0.001" if test["p"] < 0.001 else f"{test['p']:.3f}"
    means = f"{recall['then']:.4f} then, {recall['now']:.4f} now: {test['difference']:+.4f}{interval}, p {p}"
    return (
        f"recall of all that surfaced: {means}; {test['wins']} queries won, {test['ties']} tied, {test['losses']} lost"
    )


def _hops(hops: Sequence[Result]) -> Grid:
    rows = []
    for hop in hops:
        cells = [[str(hop[when]["first"]), f"{hop[when]['recall']:.4f}"] for when in ("then", "now")]
        rows.append([str(hop["hop"] or "none"), str(hop["searches"]), *cells[0], *cells[1]])
    return Grid("", ["hop", "searches", "first then", "recall so far", "first now", "recall so far"], rows)


def _moved(moved: Sequence[Result], when: str) -> Grid:
    rows = []
    for row in sorted(moved, key=lambda row: (row[when]["hop"], row[when]["rank"]))[:SHOWN]:
        at = row[when]
        text = at["search"] if len(at["search"]) <= TEXT else f"{at['search'][: TEXT - 4]} ..."
        names = [row["query_id"], row["unit"], " ".join(text.split())]
        rows.append([*names, f"{row['grade']:g}", str(at["hop"]), str(at["rank"])])
    return Grid("", ["query", "document", "search", "grade", "hop", "rank"], rows, names=(0, 1, 2))
