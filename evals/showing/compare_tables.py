"""What a comparison shows, as lines and tables (evals/showing/markup.py prints them)."""

from typing import Any

from evals.measuring.scored import brief, told
from evals.showing.markup import Best, Grid, Part

Result = dict[str, Any]
DIGITS = 4  # of means, as in the table of a run
FLOWS = 10  # flows shown; --json has all


def parts(result: Result) -> list[Part]:
    """All of it: what was asked, what answered, each comparison, what a query cost, what to know."""
    from evals.showing.terminal import system_line, task_line

    labels = ["baseline", *(f"run {number}" for number in range(1, len(result["runs"]) + 1))]
    made: list[Part] = [task_line(result)]
    for label, system in zip(labels, result["systems"], strict=True):
        made += [f"{label}: {system['run']}", f"    {system_line(system)}"]
        made += [f"    repeat: {path}" for path in system["repeats"][1:]]
    for label, run, differences in zip(labels[1:], result["runs"], result["differences"], strict=True):
        made += _comparison(result, label, run, _what(differences["keys"]))
    made += [*_spread(result["systems"], labels), _cost(result["cost"], labels, task_line(result))]
    return [*made, *_explained(result), *result["notes"]]


def _comparison(result: Result, label: str, run: str, what: str) -> list[Part]:
    """The tables of one system against the baseline."""
    from evals.showing.terminal import task_line

    forced = f", forced although {', '.join(result['forced'])} differ" if result["forced"] else ""
    where = f"{task_line(result)}{forced}"
    rows = [row for row in result["comparisons"] if row["run"] == run]
    moved = [row for row in result["moved"] if row["run"] == run]
    made: list[Part] = [
        "",
        Grid(
            f"{label} against baseline{forced}: {what}",
            ["metric", "baseline", "run", "change", "95 % interval", "p", "Holm", "w/t/l", "shows"],
            _rows(rows),
            note=". ".join([where, *_explained(result)]),
        ),
    ]
    for losses in result["losses"]:
        made += _losses(losses, f"{label} against baseline. {where}") if losses["run"] == run else []
    if moved:
        cells = [[row["query_id"], *_three(row["baseline"], row["value"], row["difference"])] for row in moved]
        title = f"queries that moved most in {moved[0]['metric']}"
        note = f"{label} against baseline. {where}"
        made.append(Grid(title, ["query", "baseline", "run", "change"], cells, note=note))
    return made


def _what(differences: dict[str, list[Any]]) -> str:
    if not differences:
        return "the same configuration"
    return ", ".join(f"{key} {brief(after)} (was {brief(before)})" for key, (before, after) in differences.items())


def _rows(rows: list[Result]) -> list[list[str]]:
    """A row a metric, with the number of its queries where it is defined for fewer than others."""
    most = max(row["queries"] for row in rows)
    made = []
    for row in rows:
        if not row["queries"]:
            made.append([row["metric"], "undefined", *[""] * 7])
            continue
        made.append(
            [
                row["metric"] if row["queries"] == most else f"{row['metric']} ({row['queries']})",
                *_three(
                    row["baseline_mean"],
                    row["mean"],
                    row["difference"],
                    best=-1 if is_lower_better(row["metric"]) else 1,
                ),
                _interval(row),
                *(_p(row[key]) for key in ("p", "p_holm")),
                f"{row['wins']}/{row['ties']}/{row['losses']}",
                told(row["detectable"], "{:.3f}", "-"),
            ]
        )
    return made


def is_lower_better(metric: str) -> bool:
    """Whether less of a metric is better: only of Flip, the share of comparisons that come out otherwise."""
    return metric.partition(" ")[0] == "Flip"


def _three(before: float, after: float, difference: float, *, best: int = 0) -> list[str]:
    """Both values and their difference; the better one is marked, which is the higher for 1, the lower for -1."""
    values = [f"{before:.{DIGITS}f}", f"{after:.{DIGITS}f}"]
    if best and values[0] != values[1]:
        better = int(best * after > best * before)
        values[better] = Best(values[better])
    return [*values, _rounded(difference, DIGITS, "+")]


def _interval(row: Result) -> str:
    if row["low"] is None or row["queries"] < 2:
        return "too few"
    return f"{_rounded(row['low'], 3)} to {_rounded(row['high'], 3)}"


def _rounded(value: float, digits: int, sign: str = "-") -> str:
    """A number with so many digits, and no minus before a zero."""
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}"


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _losses(losses: Result, note: str) -> list[Part]:
    """What became of relevant documents: the change of each fate, and the documents that changed theirs."""
    from evals.measuring.attribution import WORDS
    from evals.showing.terminal import queries as counted

    def words(fate: str) -> str:
        return next(text.format(k=k) for known, text in WORDS.items() if known.value == fate)

    k, queries = losses["cutoff"], losses["queries"]
    changes = [
        [
            words(row["fate"]),
            *_three(row["baseline"], row["share"], row["difference"]),
            _interval(row | {"queries": queries}),
        ]
        for row in losses["changes"]
    ]
    made: list[Part] = [
        Grid(
            f"R@{k}: what became of relevant documents, {counted(queries)}",
            ["fate", "baseline", "run", "change", "95 % interval"],
            changes,
            note=note,
        )
    ]
    if flows := losses["flows"]:
        shown = [
            [
                _count(row["documents"]),
                words(row["from"]),
                words(row["to"]),
                str(row["queries"]),
                ", ".join(row["examples"]),
            ]
            for row in flows[:FLOWS]
        ]
        more = f", the {FLOWS} largest of {len(flows)}" if len(flows) > FLOWS else ""
        heads = ["documents", "baseline", "run", "queries", "e.g."]
        made.append(Grid(f"documents that changed their fate{more}", heads, shown, names=(1, 2, 4), note=note))
    return made


def _count(documents: float) -> str:
    """Documents; with repeats it is a mean."""
    return str(documents) if isinstance(documents, int) else f"{documents:.1f}"


def _spread(systems: list[Result], labels: list[str]) -> list[Part]:
    """The standard deviation between repeats of each metric's mean, of the systems that have repeats."""
    repeated = [(label, system) for label, system in zip(labels, systems, strict=True) if system["spread"] is not None]
    metrics = list(dict.fromkeys(metric for _, system in repeated for metric in system["spread"]))
    if not repeated:
        return []
    rows = [
        [metric, *(told(system["spread"].get(metric), unknown="-") for _, system in repeated)] for metric in metrics
    ]
    heads = ["metric", *(f"{label} ({len(system['repeats'])} runs)" for label, system in repeated)]
    return [Grid("standard deviation of the mean between repeats", heads, rows)]


def _cost(rows: list[Result], labels: list[str], task: str) -> Grid:
    heads = ["", "calls", "tokens in", "tokens out", "paid", "list price", "failed queries"]
    cells = [
        [
            label,
            *(told(row[f"{key}_per_query"], "{:,.1f}") for key in ("calls", "input_tokens", "output_tokens")),
            *(told(row[f"{key}_per_query"], "${:.5f}") for key in ("paid_usd", "list_usd")),
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
