"""The output of `compare`, `curves` and `replay`, laid out as lines and tables
(tools/platform/result_table.py prints them).
"""

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from sextant.evals.reporting.findings import (
    describe_families,
    findings_table,
    interval_cell,
    make_finding,
)
from sextant.evals.run_descriptions import describe_system, describe_task
from sextant.evals.run_schemas import FATE_LABELS
from sextant.evals.scoring.budget_curves import AXES
from sextant.evals.scoring.gates import describe_gate
from sextant.tools.platform.number_format import abbreviate, count_failed, plural, queries
from sextant.tools.platform.result_table import (
    Cell,
    ResultTable,
    TextBlock,
    figure_cell,
    render_terminal,
    tabulate,
)
from sextant.tools.records import JsonMapping, JsonObject

Result = JsonObject
# Flows that are shown; --json has all.
FLOWS = 10
# Budgets in a table, in addition to the end.
COLUMNS = 8
# Documents gained, and documents lost, in a replay that are printed.
SHOWN = 10
# Characters of a search that are printed.
TEXT = 70


def lay_out_comparison(result: Result, *, pairs: bool = True) -> list[TextBlock]:
    """Lay out a comparison: the task, a table of all systems if they are several, the findings, the
    systems, the cost of a query, notes.

    Without `pairs` the findings are those of the headline metric in one table, else each run has a
    table of all metrics, of lost documents and of the queries that moved most.
    """
    labels = [
        "baseline",
        *(
            f"run {number}"
            for number in range(
                1,
                len(result["runs"]) + 1,
            )
        ),
    ]
    systems = list(zip(labels, result["systems"], strict=True))
    names = [f"{system['name']} ({label})" for label, system in systems]
    blocks: list[TextBlock] = [describe_task(result)]
    if len(labels) > 2:
        overview = overview_table(result, system_names(result))
        blocks += [overview, *overview.notes, ""]
    for name, (_, system) in zip(names, systems, strict=True):
        blocks += [f"{name}: {system['run']}", f"    {describe_system(system)}"]
        blocks += [f"    repeat: {path}" for path in system["repeats"][1:]]
    if pairs:
        changes = zip(
            labels[1:],
            result["runs"],
            result["differences"],
            strict=True,
        )
        for label, run, changed in changes:
            blocks += _lay_out_pair(result, label, run, changed["keys"])
    else:
        blocks += lay_out_findings(result, names)
        blocks.append("--pairs prints each comparison with the baseline")
    blocks += _spread(systems)
    blocks.append(_cost(result["cost"], names, describe_task(result)))
    for note in [*result["notes"], *map(describe_gate, result.get("gates", ()))]:
        for name, (_, system) in zip(names, systems, strict=True):
            note = note.replace(f"{system['run']}:", f"{name}:")
        blocks.append(note)
    return [*blocks, *result["deviations"]]


def lay_out_findings(result: JsonMapping, names: Sequence[str]) -> list[TextBlock]:
    """Return a table of how each system differs from the baseline in the headline metric, and its notes.

    `names` are those of the systems, the baseline's first.
    """
    name_of = dict(zip(result["runs"], names[1:], strict=True))
    rows = [row for row in result["comparisons"] if row["metric"] == result["metric"]]
    findings = [make_finding(row, name_of[row["run"]]) for row in rows]
    table = findings_table(
        f"against {names[0]}",
        findings,
        "findings",
        [f"Holm: adjusted for {describe_families(rows)}"],
    )
    return [table, *table.notes]


def overview_table(result: JsonMapping, names: Sequence[str]) -> ResultTable:
    """Return the systems of a comparison by its metrics; the best is bold and has a star."""
    ranked = result["by_metric"]
    rows = []
    for place, name in enumerate(names):
        cells: JsonObject = {"system": name}
        for row in ranked:
            mean = row["means"][place]
            is_best = mean is not None and mean == row["means"][row["leader"]]
            mark = "*" if is_best else "=" if row["differs"][place] is False else " "
            cell = cells[row["metric"]] = figure_cell(mean, f"{{:.4f}} {mark}")
            cell.bold = is_best
        rows.append(cells)
    note = (
        "* the best by a metric; = does not differ from it (paired sign-flip permutation test of "
        f"each system against the best, p >= .05 after Holm for {describe_families(ranked)})"
    )
    return tabulate("", rows, notes=[note], stem="overview")


def system_names(result: JsonMapping) -> list[str]:
    """Return the name of each system of a comparison (evals/scoring/system_names.py)."""
    return [system["name"] for system in result["systems"]]


