"""What `compare`, `curves` and `replay` print, laid out as lines and tables
(evals/text_tables.py prints them).
"""

import math
from collections.abc import Sequence
from typing import Any

from evals.run_schemas import FATE_LABELS
from evals.scoring.budget_curves import AXES
from evals.scoring.metrics import is_lower_better
from evals.text_tables import (
    BoldCell,
    TextBlock,
    TextTable,
    describe_system,
    describe_task,
    render_terminal,
    to_csv,
)
from tools.number_format import abbreviate, count_failed, number, plural, queries

Result = dict[str, Any]
HEADS = ("baseline", "run", "change", "95 % interval", "p", "Holm", "w/t/l", "shows")
ALPHA = 0.05
DIGITS = 4  # of means, as in the table of a run
FLOWS = 10  # flows shown; --json has all
COLUMNS = 8  # budgets in a table, beside the end
FRONT = 12  # points of the front that are printed
SHOWN = 10  # documents gained and lost in a replay that are printed, each
TEXT = 70  # characters of a search that are printed


def lay_out_comparison(result: Result) -> list[TextBlock]:
    """Lay out a comparison: the task, the systems, each comparison, what a query cost, notes."""
    labels = ["baseline", *(f"run {number}" for number in range(1, len(result["runs"]) + 1))]
    blocks: list[TextBlock] = [describe_task(result), *_verdicts(result, labels)]
    for label, system in zip(labels, result["systems"], strict=True):
        blocks += [f"{label}: {system['run']}", f"    {describe_system(system)}"]
        blocks += [f"    repeat: {path}" for path in system["repeats"][1:]]
    tested = sum(row["p"] is not None for row in result["comparisons"])
    explained = [
        f"p: two-sided sign-flip permutation test over queries; Holm: adjusted for all {tested} "
        f"comparisons with a p",
        "w/t/l: queries won, tied, lost; shows: the smallest change that so many queries show at "
        "80 % power",
    ]
    for label, run, changed in zip(labels[1:], result["runs"], result["differences"], strict=True):
        blocks += ["", *_compare(result, label, run, changed["keys"], explained)]
    blocks += [
        *_spread(result["systems"], labels),
        _cost(result["cost"], labels, describe_task(result)),
    ]
    return [*blocks, *explained, *result["notes"], *result["deviations"]]


def _verdicts(result: Result, labels: list[str]) -> list[str]:
    """Say of each run in a sentence whether it differs from the baseline in the headline metric."""
    base, *names = [
        f"{system['program']} ({label})"
        for system, label in zip(result["systems"], labels, strict=True)
    ]
    sentences = list[str]()
    metric = result["metric"]
    named = dict(zip(result["runs"], names, strict=True))
    for row in [row for row in result["comparisons"] if row["metric"] == metric and row["queries"]]:
        name = named[row["run"]]
        if row["p_holm"] is None:
            sentences.append(f"{metric} of {name} and {base} is not tested")
            continue
        p = _round_p(row["p_holm"])
        tested = f"(p {'' if p[0] == '<' else '= '}{p} by Holm, {queries(row['queries'])})"
        if row["p_holm"] < ALPHA:
            better = "worse" if (row["difference"] > 0) is is_lower_better(metric) else "better"
            sentences.append(
                f"{name} is {better} than {base} by {abs(row['difference']):.3f} {metric} {tested}"
            )
        else:
            shows = number(
                row["detectable"], "; one of {:.3f} would have been, in 80 % of cases", ""
            )
            sentences.append(
                f"no difference between {name} and {base} in {metric} could be shown "
                f"{tested}{shows}"
            )
    return sentences


