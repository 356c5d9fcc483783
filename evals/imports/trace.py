"""What a line of somebody's trajectories says, and the checks that it goes through before it is part of a run.

The checks raise ValueError with what is wrong; who reads the file adds its name and the line.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from evals.submission import check_documents
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


def usage(row: Any) -> Usage:
    """What model calls used; a price that is not said is not known."""
    if not isinstance(row, dict) or not {"calls", "input_tokens", "output_tokens"} <= row.keys():
        raise ValueError("'usage' needs calls, input_tokens and output_tokens")
    paid, listed = (None if row.get(key) is None else number_of(row, key) for key in ("paid_usd", "list_usd"))
    calls, repairs, tokens_in, tokens_out = (
        whole(row, key) for key in ("calls", "repairs", "input_tokens", "output_tokens")
    )
    return Usage(calls, repairs, tokens_in, tokens_out, paid, listed)


def value(row: Mapping[str, Any], key: str, kind: type, *, default: Any = None) -> Any:
    """What `row` has under `key`; ValueError where that is of another kind, or missing without a default."""
    found = row.get(key, default)
    if not isinstance(found, kind):
        names: dict[type, str] = {str: "text", dict: "an object", list: "a list", bool: "true or false"}
        raise ValueError(f"{key!r} is missing" if key not in row else f"{key!r} is not {names[kind]}")
    return found


def strings(row: Mapping[str, Any], key: str) -> list[str]:
    """A list of texts; none where there is no such key."""
    found: list[str] = value(row, key, list, default=[])
    if not all(isinstance(one, str) for one in found):
        raise ValueError(f"{key!r} is not a list of texts")
    return found


def whole(row: Mapping[str, Any], key: str) -> int:
    """A whole number of at least 0; 0 where there is no such key."""
    found = row.get(key, 0)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise ValueError(f"{key!r} is not a whole number of at least 0")
    return found


def counts(row: Mapping[str, Any], key: str) -> list[int]:
    """A list of whole numbers of at least 0; none where there is no such key."""
    return [whole({key: one}, key) for one in value(row, key, list, default=[])]


def number_of(row: Mapping[str, Any], key: str) -> float:
    """A finite number; 0 where there is no such key."""
    found = row.get(key, 0.0)
    if not isinstance(found, int | float) or isinstance(found, bool) or not math.isfinite(found):
        raise ValueError(f"{key!r} is not a number")
    return float(found)
