"""The panels of the page of a run or a query: sections with a script that draws them and a function
for their data.

To add a panel: a file page/NAME.js that calls `addPanel("NAME", section)`, or `addQueryPanel` for the
page of a query, and a row in PANELS with the function that gives its data. A panel of a user's own
is a `Panel` in a file or an installed package (docs/guide/extend.md).
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evals.run_folder import Outcome
from evals.running.replay import searches
from evals.scoring.behaviour import COSTS, FIGURES, KINDS, observe_run, read_causes, summarize
from evals.viewer.loaded_run import Answer, LoadedRun
from evals.viewer.text_search import find_words
from evals.web_page import PAGE
from tools import plugins
from tools.errors import UsageError


class Panel(NamedTuple):
    """A section of a run's page.

    `name` is part of addresses: small letters, digits and hyphens. `script` is JavaScript that
    calls `addPanel(name, section)`, or the path of a file of it. `data` returns, for a run and an
    argument that the script chose, a value that JSON can hold. An exported page has the answers to
    `arguments`, or to each query's id with `of_query`.
    """

    name: str
    script: str | Path
    data: Callable[[LoadedRun, str], Any]
    arguments: Sequence[str] = ("all",)
    of_query: bool = False

    def read_script(self) -> str:
        """Return its JavaScript, in a block of its own, so that its names clash with no others."""
        script = self.script
        if isinstance(script, Path):
            script = script.read_text(encoding="utf-8")
        return f"{{\n{script}}}\n"


def search_words(loaded: LoadedRun, words: str) -> Answer:
    """Return the passages of a run that have all of `words`."""
    corpus = loaded.load_corpus()
    if isinstance(corpus, str):
        hits = find_words(loaded.outcomes, words, {}, loaded.answers)
        return hits | {"unread": [corpus]}
    return find_words(loaded.outcomes, words, corpus, loaded.answers) | {"unread": []}


def count_behaviour(loaded: LoadedRun, _: str) -> Answer:
    """Return figures of a run's searches, notes and hops, with the words for each figure."""
    summary = summarize(loaded.run, observe_run(loaded.run, loaded.query_ids))
    return summary | {
        "words": FIGURES,
        "kinds": KINDS,
        "measured": COSTS,
        "named": read_causes(loaded.run),
    }


def _find_outcome(loaded: LoadedRun, name: str) -> Outcome:
    query_id = loaded.named.get(name)
    if query_id is None:
        raise UsageError(f"there is no query {name[:200]!r}")
    return loaded.outcomes[query_id]


def rank_lost(loaded: LoadedRun, name: str) -> Answer:
    """Return the rank of each relevant document that never surfaced under each search of a query.

    The searches are issued again, to `depth` documents; "steps" are their numbers.
    """
    outcome = _find_outcome(loaded, name)
    relevant = loaded.judged.rows[outcome["query_id"]]["relevant"]
    units = [document["unit"] for document in relevant if not document["rank"]]
    issued = searches(outcome)
    numbers = {id(step): number for number, step in enumerate(outcome["trace"]["steps"])}
    return {
        "depth": loaded.search_ranks.depth,
        "steps": [numbers[id(step)] for step in issued],
        "ranks": loaded.search_ranks.rank(outcome, units) if units and issued else {},
    }


# In the order in which they stand on the page.
PANELS = {
    panel.name: panel
    for panel in (
        # The server looks for words; an exported page cannot.
        Panel("search", PAGE / "find.js", search_words, arguments=()),
        Panel("behaviour", PAGE / "behaviour.js", count_behaviour),
        # Searches are issued again, which an exported page cannot.
        Panel("ranks", PAGE / "ranks.js", rank_lost, arguments=(), of_query=True),
    )
}


def load_panels(names: Sequence[str]) -> list[Panel]:
    """Return the panels of every page, then those of `names`: FILE.py:NAME, package.module:NAME or
    an entry point in the group sextant.panels.

    UsageError for a name that is no panel, or a panel whose name is taken.
    """
    panels = dict(PANELS)
    for name in names:
        panel = plugins.load_object("panel", name, {}, plugins.PANELS)
        if not isinstance(panel, Panel):
            raise UsageError(f"{name} is a {type(panel).__name__}; a panel is a Panel(...)")
        if not re.fullmatch("[a-z][a-z0-9-]*", panel.name):
            raise UsageError(f"panel {panel.name!r}: a name has small letters, digits and hyphens")
        if panel.name in {*panels, "q", "s", "query", "call"}:
            raise UsageError(f"there is a panel {panel.name!r} already; choose another name")
        panels[panel.name] = panel
    return list(panels.values())