def _compare(
    result: Result, label: str, run: str, changed: dict[str, list[Any]], explained: list[str]
) -> list[TextBlock]:
    forced = f", forced although {', '.join(result['forced'])} differ" if result["forced"] else ""
    context = f"{describe_task(result)}{forced}"
    note = f"{label} against baseline. {context}"
    keys = [
        f"{key} {abbreviate(after)} (was {abbreviate(before)})"
        for key, (before, after) in changed.items()
    ]
    title = f"{label} against baseline{forced}: {', '.join(keys) or 'the same configuration'}"
    rows = metric_rows([row for row in result["comparisons"] if row["run"] == run])
    blocks: list[TextBlock] = [
        TextTable(title, ["metric", *HEADS], rows, note=". ".join([context, *explained]))
    ]
    for losses in result["losses"]:
        blocks += _losses(losses, note) if losses["run"] == run else []
    if moved := [row for row in result["moved"] if row["run"] == run]:
        cells = [[row["query_id"], *_change(row, "baseline", "value")] for row in moved]
        title = f"queries that moved most in {moved[0]['metric']}"
        blocks.append(TextTable(title, ["query", "baseline", "run", "change"], cells, note=note))
    return blocks


def metric_rows(rows: list[Result]) -> list[list[str]]:
    """Lay out comparisons of means, a row a metric."""
    most = max(row["queries"] for row in rows)
    cells = []
    for row in rows:
        if not row["queries"]:
            cells.append([row["metric"], "undefined", *[""] * 7])
            continue
        name = row["metric"] if row["queries"] == most else f"{row['metric']} ({row['queries']})"
        means = _change(row, "baseline_mean", "mean")
        if means[0] != means[1]:
            better = int((row["mean"] > row["baseline_mean"]) is not is_lower_better(row["metric"]))
            means[better] = BoldCell(means[better])
        tests = [
            _round_p(row["p"]),
            _round_p(row["p_holm"]),
            f"{row['wins']}/{row['ties']}/{row['losses']}",
        ]
        cells.append(
            [name, *means, _interval(row), *tests, number(row["detectable"], "{:.3f}", "-")]
        )
    return cells


def _change(row: Result, before: str, after: str) -> list[str]:
    return [
        *(f"{row[key]:.{DIGITS}f}" for key in (before, after)),
        _round(row["difference"], DIGITS, "+"),
    ]


def _interval(row: Result) -> str:
    few = row["low"] is None or row["queries"] < 2
    return "too few" if few else f"{_round(row['low'], 3)} to {_round(row['high'], 3)}"


def _round(value: float, digits: int, sign: str = "-") -> str:
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}"  # no minus before a zero


def _round_p(p: float | None) -> str:
    if p is None:  # not tested
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _losses(losses: Result, note: str) -> list[TextBlock]:
    k = losses["cutoff"]
    query_count = losses["queries"]
    flows = losses["flows"]
    words = {fate.value: text.format(k=k) for fate, text in FATE_LABELS.items()}
    rows = [
        [
            words[row["fate"]],
            *_change(row, "baseline", "share"),
            _interval(row | {"queries": query_count}),
        ]
        for row in losses["changes"]
    ]
    title = f"R@{k}: what became of relevant documents, {queries(query_count)}"
    shares = TextTable(
        title, ["fate", "baseline", "run", "change", "95 % interval"], rows, note=note
    )
    rows = []
    for row in flows[:FLOWS]:
        count = (
            str(row["documents"])
            if isinstance(row["documents"], int)
            else f"{row['documents']:.1f}"
        )  # a mean
        rows.append(
            [
                count,
                words[row["from"]],
                words[row["to"]],
                str(row["queries"]),
                ", ".join(row["examples"]),
            ]
        )
    suffix = f", the {FLOWS} largest of {len(flows)}" if len(flows) > FLOWS else ""
    heads = ["documents", "baseline", "run", "queries", "e.g."]
    moved = TextTable(
        f"documents that changed their fate{suffix}", heads, rows, names=(1, 2, 4), note=note
    )
    return [shares, moved] if flows else [shares]


def _spread(systems: list[Result], labels: list[str]) -> list[TextBlock]:
    repeated = [
        (label, system)
        for label, system in zip(labels, systems, strict=True)
        if system["spread"] is not None
    ]
    if not repeated:
        return []
    metrics = dict.fromkeys(metric for _, system in repeated for metric in system["spread"])
    rows = [
        [name, *(number(system["spread"].get(name), unknown="-") for _, system in repeated)]
        for name in metrics
    ]
    heads = ["metric", *(f"{label} ({len(system['repeats'])} runs)" for label, system in repeated)]
    return [TextTable("standard deviation of the mean between repeats", heads, rows)]


