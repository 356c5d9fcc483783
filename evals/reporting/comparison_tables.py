"""The output of `compare`, `curves` and `replay`, laid out as lines and tables
(tools/platform/result_table.py prints them).
"""

import math
from collections.abc import Sequence
from typing import Any

from sextant.evals.reporting.overview_table import overview_table
from sextant.evals.reporting.verdicts import describe_families, describe_verdict, round_p
from sextant.evals.run_descriptions import describe_system, describe_task
from sextant.evals.run_schemas import FATE_LABELS
from sextant.evals.scoring.budget_curves import AXES
from sextant.evals.scoring.metrics import orient
from sextant.tools.platform.number_format import abbreviate, count_failed, number, plural, queries
from sextant.tools.platform.result_table import (
    Cell,
    ResultTable,
    TextBlock,
    figure_cell,
    render_terminal,
    to_csv,
)
from sextant.tools.records import JsonMapping, JsonObject

Result = JsonObject
HEADS = (
    "baseline",
    "run",
    "change",
    "95 % interval",
    "p",
    "Holm",
    "w/t/l",
    "shows",
)
# Decimals of means, as in the table of a run.
DIGITS = 4
# Flows that are shown; --json has all.
FLOWS = 10
# Budgets in a table, in addition to the end.
COLUMNS = 8
# Points of the front that are printed.
FRONT = 12
# Documents gained, and documents lost, in a replay that are printed.
SHOWN = 10
# Characters of a search that are printed.
TEXT = 70


def lay_out_comparison(result: Result, *, pairs: bool = True) -> list[TextBlock]:
    """Lay out a comparison: the task, the systems, each comparison, the cost of a query, notes.

    Several systems begin with a table of all; each comparison with the baseline is left out without
    `pairs`.
    """
    labels = [
        "baseline",
        *(f"run {number}" for number in range(1, len(result["runs"]) + 1)),
    ]
    systems = zip(result["systems"], labels, strict=True)
    names = [f"{system['name']} ({label})" for system, label in systems]
    blocks: list[TextBlock] = [
        describe_task(result),
        *describe_verdicts(result, names),
    ]
    if len(labels) > 2:
        overview = overview_table(result)
        blocks[1:1] = ["", overview, *overview.notes, ""]
    for label, system in zip(labels, result["systems"], strict=True):
        blocks += [
            f"{label}: {system['run']}",
            f"    {describe_system(system)}",
        ]
        blocks += [f"    repeat: {path}" for path in system["repeats"][1:]]
    families = describe_families(result["comparisons"])
    explained = ["--pairs prints each comparison with the baseline"]
    if pairs:
        explained = [
            f"p: two-sided sign-flip permutation test over queries; Holm: adjusted for {families}",
            "95 % interval, shows: too few, and -, where too few queries differ",
            "w/t/l: queries won, tied, lost; shows: the change that so many queries show in 80 % of "
            "cases, as the first of the tests that Holm adjusts for",
        ]
    changes = zip(labels[1:], result["runs"], result["differences"], strict=True)
    for label, run, changed in changes if pairs else ():
        blocks += [
            "",
            *_compare(
                result,
                label,
                run,
                changed["keys"],
                explained,
            ),
        ]
    blocks += [
        *_spread(result["systems"], labels),
        "",
        _cost(result["cost"], names, describe_task(result)),
    ]
    return [
        *blocks,
        *explained,
        *_name_runs(result["notes"], result["systems"], names),
        *result["deviations"],
    ]


def _name_runs(notes: Sequence[str], systems: Sequence[Result], names: Sequence[str]) -> list[str]:
    """Write the names of systems in notes in place of the paths of their first runs."""
    named = []
    for note in notes:
        for system, name in zip(systems, names, strict=True):
            note = note.replace(f"{system['run']}:", f"{name}:")
        named.append(note)
    return named


def describe_verdicts(result: JsonMapping, names: Sequence[str]) -> list[str]:
    """Say of each run in a sentence whether it differs from the baseline in the headline metric.

    `names` are those of the systems, the baseline's first.
    """
    baseline, *others = names
    name_of = dict(zip(result["runs"], others, strict=True))
    sentences = []
    for row in result["comparisons"]:
        if row["metric"] == result["metric"] and row["queries"]:
            sentences.append(describe_verdict(row, name_of[row["run"]], baseline))
    return sentences


