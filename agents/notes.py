"""The multi-hop program as a graph that is kept on disk after every hop (OBLIQ-Bench, section 5;
programs/multihop.py).

Prompts, hops and ranking are multihop's. Killed in hop 3, a query goes on in hop 3 with its session
(trace, usage, limits): earlier hops are neither paid for nor searched again. Model calls of the
broken hop are in the run's ledger.

Checkpoints are in `checkpoints.sqlite` in the run's folder, one thread a query. The last checkpoint
of each query stays, for a finished query whose outcome was not written. So compiling, which asks a
query again with other prompts, has no folder.
"""

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END
from typing_extensions import TypedDict

from sextant.agents.graph import Agent, NodeContext, build_graph
from sextant.programs.multihop import MultiHop, MultiHopState
from sextant.tools.errors import DataError, RunIncomplete
from sextant.tools.platform import files
from sextant.tools.platform.cli import AT_END
from sextant.tools.platform.sqlite import close_when_unused
from sextant.tools.records import JsonObject, Query, Submission
from sextant.tools.session import SharedOnDeepcopy


class _NotesState(TypedDict, total=False):
    found: JsonObject  # sextant.programs.multihop.MultiHopState, as plain data
    hop: int  # hops that are done
    why: str  # why no further hop is made, once that is so
    ranking: list[str]  # there when the query is answered
    session: JsonObject  # a snapshot


class _NotesNodes(NodeContext):
    start = _NotesState(
        found=asdict(MultiHopState()),
        hop=0,
        why="",
        session={},
    )

    def ranking(self, state: _NotesState) -> list[str]:
        return state["ranking"]

    def hop(self, state: _NotesState) -> JsonObject:
        self.session.hop = number = state["hop"] + 1
        # A copy, because a node must not change the state that it was given.
        hops_state = MultiHopState(**deepcopy(state["found"]))
        of_hops = self.program.hops
        stop_reason = self.program.reader.hop(
            self.session, self.query, hops_state, self.program.per_hop, of_hops=of_hops
        )
        stop_reason = stop_reason or ("" if number < of_hops else "steps")
        return {
            "found": asdict(hops_state),
            "hop": number,
            "why": stop_reason,
            "session": self.session.snapshot(),
        }

    def rank(self, state: _NotesState) -> JsonObject:
        ranking = self.program.rerank_first(
            self.session, self.query, MultiHopState(**state["found"]).ranking()
        )
        return {"ranking": ranking, "session": self.session.snapshot()}


_NEXT: dict[Any, Any] = {
    _NotesNodes.hop: (lambda state: "rank" if state["why"] else "hop", ["rank", "hop"]),
    _NotesNodes.rank: END,
}
graph = build_graph(_NotesState, _NEXT, _NotesNodes)


class NotesAgent(Agent, MultiHop):
    """Multihop as a graph with a checkpoint after each hop: resumes in the hop in which it was killed."""

    graph: ClassVar = graph

    def __post_init__(self) -> None:
        super().__post_init__()
        self.checkpoints = _Checkpoints(self.toolbox.checkpoints)

    def forward(self, query: Query) -> Submission:
        """Return up to `hops` x `per_hop` documents, selected documents first."""
        with self.checkpoints.open() as saver:
            begun = saver.restore(query.query_id) if saver else None
            work = self.begin(query, begun and begun["session"])
            state = begun or work.start
            work.session.hop = state["hop"]
            if "ranking" not in state:
                config = {"configurable": {"thread_id": query.query_id}}
                # With "sync", a step is on disk before the next step.
                saver_options = {"config": config, "durability": "sync"} if saver else {}
                state = graph.builder.compile(saver).invoke(
                    None if begun else state,
                    context=work,
                    **saver_options,
                )
                if saver:
                    saver.keep_last(query.query_id)
        return work.submit(state)  # type: ignore[no-any-return]


class _Saver(SqliteSaver):
    def restore(self, thread: str) -> JsonObject | None:
        """Return the last state, if any. sqlite3.DatabaseError if it is damaged."""
        if (begun := self.get_tuple({"configurable": {"thread_id": thread}})) is None:
            return None
        checkpoint: Any = begun.checkpoint
        values = checkpoint.get("channel_values") if isinstance(checkpoint, dict) else None
        kinds = {
            "found": dict,
            "hop": int,
            "why": str,
            "session": dict,
        }
        # No step has taken the input of the graph yet.
        if isinstance(values, dict) and "__start__" in values:
            self.delete_thread(thread)
            return None
        if not isinstance(values, dict) or not all(
            isinstance(values.get(name), value_type) for name, value_type in kinds.items()
        ):
            raise sqlite3.DatabaseError("a checkpoint is damaged")
        # LangGraph would apply later writes, a hop ahead of the restored session.
        with self.cursor() as cursor:
            cursor.execute("DELETE FROM writes WHERE thread_id = ?", (thread,))
        return values

    def keep_last(self, thread: str) -> None:
        """Delete all checkpoints of a thread but the last, which has everything."""
        old = (
            "thread_id = ?1 AND checkpoint_id < (SELECT max(checkpoint_id) FROM checkpoints WHERE "
            "thread_id = ?1)"
        )
        with self.cursor() as cursor:
            for table in ("checkpoints", "writes"):
                cursor.execute(f"DELETE FROM {table} WHERE {old}", (thread,))


class _Checkpoints(SharedOnDeepcopy):
    """The checkpoints of a run.

    The file is opened at the first query, because the folder is made after the agent.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = folder and folder / "checkpoints.sqlite"
        self._saver: _Saver | None = None
        # The first queries of several threads may all open the file.
        self._lock = threading.Lock()

    @contextmanager
    def open(self) -> Iterator[_Saver | None]:
        """Yield the saver, which threads share: it has a lock of its own. None if there is no folder."""
        path = self._path
        try:
            with self._lock:
                if path and self._saver is None:
                    with suppress(OSError):  # SQLite says it better
                        files.open_file(path, "ab").close()
                    opened = sqlite3.connect(path, check_same_thread=False)
                    self._saver = _Saver(opened, serde=_Json())
                    AT_END.append(partial(close_when_unused, opened, self._saver.lock))
            yield self._saver
        except sqlite3.OperationalError as error:
            wrong = f"{path}: {error}; the hops of a query could not be kept"
            raise RunIncomplete(f"{wrong}; {files.remedy(error)}") from None
        except sqlite3.ProgrammingError:  # closed, as the run has ended without this query
            raise RunIncomplete(f"{path} is closed; the same command goes on") from None
        except (sqlite3.DatabaseError, json.JSONDecodeError) as error:
            raise DataError(
                f"{path}: {error}; remove the file, and the queries in it start again"
            ) from None


# Checkpoints as JSON: lone surrogates survive, and reading makes no objects, as LangGraph's own
# form does
class _Json:
    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        return "json", json.dumps(value, default=repr).encode()  # of an exception, its description

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return json.loads(data[1])
