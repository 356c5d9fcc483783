"""The harness card of a run: what an agent was given in addition to its model and its prompts.

Stop Comparing LLM Agents Without Disclosing the Harness (arXiv 2605.23950) asks for one. It is in
config.json under "provenance", as parameters and limits identify a run already; reports, the page
and `sextant export --to card` show it, and comparisons say where two differ.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from sextant.evals import run_folder
from sextant.programs.search_tools import describe_tool
from sextant.tools.records import JsonMapping, JsonObject, Query
from sextant.tools.session import Limits

_NO_TOOLS = "none: the program itself searches and reads"


def make_card(
    program: Any,
    queries: Iterable[Query],
) -> JsonObject:
    """Return the card of a program: its tools, its memory, its limits, its end, and what is kept from it."""
    toolbox = getattr(program, "toolbox", None)  # an ensemble has one for each member
    limits = toolbox.limits if toolbox else Limits()
    withheld = ["judgements"]
    asked = list(queries)
    if excluding := sum(bool(query.excluded) for query in asked):
        withheld.append(f"excluded documents of {excluding:,} queries")
    if pooled := sum(query.candidates is not None for query in asked):
        withheld.append(f"documents outside of the pools of {pooled:,} queries")
    of_limits = {
        name: getattr(limits, name)
        for name in Limits.__dataclass_fields__
        if name not in ("snippet_chars", "depth")  # which have rows of their own
    }
    return {
        "tools": {
            function.__name__: describe_tool(function)[0]
            for function in getattr(program, "functions", ())
        },
        "documents a search": getattr(program, "per_search", None),
        "characters of a snippet": limits.snippet_chars,
        "depth of a ranking": limits.depth,
        "memory": getattr(program, "memory", ""),
        "window in tokens": getattr(program, "window", 0) or "the model's",
        "limits": {name: most for name, most in of_limits.items() if most is not None},
        "ends": getattr(program, "ends", "by itself, or at a limit"),
        "withheld": withheld,
    }


def read_card(config: JsonMapping) -> JsonObject:
    """Return the card of a run; {} of one that was made before there were cards."""
    return dict(config[run_folder.PROVENANCE].get("harness") or {})


def list_differences(first: JsonMapping, second: JsonMapping) -> dict[str, list[Any]]:
    """Return the parts in which the cards of two runs differ, each with both values."""
    before, after = read_card(first), read_card(second)
    return {
        name: [before[name], after[name]]
        for name in before
        if name in after and before[name] != after[name]
    }


def describe_differences(cards: Mapping[str, Collection[str]]) -> list[str]:
    """Return a line for each run whose card differs from the baseline's in some parts."""
    lines = []
    for run, parts in cards.items():
        line = f"{run}: its harness card differs from the baseline's in {', '.join(parts)}"
        if len(parts) > 1:
            line += f"; a difference in score cannot be laid to one of these {len(parts)}"
        lines += [line] if parts else []
    return lines


def name_tools_and_memory(config: JsonMapping) -> dict[str, str]:
    """Return the "tools" and the "memory" of an agent by their names; "" if there are none, or no card."""
    card = read_card(config)
    return {"tools": ", ".join(card.get("tools", ())), "memory": card.get("memory", "")}


def to_markdown(card: JsonMapping) -> str:
    """Return a card as a table in Markdown, a row a part."""
    lines = ["| the agent had | |", "|---|---|"]
    for name, value in card.items():
        shown = value
        if isinstance(value, dict):
            rows = [f"`{key}`: {what}" if what != "" else f"`{key}`" for key, what in value.items()]
            shown = "<br>".join(rows) or (_NO_TOOLS if name == "tools" else "none")
        elif isinstance(value, list):
            shown = "<br>".join(value)
        lines.append(f"| {name} | {str(shown).replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def write(source: Any, folder: Path) -> list[str]:
    """Harness card, as Markdown: the tools, the memory and the limits that the agent of a run had."""
    card = read_card(source.run.config)
    (folder / "card.md").write_text(to_markdown(card), encoding="utf-8")
    return [] if card else ["the run was made before runs had a card, so it is empty"]