def _compare(
    result: Result,
    label: str,
    run: str,
    changed: dict[str, list[Any]],
    explained: list[str],
) -> list[TextBlock]:
    forced = f", forced although {', '.join(result['forced'])} differ" if result["forced"] else ""
    context = f"{describe_task(result)}{forced}"
    changes = _describe_changes(changed)
    title = f"{label} against baseline{forced}: {changes}"
    stem = label.replace(" ", "-")
    rows = metric_rows([row for row in result["comparisons"] if row["run"] == run])
    blocks: list[TextBlock] = [
        ResultTable(
            title,
            ["metric", *HEADS],
            rows,
            notes=[context, *explained],
            stem=stem,
        )
    ]
    note = f"{label} against baseline. {context}"
    for losses in result["losses"]:
        if losses["run"] == run:
            blocks += _losses(losses, note, stem)
    moved = [row for row in result["moved"] if row["run"] == run]
    if moved:
        cells = [
            [
                row["query_id"],
                *_change(row, "baseline", "value"),
            ]
            for row in moved
        ]
        title = f"queries that moved most in {moved[0]['metric']}"
        heads = ["query", "baseline", "run", "change"]
        blocks.append(
            ResultTable(
                title,
                heads,
                cells,
                notes=[note],
                stem=f"{stem}-moved",
            )
        )
    return blocks


def _describe_changes(changed: dict[str, list[Any]]) -> str:
    changes = []
    for key, (before, after) in changed.items():
        changes.append(f"{key} {abbreviate(after)} (was {abbreviate(before)})")
    return ", ".join(changes) or "the same configuration"


def metric_rows(rows: list[Result]) -> list[list[str]]:
    """Lay out comparisons of means, a row a metric."""
    most_queries = max(row["queries"] for row in rows)
    cells = []
    for row in rows:
        if row["queries"]:
            cells.append(_metric_row(row, most_queries))
        else:
            cells.append(
                [
                    row["metric"],
                    "undefined",
                    *[""] * 7,
                ]
            )
    return cells


def _metric_row(row: Result, most_queries: int) -> list[str]:
    name = row["metric"]
    if row["queries"] != most_queries:
        name += f" ({row['queries']})"
    means = _change(row, "baseline_mean", "mean")
    if means[0] != means[1]:
        is_better = orient(row["metric"], row["mean"] - row["baseline_mean"]) > 0
        means[is_better].bold = True
    return [
        name,
        *means,
        _interval(row),
        round_p(row["p"]),
        round_p(row["p_holm"]),
        f"{row['wins']}/{row['ties']}/{row['losses']}",
        figure_cell(row["detectable"], "{:.3f}"),
    ]


def _change(row: Result, before: str, after: str) -> list[Cell]:
    # "z" writes no minus before a zero.
    return [
        figure_cell(row[before]),
        figure_cell(row[after]),
        figure_cell(row["difference"], "{:+z.4f}"),
    ]


def _interval(row: Result) -> str:
    if row["low"] is None:
        return "too few"
    return Cell("{:z.3f} to {:z.3f}", figures=[row["low"], row["high"]])


def _losses(losses: Result, note: str, stem: str) -> list[TextBlock]:
    cutoff = losses["cutoff"]
    query_count = losses["queries"]
    words = {fate.value: text.format(k=cutoff) for fate, text in FATE_LABELS.items()}
    rows = []
    for row in losses["changes"]:
        interval = _interval(row)
        rows.append(
            [
                words[row["fate"]],
                *_change(row, "baseline", "share"),
                interval,
            ]
        )
    title = f"R@{cutoff}: what became of relevant documents, mean shares of {queries(query_count)}"
    heads = ["fate", "baseline", "run", "change", "95 % interval"]
    shares = ResultTable(title, heads, rows, notes=[note], stem=f"{stem}-fates")
    return [shares, *_flows_table(losses["flows"], words, note, stem)]


def _flows_table(
    flows: Sequence[Result], words: dict[str, str], note: str, stem: str
) -> list[ResultTable]:
    if not flows:
        return []
    rows = []
    for row in flows[:FLOWS]:
        documents = row["documents"]
        # A mean over repeats is no whole number.
        count = str(documents) if isinstance(documents, int) else f"{documents:.1f}"
        examples = ", ".join(row["examples"])
        rows.append(
            [
                count,
                words[row["from"]],
                words[row["to"]],
                str(row["queries"]),
                examples,
            ]
        )
    suffix = f", the {FLOWS} largest of {len(flows)}" if len(flows) > FLOWS else ""
    title = f"documents that changed their fate{suffix}"
    heads = ["documents", "baseline", "run", "queries", "e.g."]
    return [
        ResultTable(
            title,
            heads,
            rows,
            names=(1, 2, 4),
            notes=[note],
            stem=f"{stem}-flows",
        )
    ]


