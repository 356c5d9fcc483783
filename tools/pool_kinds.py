"""The kinds of candidate pools (`--pool KIND:SIZE`), as configurations of runs record them.

A configuration with the kind "oracle" and without `PUT_IN` is of an earlier version. Its pool was
made as a hidden pool is today.
"""

from collections.abc import Mapping
from typing import Any

UNION = "union"  # the first documents of some retrievers
ORACLE = "oracle"  # the same, and every relevant document that is not among them
HIDDEN = "hidden"  # every relevant document among neighbours, so that ranks do not show it
KINDS = (ORACLE, HIDDEN, UNION)
WITH_RELEVANT = (ORACLE, HIDDEN)  # pools that have every relevant document

PUT_IN = "put_in"  # the key that tells oracle pools from those of earlier versions
MISSING = "what is missing"  # its value: what is added to the first documents


def read_kind(config: Mapping[str, Any]) -> str:
    """Return the kind of pool of a run's configuration; "" for a run over the whole corpus."""
    pool: Mapping[str, Any] | None = config.get("pool")
    if not pool:
        return ""
    if pool.get("kind") == ORACLE and PUT_IN not in pool:
        return HIDDEN
    return str(pool.get("kind", ""))


def describe_signs(config: Mapping[str, Any]) -> str:
    """Say in a line what a program could read off the pools of a run; "" if their ranks tell nothing."""
    if read_kind(config) != ORACLE:
        return ""
    size = config["pool"]["size"]
    return (
        f"a program could tell what was put into an oracle pool: it ranks behind the {size} that "
        f"were found, at the end of a search; --pool {HIDDEN}:{size} hides that"
    )