def _cost(rows: list[Result], labels: list[str], task: str) -> TextTable:
    heads = ["", "calls", "tokens in", "tokens out", "paid", "list price", "failed queries"]
    cells = []
    for label, row in zip(labels, rows, strict=True):
        amounts = [
            number(row[f"{key}_per_query"], "{:,.1f}")
            for key in ("calls", "input_tokens", "output_tokens")
        ]
        amounts[-1] += (
            f" ({thinking:,.1f} thinking)"
            if (thinking := row["reasoning_tokens_per_query"])
            else ""
        )
        amounts += [number(row[f"{key}_per_query"], "${:.5f}") for key in ("paid_usd", "list_usd")]
        cells.append(
            [label, *amounts, count_failed(row["failed"], row["queries"], row["repeats"], "run")]
        )
    return TextTable("a query cost on average", heads, cells, note=task)


def render_curves(result: Result) -> str:
    """Return the tables of curves for equal budgets, with the task above them and what is not
    shown below.
    """
    blocks: list[TextBlock] = [describe_task(result)]
    blocks += [f"{run['label']}: {describe_system(run)}" for run in result["runs"]]
    for axis, curves in result["axes"].items():
        head = (
            f"{result['metric']} by {curves['words']} a query, mean of "
            f"{queries(curves['curves'][0]['queries'])}"
        )
        blocks += ["", head, _curves_table(axis, curves), _front(axis, curves)]
    blocks += ["", "a query that has ended keeps its value; * no run does better with so much"]
    blocks += [
        f"{refusal['run']} has no curve by {AXES[refusal['axis']]}: {refusal['why']}"
        for refusal in result["refused"]
    ]
    return render_terminal(
        [*blocks, *(f"no run used any {AXES[axis]}" for axis in result["unused"])]
    )


def _curves_table(axis: str, curves: Result) -> TextTable:
    columns = _choose_columns(curves["budgets"])
    rows = []
    for row in curves["curves"]:
        cells = []
        for column in columns:
            most = max(
                point["value"]
                for point in curves["front"]
                if point["budget"] <= curves["budgets"][column]
            )
            cells.append(
                f"{row['mean'][column]:.{DIGITS}f}" + ("*" if row["mean"][column] >= most else " ")
            )
        end = f"{row['end']:.{DIGITS}f}" + ("*" if row["front"] else " ")
        rows.append([row["label"], *cells, end, _amount(axis, row["cost"], mean=True)])
    heads = [
        curves["words"],
        *(_amount(axis, curves["budgets"][column]) for column in columns),
        "at its end",
        "after",
    ]
    return TextTable("", heads, rows)


def _choose_columns(budgets: list[float]) -> list[int]:
    unit = next(budget for budget in budgets if budget)
    columns = [
        column
        for column, budget in enumerate(budgets)
        if budget and math.log2(round(budget / unit)).is_integer()
    ]
    while len(columns) > COLUMNS:
        columns = columns[::2]
    return ([] if budgets[0] else [0]) + columns


def _front(axis: str, curves: Result) -> str:
    points = []
    for point in curves["front"]:
        if point["value"] or len(curves["front"]) == 1:
            first, *further = point["runs"]
            suffix = f" and {plural(len(further), 'other')}" if further else ""
            points.append(
                f"{_amount(axis, point['budget'])}: {point['value']:.{DIGITS}f} {first}{suffix}"
            )
    ending = f"; and {len(points) - FRONT} more, in --csv and --json" if len(points) > FRONT else ""
    return f"Pareto front: {'; '.join(points[:FRONT])}{ending}"


def _amount(axis: str, amount: float, *, mean: bool = False) -> str:
    if axis == "usd":
        return f"${amount:.6f}".rstrip("0").rstrip(".") if amount < 0.1 else f"${amount:,.2f}"
    return f"{amount:,.1f}" if mean and amount < 1000 else f"{amount:,.0f}"


