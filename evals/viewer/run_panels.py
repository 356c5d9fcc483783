"""Sextant's own panels: a search for words, figures of behaviour, and ranks of lost documents.

The rest of the page is no panel: its answers are in data.py, its scripts in page/.
"""

from sextant.evals.running.replay import searches
from sextant.evals.scoring.behaviour import (
    COSTS,
    FIGURES,
    KINDS,
    observe_run,
    read_causes,
    summarize,
)
from sextant.evals.scoring.reach import PARTS, read_reach
from sextant.evals.viewer.loaded_run import Answer, LoadedRun
from sextant.evals.viewer.panel import Panel
from sextant.evals.viewer.text_search import find_words
from sextant.evals.web_page import PAGE
from sextant.tools.errors import UsageError


def search_words(loaded: LoadedRun, words: str) -> Answer:
    """Return the passages of a run that have all of `words`."""
    corpus = loaded.load_corpus()
    unread = [corpus] if isinstance(corpus, str) else []
    documents = {} if isinstance(corpus, str) else corpus
    return find_words(loaded.outcomes, words, documents, loaded.answers) | {"unread": unread}


def count_behaviour(loaded: LoadedRun, _: str) -> Answer:
    """Return figures of a run's searches, notes and hops, with the words for each figure."""
    summary = summarize(loaded.run, observe_run(loaded.run, loaded.query_ids))
    return summary | {
        "words": FIGURES,
        "kinds": KINDS,
        "measured": COSTS,
        "named": read_causes(loaded.run),
    }


def rank_lost(loaded: LoadedRun, name: str) -> Answer:
    """Return the rank of each relevant document that never surfaced under each search of a query.

    The searches are issued again, to `depth` documents; "steps" are their numbers.
    """
    if name not in loaded.named:
        raise UsageError(f"there is no query {name[:200]!r}")
    query_id = loaded.named[name]
    outcome = loaded.outcomes[query_id]
    relevant = loaded.judged.rows[query_id]["relevant"]
    units = [document["unit"] for document in relevant if not document["rank"]]
    issued = searches(outcome)
    numbers = {id(step): number for number, step in enumerate(outcome["trace"]["steps"])}
    return {
        "depth": loaded.search_ranks.depth,
        "steps": [numbers[id(step)] for step in issued],
        "ranks": loaded.search_ranks.rank(outcome, units) if units and issued else {},
    }


def list_reach(loaded: LoadedRun, name: str) -> Answer:
    """Return a query's documents that never surfaced, with their chances and best searches, as
    `sextant reach RUN` kept them.
    """
    kept = read_reach(loaded.run) or {"lost": []}
    lost = [row for row in kept["lost"] if row["query_id"] == loaded.named.get(name)]
    return {"lost": lost, "parts": PARTS}


# The server looks for words; an exported page cannot.
SEARCH = Panel("search", PAGE / "find.js", search_words, arguments=())
BEHAVIOUR = Panel("behaviour", PAGE / "behaviour.js", count_behaviour)
# Searches are issued again, which an exported page cannot.
RANKS = Panel("ranks", PAGE / "ranks.js", rank_lost, arguments=(), of_query=True)
REACH = Panel("reach", PAGE / "reach.js", list_reach, arguments=(), of_query=True)