def _lay_out_pair(
    result: Result, label: str, run: str, changed: dict[str, list[Any]]
) -> list[TextBlock]:
    forced = f", forced although {', '.join(result['forced'])} differ" if result["forced"] else ""
    context = f"{describe_task(result)}{forced}"
    changes = []
    for key, (before, after) in changed.items():
        changes.append(f"{key} {abbreviate(after)} (was {abbreviate(before)})")
    stem = label.replace(" ", "-")
    families = f"Holm: adjusted for {describe_families(result['comparisons'])}"
    table = findings_table(
        f"{label} against baseline{forced}: {', '.join(changes) or 'the same configuration'}",
        [make_finding(row) for row in result["comparisons"] if row["run"] == run],
        stem,
        [context, families],
    )
    blocks: list[TextBlock] = ["", table]
    if run == result["runs"][-1]:
        blocks += [*table.notes[1:], ""]
    note = f"{label} against baseline. {context}"
    for losses in result["losses"]:
        if losses["run"] == run:
            blocks += _losses(losses, note, stem)
    moved = []
    for row in result["moved"]:
        if row["run"] == run:
            moved.append({"query": row["query_id"]} | _change(row, "value"))
    if moved:
        blocks.append(
            tabulate(
                f"queries that moved most in {result['metric']}",
                moved,
                stem=f"{stem}-moved",
                notes=[note],
            )
        )
    return blocks


def _change(row: Result, after: str) -> dict[str, Cell]:
    return {
        "baseline": figure_cell(row["baseline"]),
        "run": figure_cell(row[after]),
        # "z" writes no minus before a zero.
        "change": figure_cell(row["difference"], "{:+z.4f}"),
    }


def _losses(losses: Result, note: str, stem: str) -> list[TextBlock]:
    cutoff = losses["cutoff"]
    words = {fate.value: text.format(k=cutoff) for fate, text in FATE_LABELS.items()}
    fates = []
    for row in losses["changes"]:
        fate = {
            "fate": words[row["fate"]],
            **_change(row, "share"),
            "interval": interval_cell(row),
        }
        fates.append(fate)
    title = f"R@{cutoff}: what became of relevant documents, mean shares of "
    title += queries(losses["queries"])
    blocks: list[TextBlock] = [
        tabulate(
            title,
            fates,
            stem=f"{stem}-fates",
            notes=[note],
        )
    ]
    flows = []
    for row in losses["flows"][:FLOWS]:
        # A mean over repeats is no whole number.
        form = "{}" if isinstance(row["documents"], int) else "{:.1f}"
        flows.append(
            {
                "documents": figure_cell(row["documents"], form),
                "baseline": words[row["from"]],
                "run": words[row["to"]],
                "queries": row["queries"],
                "examples": ", ".join(row["examples"]),
            }
        )
    if flows:
        title = f"documents that changed their fate, {len(flows)} of {len(losses['flows'])} flows"
        blocks.append(
            tabulate(
                title,
                flows,
                stem=f"{stem}-flows",
                notes=[note],
            )
        )
    return blocks


def _spread(systems: Iterable[tuple[str, Result]]) -> list[TextBlock]:
    repeated = {}
    for label, system in systems:
        if system["spread"] is not None:
            repeated[f"{label} ({plural(len(system['repeats']), 'run')})"] = system["spread"]
    rows = []
    for metric in dict.fromkeys(chain.from_iterable(repeated.values())):
        spreads = {name: figure_cell(spread.get(metric)) for name, spread in repeated.items()}
        rows.append({"metric": metric} | spreads)
    return (
        [tabulate("standard deviation of the mean between repeats", rows, stem="spread")]
        if rows
        else []
    )


def _cost(rows: list[Result], names: list[str], task: str) -> ResultTable:
    cells = []
    for name, row in zip(names, rows, strict=True):
        failed = count_failed(
            row["failed"],
            row["queries"],
            row["repeats"],
            "run",
        )
        cells.append(
            {
                "system": name,
                "calls": figure_cell(row["calls_per_query"], "{:,.1f}", "unknown"),
                "tokens in": figure_cell(row["input_tokens_per_query"], "{:,.1f}", "unknown"),
                "tokens out": figure_cell(row["output_tokens_per_query"], "{:,.1f}", "unknown"),
                "thinking": figure_cell(row["reasoning_tokens_per_query"] or None, "{:,.1f}", ""),
                "paid": figure_cell(row["paid_usd_per_query"], "${:.5f}", "unknown"),
                "list price": figure_cell(row["list_usd_per_query"], "${:.5f}", "unknown"),
                "failed queries": Cell(failed),
            }
        )
    return tabulate("a query cost on average", cells, stem="cost", notes=[task])


def lay_out_curves(result: Result) -> list[TextBlock]:
    """Lay out curves for equal budgets, with the task above and missing curves below."""
    blocks: list[TextBlock] = [describe_task(result)]
    for run in result["runs"]:
        blocks.append(f"{run['label']}: {run['run']}, {describe_system(run)}")
    for axis, curves in result["axes"].items():
        blocks.append(_curves_table(result["metric"], axis, curves))
    blocks.append("a query that has ended keeps its value; * no run does better with so much")
    for refusal in result["refused"]:
        axis = AXES[refusal["axis"]]
        blocks.append(f"{refusal['run']} has no curve by {axis}: {refusal['why']}")
    blocks += [f"no run used any {AXES[axis]}" for axis in result["unused"]]
    return blocks


