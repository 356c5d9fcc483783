"""What a line of somebody's trajectories says, and the checks that it goes through before it is part of a run.

The checks raise ValueError with what is wrong; who reads the file adds its name and the line.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from evals.running.submission import check_documents
from tools.records import Step, Tool, Usage

if TYPE_CHECKING:
    from environments.base import Environment
    from tools.records import Query

TOOLS = get_args(Tool)


@dataclass(frozen=True)
class Trajectory:
    """What one line says of one query."""

    query_id: str
    steps: list[Step]
    notes: list[str]
    usage: Usage | None = None  # None: it does not say
    seconds: float | None = None
    answer: str = ""
    error: str | None = None
    ranking: list[str] | None = None
    scores: list[float] | None = None
    counts: Mapping[str, Any] | None = None  # what else our own traces count: invented_ids, unusable, followed
    mapped: bool = True  # False: what its searches found cannot be told, so its steps are left out


def checked(query: "Query", environment: "Environment", **fields: Any) -> Step:
    """A step whose documents its query can have, with what can be filled in. ValueError for any other.

    A document that was read or judged was shown whole where nothing else is said; how long documents are, the corpus
    says.
    """
    tool, doc_ids, shown, lengths = (fields[key] for key in ("tool", "doc_ids", "shown", "lengths"))
    if tool not in TOOLS:
        raise ValueError(f"there is no tool {tool!r}; known: {', '.join(TOOLS)}")
    check_documents(doc_ids, query, environment.documents)
    if (shown or tool in ("read", "judge")) and not lengths:
        lengths = [len(environment.documents[doc_id].text) for doc_id in doc_ids]
    if tool in ("read", "judge") and not shown:
        shown = lengths
    if shown and not len(shown) == len(lengths) == len(doc_ids):
        raise ValueError(f"'shown' and 'lengths' need a number for each of its {len(doc_ids)} documents")
    if any(part > whole for part, whole in zip(shown, lengths, strict=False)):
        raise ValueError("'shown' is more of a document than there is")
    made = {"doc_ids": tuple(doc_ids), "shown": tuple(shown), "lengths": tuple(lengths if shown else ())}
    return Step(**fields | made)


def known(query_id: str, queries: Mapping[str, "Query"], environment: "Environment") -> "Query":
    """The query of that id."""
    if query_id not in queries:
        raise ValueError(f"query {query_id!r} is not in the {environment.split} split of {environment.task}")
    return queries[query_id]


def usage(row: Mapping[str, Any]) -> Usage:
    """What model calls used; a price that is not said is not known."""
    numbers = (row["calls"], row.get("repairs", 0), row["input_tokens"], row["output_tokens"])
    return Usage(*numbers, row.get("paid_usd"), row.get("list_usd"))