def curves_csv(result: Result) -> str:
    """Return curves for equal budgets as CSV: a line for each run, axis and budget."""
    columns = ("mean", "low", "high", "spent", "ended")
    rows: list[list[object]] = [["run", "axis", "metric", "budget", *columns, "queries", "front"]]
    for axis, curves in result["axes"].items():
        best = {point["budget"]: point["value"] for point in curves["front"]}
        for row in curves["curves"]:
            for column, budget in enumerate(curves["budgets"]):
                on_front = best.get(budget) == row["mean"][column]
                cells = [row[name][column] for name in columns]
                rows.append(
                    [
                        row["run"],
                        axis,
                        result["metric"],
                        budget,
                        *cells,
                        row["queries"],
                        int(on_front),
                    ]
                )
    return to_csv(rows)


def render_replay(result: Result) -> str:
    """Return a replay as text: what surfaced then and now, in which hop, and which documents
    were gained and lost.
    """
    replayed = result["replayed"]
    test = result["recall"]["paired"]
    on = replayed["retriever"] or "the retriever that each had"
    depth = (
        f"{replayed['depth']} documents each" if replayed["depth"] else "to the depth that each had"
    )
    searched = (
        f"{result['searches']} searches, {replayed['distinct']} distinct ones issued again on "
        f"{on}, {depth}"
    )
    blocks: list[TextBlock] = [
        describe_task(result),
        describe_system(result),
        f"{searched}; {result['same']} bring the same",
    ]
    if test is None:
        return render_terminal(
            [*blocks, "none of the queries has a relevant document, so there is nothing to surface"]
        )
    counts = result["documents"]
    total = sum(result["documents"].values())
    words = {
        "both": "then and now",
        "only_then": "only then",
        "only_now": "only now",
        "neither": "neither",
    }
    rows = [[label, str(counts[key]), f"{counts[key] / total:.4f}"] for key, label in words.items()]
    blocks += ["", TextTable("", ["relevant documents that surfaced", "documents", "share"], rows)]
    interval = "" if test["low"] is None else f" ({test['low']:+.4f} to {test['high']:+.4f})"
    means = (
        f"{result['recall']['then']:.4f} then, {result['recall']['now']:.4f} now: "
        f"{test['difference']:+.4f}"
    )
    won = f"{test['wins']} queries won, {test['ties']} tied, {test['losses']} lost"
    blocks += [
        f"recall of all that surfaced: {means}{interval}, p {_round_p(test['p'])}; {won}",
        "",
    ]
    rows = []
    for hop in result["hops"]:
        cells = [
            [str(hop[when]["first"]), f"{hop[when]['recall']:.4f}"] for when in ("then", "now")
        ]
        rows.append([str(hop["hop"] or "none"), str(hop["searches"]), *cells[0], *cells[1]])
    blocks.append(
        TextTable(
            "",
            ["hop", "searches", "first then", "recall so far", "first now", "recall so far"],
            rows,
        )
    )
    for word, when, reference in (("gained", "now", "then"), ("lost", "then", "now")):
        if moved := [row for row in result["relevant"] if row[when] and not row[reference]]:
            suffix = f", the {SHOWN} that came first" if len(moved) > SHOWN else ""
            blocks += [f"{word}: {len(moved)} relevant documents{suffix}", _moved(moved, when)]
    blocks.append(
        "the searches are the run's: with other results, its searcher would have gone on otherwise"
    )
    return render_terminal(blocks)


def _moved(moved: Sequence[Result], when: str) -> TextTable:
    rows = []
    for row in sorted(moved, key=lambda row: (row[when]["hop"], row[when]["rank"]))[:SHOWN]:
        at = row[when]
        text = " ".join(abbreviate(at["search"], TEXT).split())
        rows.append(
            [
                row["query_id"],
                row["unit"],
                text,
                f"{row['grade']:g}",
                str(at["hop"]),
                str(at["rank"]),
            ]
        )
    return TextTable(
        "", ["query", "document", "search", "grade", "hop", "rank"], rows, names=(0, 1, 2)
    )