def _curves_table(metric: str, axis: str, curves: Result) -> ResultTable:
    budgets = curves["budgets"]
    columns = _choose_columns(budgets)
    rows = []
    for row in curves["curves"]:
        cells = [row["label"]]
        for column in columns:
            mean = row["mean"][column]
            affordable = [p["value"] for p in curves["front"] if p["budget"] <= budgets[column]]
            cells.append(_starred(mean, is_best=mean >= max(affordable)))
        cells.append(_starred(row["end"], is_best=row["front"]))
        cells.append(_amount(axis, row["cost"], mean=True))
        rows.append(cells)
    heads = [curves["words"], *(_amount(axis, budgets[column]) for column in columns)]
    count = queries(curves["curves"][0]["queries"])
    title = f"{metric} by {curves['words']} a query, mean of {count}"
    return ResultTable(title, [*heads, "at its end", "after"], rows)


def _starred(mean: float, *, is_best: bool) -> Cell:
    return Cell("{:.4f}*" if is_best else "{:.4f} ", mean, figures=[mean])


def _choose_columns(budgets: list[float]) -> list[int]:
    unit = next(budget for budget in budgets if budget)
    columns = []
    for column, budget in enumerate(budgets):
        if budget and math.log2(round(budget / unit)).is_integer():
            columns.append(column)
    while len(columns) > COLUMNS:
        columns = columns[::2]
    return ([] if budgets[0] else [0]) + columns


def _amount(axis: str, amount: float, *, mean: bool = False) -> str:
    if axis == "usd":
        return f"${amount:.6f}".rstrip("0").rstrip(".") if amount < 0.1 else f"${amount:,.2f}"
    return f"{amount:,.1f}" if mean and amount < 1000 else f"{amount:,.0f}"


def curves_csv(result: Result) -> str:
    """Return curves for equal budgets as CSV: a line for each run, axis and budget."""
    return tabulate("", list_curve_rows(result)).to_csv()


def list_curve_rows(result: JsonMapping) -> list[JsonObject]:
    """Return a row for each run, axis and budget."""
    rows = []
    for axis, curves in result["axes"].items():
        best = {point["budget"]: point["value"] for point in curves["front"]}
        for curve in curves["curves"]:
            for place, budget in enumerate(curves["budgets"]):
                row = {"run": curve["run"], "axis": axis, "metric": result["metric"]}
                row["budget"] = budget
                for key in ("mean", "low", "high", "spent", "ended"):
                    row[key] = curve[key][place]
                row["queries"] = curve["queries"]
                row["front"] = int(best.get(budget) == row["mean"])
                rows.append(row)
    return rows


def render_replay(result: Result) -> str:
    """Return a replay as text: documents that surfaced then and now, and those that moved."""
    replayed = result["replayed"]
    retriever = replayed["retriever"] or "the retriever that each had"
    depth = replayed["depth"] or "that each had"
    blocks: list[TextBlock] = [
        describe_task(result),
        describe_system(result),
        f"{plural(result['searches'], 'search', 'searches')}, {replayed['distinct']} distinct ones "
        f"issued again on {retriever}, to the depth {depth}; {result['same']} bring the same",
    ]
    test = result["recall"]["paired"]
    if test is None:
        blocks.append("none of the queries has a relevant document, so there is nothing to surface")
        return render_terminal(blocks)
    total = sum(result["documents"].values())
    surfaced = []
    for key, count in result["documents"].items():
        words = key.replace("_", " ").replace("both", "then and now")
        surfaced.append(
            {
                "relevant documents that surfaced": words,
                "documents": count,
                "share": figure_cell(count / total),
            }
        )
    hops = []
    for hop in result["hops"]:
        hops.append(
            {
                "hop": Cell(str(hop["hop"] or "none")),
                "searches": hop["searches"],
                "first then": hop["then"]["first"],
                "recall then": figure_cell(hop["then"]["recall"]),
                "first now": hop["now"]["first"],
                "recall now": figure_cell(hop["now"]["recall"]),
            }
        )
    finding = make_finding(
        {
            **test,
            "metric": "recall of all that surfaced",
            "baseline_mean": result["recall"]["then"],
            "mean": result["recall"]["now"],
        }
    )
    blocks += [
        tabulate("", surfaced),
        findings_table("now against then", [finding], "recall", []),
        tabulate("", hops),
    ]
    for word, when, before in (("gained", "now", "then"), ("lost", "then", "now")):
        moved = [row for row in result["relevant"] if row[when] and not row[before]]
        moved.sort(key=lambda row: (row[when]["hop"], row[when]["rank"]))
        if moved:
            title = f"{word}: {plural(len(moved), 'relevant document')}, the first {SHOWN} at most"
            blocks.append(
                tabulate(
                    title,
                    [_gain(row, row[when]) for row in moved[:SHOWN]],
                )
            )
    blocks.append(
        "the searches are the run's: with other results, its searcher would have gone on otherwise"
    )
    return render_terminal(blocks)


def _gain(row: Result, at: Result) -> Result:
    """Return a relevant document that only one of both brought, and the search that did."""
    return {
        "query": row["query_id"],
        "document": row["unit"],
        "search": " ".join(abbreviate(at["search"], TEXT).split()),
        "grade": figure_cell(row["grade"], "{:g}"),
        "hop": at["hop"],
        "rank": at["rank"],
    }
