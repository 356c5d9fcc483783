"""The output of `compare`, `curves` and `replay`, laid out as lines and tables
(tools/platform/result_table.py prints them).
"""

import math
from collections.abc import Sequence

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
    figure_cells,
    render_terminal,
    tabulate,
)
from sextant.tools.records import JsonMapping, JsonObject

Result = JsonObject
# Flows of a system that are shown; --json has all.
FLOWS = 10
# Most budgets in a table, in addition to the end.
COLUMNS = 8
# Documents gained or lost in a replay that are printed.
SHOWN = 20
# Characters of a search that are printed.
TEXT = 70
# Heads, keys and forms of figures: the cost of a query, ...
COSTS = (
    ("calls", "calls_per_query", "{:,.1f}"),
    ("tokens in", "input_tokens_per_query", "{:,.1f}"),
    ("tokens out", "output_tokens_per_query", "{:,.1f}"),
    ("thinking", "reasoning_tokens_per_query", "{:,.1f}"),
    ("paid", "paid_usd_per_query", "${:.5f}"),
    ("list price", "list_usd_per_query", "${:.5f}"),
)
# ... a change of a fate or of a query, in which "z" writes no minus before a zero, ...
FATE_CHANGE = (
    ("baseline", "baseline", "{:.4f}"),
    ("run", "share", "{:.4f}"),
    ("change", "difference", "{:+z.4f}"),
)
QUERY_CHANGE = (
    ("baseline", "baseline", "{:.4f}"),
    ("run", "value", "{:.4f}"),
    ("change", "difference", "{:+z.4f}"),
)
# ... and what searches of a hop brought first, and so far.
HOPS = (("first", "first", "{}"), ("recall", "recall", "{:.4f}"))


def lay_out_comparison(result: Result, *, pairs: bool = True) -> list[TextBlock]:
    """Lay out a comparison: the task, a table of all systems if they are several, the systems, the
    findings, the cost of a query, notes.

    Without `pairs` the findings are those of the headline metric, else those of all metrics, and
    tables of lost documents and of the queries that moved most follow.
    """
    systems = result["systems"]
    labels = ["baseline", *(f"run {number}" for number in range(1, len(systems)))]
    names = [f"{system['name']} ({label})" for system, label in zip(systems, labels, strict=True)]
    blocks: list[TextBlock] = [describe_task(result)]
    if len(systems) > 2:
        overview = overview_table(result, system_names(result))
        blocks += [overview, *overview.notes, ""]
    changes = ["", *map(_describe_changes, result["differences"])]
    for name, system, changed in zip(names, systems, changes, strict=True):
        lines = [describe_system(system), *(f"repeat: {path}" for path in system["repeats"][1:])]
        blocks.append(f"{name}: {system['run']}")
        blocks += [f"    {line}" for line in [*lines, changed] if line]
    blocks += lay_out_findings(result, labels if pairs else names, every_metric=pairs)
    if pairs:
        blocks += _lay_out_pairs(result, labels)
    else:
        blocks.append("--pairs prints all metrics, lost documents and the queries that moved most")
    blocks += [_spread_table(result, names), _cost_table(result, names)]
    for note in [*result["notes"], *map(describe_gate, result.get("gates", ()))]:
        for name, system in zip(names, systems, strict=True):
            note = note.replace(f"{system['run']}:", f"{name}:")
        blocks.append(note)
    blocks += result["deviations"]
    return [block for block in blocks if not isinstance(block, ResultTable) or block.rows]


def _describe_changes(difference: JsonMapping) -> str:
    changes = []
    for key, (before, after) in difference["keys"].items():
        changes.append(f"{key} {abbreviate(after)} (was {abbreviate(before)})")
    return ", ".join(changes) or "the same configuration"


def _describe_forced(result: JsonMapping) -> str:
    return f", forced although {', '.join(result['forced'])} differ" if result["forced"] else ""


def lay_out_findings(
    result: JsonMapping, names: Sequence[str], *, every_metric: bool = False
) -> list[TextBlock]:
    """Return a table of how each system differs from the baseline in the headline metric, or in
    every metric, and its notes.

    `names` are those of the systems, the baseline's first.
    """
    name_of = dict(zip(result["runs"], names[1:], strict=True))
    rows = list(result["comparisons"])
    if not every_metric:
        rows = [row for row in rows if row["metric"] == result["metric"]]
    families = f"Holm: adjusted for {describe_families(rows)}"
    table = findings_table(
        f"against {names[0]}{_describe_forced(result)}",
        [make_finding(row, name_of[row["run"]]) for row in rows],
        "findings",
        [describe_task(result), families],
    )
    # The task is above.
    return [table, *table.notes[1:], ""]


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