def _spread(systems: list[Result], labels: list[str]) -> list[TextBlock]:
    repeated = {}
    for label, system in zip(labels, systems, strict=True):
        if system["spread"] is not None:
            repeated[f"{label} ({plural(len(system['repeats']), 'run')})"] = system["spread"]
    if not repeated:
        return []
    metrics = dict.fromkeys(metric for spread in repeated.values() for metric in spread)
    rows = []
    for metric in metrics:
        deviations = [spread.get(metric) for spread in repeated.values()]
        rows.append([metric, *map(figure_cell, deviations)])
    heads = ["metric", *repeated]
    title = "standard deviation of the mean between repeats"
    return [ResultTable(title, heads, rows, stem="spread")]


def _cost(rows: list[Result], labels: list[str], task: str) -> ResultTable:
    heads = [
        "",
        "calls",
        "tokens in",
        "tokens out",
        "paid",
        "list price",
        "failed queries",
    ]
    cells = []
    for label, row in zip(labels, rows, strict=True):
        tokens_out = number(row["output_tokens_per_query"], "{:,.1f}")
        if thinking := row["reasoning_tokens_per_query"]:
            tokens_out += f" ({thinking:,.1f} thinking)"
        row_cells = [
            label,
            number(row["calls_per_query"], "{:,.1f}"),
            number(row["input_tokens_per_query"], "{:,.1f}"),
            tokens_out,
            number(row["paid_usd_per_query"], "${:.5f}"),
            number(row["list_usd_per_query"], "${:.5f}"),
            count_failed(row["failed"], row["queries"], row["repeats"], "run"),
        ]
        cells.append(row_cells)
    return ResultTable("a query cost on average", heads, cells, notes=[task], stem="cost")


def render_curves(result: Result) -> str:
    """Return the tables of curves for equal budgets as text for a terminal."""
    return render_terminal(lay_out_curves(result))


def lay_out_curves(result: Result) -> list[TextBlock]:
    """Lay out curves for equal budgets, with the task above and missing curves below."""
    blocks: list[TextBlock] = [describe_task(result)]
    for run in result["runs"]:
        blocks.append(f"{run['label']}: {run['run']}, {describe_system(run)}")
    for axis, curves in result["axes"].items():
        query_count = queries(curves["curves"][0]["queries"])
        blocks += [
            "",
            f"{result['metric']} by {curves['words']} a query, mean of {query_count}",
            _curves_table(axis, curves),
            _front(axis, curves),
        ]
    blocks += ["", "a query that has ended keeps its value; * no run does better with so much"]
    for refusal in result["refused"]:
        axis = AXES[refusal["axis"]]
        blocks.append(f"{refusal['run']} has no curve by {axis}: {refusal['why']}")
    blocks += [f"no run used any {AXES[axis]}" for axis in result["unused"]]
    return blocks


def _curves_table(axis: str, curves: Result) -> ResultTable:
    budgets = curves["budgets"]
    columns = _choose_columns(budgets)
    best = []
    for column in columns:
        affordable = [p["value"] for p in curves["front"] if p["budget"] <= budgets[column]]
        best.append(max(affordable))
    rows = []
    for row in curves["curves"]:
        cells = [row["label"]]
        for column, value in zip(columns, best, strict=True):
            mean = row["mean"][column]
            cells.append(_starred(mean, is_best=mean >= value))
        cells.append(_starred(row["end"], is_best=row["front"]))
        cells.append(_amount(axis, row["cost"], mean=True))
        rows.append(cells)
    heads = [curves["words"], *(_amount(axis, budgets[column]) for column in columns)]
    return ResultTable("", [*heads, "at its end", "after"], rows)


def _starred(mean: float, *, is_best: bool) -> str:
    return f"{mean:.{DIGITS}f}" + ("*" if is_best else " ")


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
            value = f"{point['value']:.{DIGITS}f}"
            amount = _amount(axis, point["budget"])
            points.append(f"{value} by {first}{suffix} after {amount}")
    ending = f"; and {len(points) - FRONT} more, in --csv and --json" if len(points) > FRONT else ""
    return f"Pareto front: {'; '.join(points[:FRONT])}{ending}"


def _amount(axis: str, amount: float, *, mean: bool = False) -> str:
    if axis == "usd":
        return f"${amount:.6f}".rstrip("0").rstrip(".") if amount < 0.1 else f"${amount:,.2f}"
    return f"{amount:,.1f}" if mean and amount < 1000 else f"{amount:,.0f}"


