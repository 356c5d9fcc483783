"""The tables of `sextant reach`: chances of relevant documents and of random ones."""

from collections.abc import Mapping

from sextant.evals.run_descriptions import describe_task
from sextant.evals.scoring.reach import PARTS
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import TextBlock, figure_cell, render_terminal, tabulate
from sextant.tools.records import JsonMapping, JsonObject


def render_reach(result: JsonMapping) -> str:
    """Return the result of evals/running/reach.py as text."""
    return render_terminal(lay_out_reach(result))


def lay_out_reach(result: JsonMapping) -> list[TextBlock]:
    """Lay out the result of evals/running/reach.py as lines and tables."""
    pieces = result["pieces"]
    retriever = f"{plural(result['queries'], 'query', 'queries')} over {result['retriever']}"
    rows = [_row("the query itself", result["whole"])]
    for vocabulary in result["vocabularies"]:
        named = f"words of {vocabulary['name']}" if pieces == "words" else vocabulary["name"]
        for size, chance in vocabulary["sizes"].items():
            exact = "all" if chance["exact"] else "drawn"
            rows.append(_row(f"{size} {pieces} of {vocabulary['name']}, {exact}", chance))
        rows.append(_row(f"best search from {named}, by hindsight", vocabulary["best"]))
    if feedback := result.get("feedback"):
        rows.append(_row("query and documents shown (Rocchio)", feedback))
    curves = []
    for vocabulary in result["vocabularies"]:
        for kind in ("relevant", "random"):
            curve: JsonObject = {"documents": f"{kind}, from {vocabulary['name']}"}
            for tries, chance in vocabulary["curve"].items():
                curve[tries] = figure_cell(chance["10"][kind].get("mean"), "{:.3f}")
            curves.append(curve)
    blocks: list[TextBlock] = [
        describe_task(result),
        retriever,
        tabulate("chance of a search to bring a document among the first 10 or 100", rows),
        tabulate(f"chance of one of several searches for two {pieces}, @10", curves),
    ]
    if "never_surfaced" in result:
        blocks.append(
            tabulate("never surfaced, as shares of the run's relevant documents", _parts(result))
        )
    return blocks


def _row(name: str, chances: Mapping[str, JsonMapping]) -> JsonObject:
    row: JsonObject = {"search": name}
    for k in ("10", "100"):
        relevant = chances[k]["relevant"]
        row[f"@{k}"] = figure_cell(relevant.get("mean"))
        row[f"from @{k}"] = figure_cell(relevant.get("low"))
        row[f"to @{k}"] = figure_cell(relevant.get("high"))
        row[f"random @{k}"] = figure_cell(chances[k]["random"].get("mean"))
    return row


def _parts(result: JsonMapping) -> list[JsonObject]:
    return [
        {
            "": name.replace("_", " "),
            "share": f"{share:.4f}",
            "documents": sum(row["part"] == name for row in result["lost"]),
            "that is": PARTS[name],
        }
        for name, share in result["never_surfaced"].items()
    ]