def _lay_out_pairs(result: Result, labels: Sequence[str]) -> list[ResultTable]:
    """Return tables of lost documents and of the queries that moved most, with a row for each
    system and fate, flow or query.
    """
    label_of = dict(zip(result["runs"], labels[1:], strict=True))
    fates = []
    flows = []
    total = 0
    for losses in result["losses"]:
        words = {fate.value: text.format(k=losses["cutoff"]) for fate, text in FATE_LABELS.items()}
        system = {"system": label_of[losses["run"]]}
        for row in losses["changes"]:
            fate = {
                "fate": words[row["fate"]],
                **figure_cells(row, FATE_CHANGE),
                "interval": interval_cell(row),
                "queries": losses["queries"],
            }
            fates.append(system | fate)
        total += len(losses["flows"])
        for row in losses["flows"][:FLOWS]:
            flow = {
                # A mean over repeats is no whole number.
                "documents": figure_cell(row["documents"], "{:.4g}"),
                "baseline": words[row["from"]],
                "run": words[row["to"]],
                "queries": row["queries"],
                "examples": ", ".join(row["examples"]),
            }
            flows.append(system | flow)
    moved = []
    for row in result["moved"]:
        query = {
            "system": label_of[row["run"]],
            "query": row["query_id"],
        }
        moved.append(query | figure_cells(row, QUERY_CHANGE))
    cutoff = result["losses"][0]["cutoff"] if result["losses"] else ""
    titles = {
        "fates": f"R@{cutoff}: what became of relevant documents, mean shares over queries",
        "flows": f"documents that changed their fate, {len(flows)} of {total} flows",
        "moved": f"queries that moved most in {result['metric']}",
    }
    notes = [f"against the baseline{_describe_forced(result)}. {describe_task(result)}"]
    tables = zip(titles.items(), (fates, flows, moved), strict=True)
    return [tabulate(title, rows, stem=stem, notes=notes) for (stem, title), rows in tables]


def _spread_table(result: Result, names: Sequence[str]) -> ResultTable:
    metrics = [row["metric"] for row in result["comparisons"]]
    rows = []
    for name, system in zip(names, result["systems"], strict=True):
        if (spread := system["spread"]) is not None:
            row: JsonObject = {"system": name, "runs": len(system["repeats"])}
            for metric in metrics:
                row[metric] = figure_cell(spread.get(metric))
            rows.append(row)
    return tabulate("standard deviation of the mean between repeats", rows, stem="spread")


def _cost_table(result: Result, names: Sequence[str]) -> ResultTable:
    rows = []
    for name, row in zip(names, result["cost"], strict=True):
        failed = count_failed(row["failed"], row["queries"], row["repeats"], "run")
        cells = {
            "system": name,
            **figure_cells(row, COSTS, "unknown"),
            "failed queries": Cell(failed),
        }
        rows.append(cells)
    return tabulate("a query cost on average", rows, stem="cost", notes=[describe_task(result)])


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
    # Close to each other where they are small.
    columns = range(0, len(budgets), math.ceil(len(budgets) / COLUMNS))
    rows = []
    for row in curves["curves"]:
        cells: JsonObject = {curves["words"]: row["label"]}
        for column in columns:
            head = _amount(axis, budgets[column])
            mean = row["mean"][column]
            means = [other["mean"][column] for other in curves["curves"]]
            cells[head] = _starred(mean, is_best=mean == max(means))
        cells["at its end"] = _starred(row["end"], is_best=row["front"])
        cells["after"] = Cell(_amount(axis, row["cost"], ",.1f"), row["cost"])
        rows.append(cells)
    count = queries(curves["curves"][0]["queries"])
    return tabulate(f"{metric} by {curves['words']} a query, mean of {count}", rows)


def _starred(mean: float, *, is_best: bool) -> Cell:
    return figure_cell(mean, "{:.4f}*" if is_best else "{:.4f} ")


def _amount(axis: str, amount: float, form: str = ",.0f") -> str:
    return f"${amount:.6f}" if axis == "usd" else f"{amount:{form}}"


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
                row = {
                    "run": curve["run"],
                    "axis": axis,
                    "metric": result["metric"],
                    "budget": budget,
                }
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
        row = {"relevant documents that surfaced": words, "documents": count}
        surfaced.append(row | {"share": figure_cell(count / total)})
    hops = []
    for hop in result["hops"]:
        row = {"hop": Cell(str(hop["hop"] or "none")), "searches": hop["searches"]}
        for time in ("then", "now"):
            cells = figure_cells(hop[time], HOPS)
            row |= {f"{head} {time}": cell for head, cell in cells.items()}
        hops.append(row)
    recall = {"baseline_mean": result["recall"]["then"], "mean": result["recall"]["now"]}
    finding = make_finding({**test, **recall, "metric": "recall of all that surfaced"})
    blocks += [
        tabulate("", surfaced),
        findings_table("now against then", [finding], "recall", []),
        tabulate("", hops),
        *_list_moved(result),
        "the searches are the run's: with other results, its searcher would have gone on otherwise",
    ]
    return render_terminal(blocks)


def _list_moved(result: Result) -> list[ResultTable]:
    """Return the relevant documents that only now or only then were brought, with the first search
    that did; none if there are none.
    """
    moved = [row for row in result["relevant"] if bool(row["then"]) is not bool(row["now"])]
    rows = []
    for row in moved[:SHOWN]:
        at = row["now"] or row["then"]
        search = abbreviate(at["search"], TEXT)
        cells = {
            "": "gained" if row["now"] else "lost",
            "query": row["query_id"],
            "document": row["unit"],
            "grade": Cell(f"{row['grade']:g}"),
            **at,
            "search": " ".join(search.split()),
        }
        rows.append(cells)
    count = plural(len(moved), "relevant document")
    return [tabulate(f"{count} gained or lost, the first {len(rows)}", rows)] if rows else []