def curves_csv(result: Result) -> str:
    """Return curves for equal budgets as CSV: a line for each run, axis and budget."""
    return to_csv(curve_rows(result))


def curve_rows(result: Result) -> list[list[object]]:
    """Return curves for equal budgets as heads, and a row for each run, axis and budget."""
    columns = ("mean", "low", "high", "spent", "ended")
    rows: list[list[object]] = [
        [
            "run",
            "axis",
            "metric",
            "budget",
            *columns,
            "queries",
            "front",
        ]
    ]
    for axis, curves in result["axes"].items():
        best = {point["budget"]: point["value"] for point in curves["front"]}
        for row in curves["curves"]:
            for position, budget in enumerate(curves["budgets"]):
                on_front = best.get(budget) == row["mean"][position]
                cells = [row[name][position] for name in columns]
                about = [
                    row["run"],
                    axis,
                    result["metric"],
                    budget,
                ]
                rows.append(
                    [
                        *about,
                        *cells,
                        row["queries"],
                        int(on_front),
                    ]
                )
    return rows


def render_replay(result: Result) -> str:
    """Return a replay as text: documents that surfaced then and now, and those that moved."""
    blocks: list[TextBlock] = [
        describe_task(result),
        describe_system(result),
        _describe_searches(result),
    ]
    test = result["recall"]["paired"]
    if test is None:
        blocks.append("none of the queries has a relevant document, so there is nothing to surface")
        return render_terminal(blocks)
    blocks += [
        "",
        _surfaced_table(result["documents"]),
        _describe_recall(result["recall"]),
        "",
    ]
    blocks.append(_hops_table(result["hops"]))
    for word, when, before in (
        ("gained", "now", "then"),
        ("lost", "then", "now"),
    ):
        moved = [row for row in result["relevant"] if row[when] and not row[before]]
        if moved:
            suffix = f", the {SHOWN} that came first" if len(moved) > SHOWN else ""
            documents = plural(len(moved), "relevant document")
            blocks.append(f"{word}: {documents}{suffix}")
            blocks.append(_moved(moved, when))
    blocks.append(
        "the searches are the run's: with other results, its searcher would have gone on otherwise"
    )
    return render_terminal(blocks)


def _describe_searches(result: Result) -> str:
    replayed = result["replayed"]
    retriever = replayed["retriever"] or "the retriever that each had"
    depth = "to the depth that each had"
    if replayed["depth"]:
        depth = f"{plural(replayed['depth'], 'document')} each"
    return (
        f"{plural(result['searches'], 'search', 'searches')}, {replayed['distinct']} distinct ones issued again on "
        f"{retriever}, {depth}; {result['same']} bring the same"
    )


def _surfaced_table(counts: dict[str, int]) -> ResultTable:
    labels = {
        "both": "then and now",
        "only_then": "only then",
        "only_now": "only now",
        "neither": "neither",
    }
    total = sum(counts.values())
    rows = []
    for key, label in labels.items():
        count = counts[key]
        rows.append(
            [
                label,
                str(count),
                f"{count / total:.4f}",
            ]
        )
    return ResultTable("", ["relevant documents that surfaced", "documents", "share"], rows)


def _describe_recall(recall: Result) -> str:
    test = recall["paired"]
    change = f"{test['difference']:+.4f}"
    if test["low"] is not None:
        change += f" ({test['low']:+.4f} to {test['high']:+.4f})"
    won = f"{queries(test['wins'])} won, {test['ties']} tied, {test['losses']} lost"
    return (
        f"recall of all that surfaced: {recall['then']:.4f} then, {recall['now']:.4f} now: "
        f"{change}, p {round_p(test['p'])}; {won}"
    )


def _hops_table(hops: Sequence[Result]) -> ResultTable:
    rows = []
    for hop in hops:
        row = [
            str(hop["hop"] or "none"),
            str(hop["searches"]),
        ]
        for when in ("then", "now"):
            counts = hop[when]
            row += [
                str(counts["first"]),
                f"{counts['recall']:.4f}",
            ]
        rows.append(row)
    heads = ["hop", "searches", "first then", "recall so far", "first now", "recall so far"]
    return ResultTable("", heads, rows)


def _moved(moved: Sequence[Result], when: str) -> ResultTable:
    rows = []
    for row in sorted(
        moved,
        key=lambda row: (
            row[when]["hop"],
            row[when]["rank"],
        ),
    )[:SHOWN]:
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
    return ResultTable(
        "",
        [
            "query",
            "document",
            "search",
            "grade",
            "hop",
            "rank",
        ],
        rows,
        names=(0, 1, 2),
    )
