"""The child's side of an isolated run (programs/isolation/parent.py): a program, and stand-ins for
session and model.

The process has no corpus, index, key or judgement. The stand-ins send each call to the parent as
one JSON object and wait for the answer: parallel lines of work take turns. The engine without a
model works here, because it reads a call's inputs and not its prompt, on statistics of the parent's
corpus; the parent counts the call.
"""

import builtins
import json
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import dspy

from programs.compiled import NAME, read
from programs.custom import make_program_class
from tools import errors, plugins, session
from tools.cli_options import list_parameters
from tools.errors import UsageError
from tools.models import language_model, offline
from tools.models.adapter import ANSWERED, LastAnswer
from tools.models.language_model import LanguageModel
from tools.models.run_resources import RunResources
from tools.records import Query, Snippet, Submission, Trace, Usage
from tools.text import TermStatistics

# Of tools.session.Session: what goes to the parent, and what comes back, as it is.
CALLS: tuple[str, ...] = (
    "blame",
    "count_invented",
    "count_unusable",
    "join",
    "note",
    "note_leak",
    "rank",
    "read",
)
CALLS += ("read_whole", "search", "select", "shorten", "snapshot")


def dumps(message: Mapping[str, Any]) -> bytes:
    """Write a message as it is sent; sets and tuples go as lists."""
    return json.dumps(message, default=list).encode()


class _HostConnection:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.turn = threading.RLock()

    def ask(self, call: str, *arguments: Any, **named: Any) -> Any:
        question = dumps({"call": call, "arguments": arguments, "named": named})
        with self.turn:
            self.connection.send_bytes(question)
            answer = json.loads(self.connection.recv_bytes())
        if "error" in answer:
            raise _make_error(*answer["error"])
        return answer["value"]


def _make_error(name: str, words: str, number: int) -> Exception:
    kinds = (getattr(module, name, None) for module in (errors, dspy, builtins))
    kind = next(
        (one for one in kinds if isinstance(one, type) and issubclass(one, Exception)), Exception
    )
    made: Any = kind.__new__(kind, words)
    made.number = number
    return made  # type: ignore[no-any-return]


class _Session:
    def __init__(self, parent: _HostConnection, query_id: str) -> None:
        self.query_id = query_id
        self._ask = parent.ask
        self._turn = parent.turn

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in CALLS:
            raise AttributeError(f"the session of an isolated program has no {name!r}")
        return partial(self._ask, name)

    hop = property(fset=lambda self, hop: self._ask("hop", hop))

    @contextmanager
    def branch(self, hop: int | None = None, *, line: int | None = None) -> Iterator[None]:
        with self._turn:  # until its end, other threads wait
            self._ask("branch", hop, line)
            try:
                yield
            finally:
                self._ask("leave")

    def charge(self, usage: Usage) -> None:
        if usage != Usage(repairs=1):
            raise UsageError(
                "an isolated program sends nothing by itself: the model that it is given is asked "
                "outside"
            )
        self._ask("repaired")

    def search(self, text: str, k: int = 10, **how: Any) -> list[Snippet]:
        return [Snippet(*row) for row in self._ask("search", text, k, **how)]

    def judge(
        self, doc_ids: Sequence[str], chars: int | None = None, *, fit: Callable[[Any], Any] = list
    ) -> list[str]:
        shown: list[str] = fit([self._ask("read_whole", doc_id)[:chars] for doc_id in doc_ids])
        self._ask("judged", doc_ids, chars, shown)
        return shown

    def submit(self, ranking: Sequence[str], **how: Any) -> Submission:
        self._ask("submit", ranking, **how)
        session.set_current(None)
        scores = tuple(how.get("scores", ()))
        return Submission(
            tuple(ranking), Trace(self.query_id), how.get("answer", ""), scores=scores
        )


class _Toolbox(session.SharedOnDeepcopy):
    checkpoints: Path | None = None  # an agent that would keep some keeps none

    def __init__(self, parent: _HostConnection) -> None:
        self._parent = parent

    def open(self, query: Query, snapshot: Mapping[str, Any] | None = None) -> _Session:
        if snapshot:
            raise UsageError("an isolated program cannot take up a session where another one stood")
        self._parent.ask("open", query.text, query.objective)
        made = _Session(self._parent, query.query_id)
        session.set_current(made)  # type: ignore[arg-type]
        return made


class _Model(LanguageModel):
    """Stands in for the run's model: without a key, a budget or a ledger."""

    def __init__(self, parent: _HostConnection, about: Mapping[str, Any]) -> None:
        engine = offline.OfflineEngine(lambda: TermStatistics(**parent.ask("statistics")))
        bounds = {name: about[name] for name in ("window", "limit")}
        super().__init__(
            about["model"], RunResources(), free=True, engine=engine, **bounds, **about["settings"]
        )
        self.tools = about["tools"] or None
        self.caller.schemas = about["schemas"]
        self._ask = parent.ask
        self._write = engine.write if about["offline"] else lambda: None

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        outputs, text, finish = self._ask("ask", prompt, messages, kwargs, self._write())
        ANSWERED.set(LastAnswer(text, finish))
        return outputs

    def converse(self, messages: Sequence[Any], tools: Sequence[Any]) -> Any:
        return self._ask("converse", messages, tools)


class _GuestServer:
    """What the parent has done here: the public methods are its tasks."""

    def __init__(self, parent: _HostConnection) -> None:
        self._parent = parent
        self._model: _Model | None = None

    def describe(self, system: str) -> list[tuple[str, str, Any]]:
        """Return name, type and default of what the program's constructor may be given by name."""
        self._constructor = make_program_class(
            plugins.load_object("program", system, {}, plugins.PROGRAMS), system
        )
        return [
            (parameter.name, parameter.annotation.__name__, parameter.default)
            for parameter in list_parameters(self._constructor).values()
        ]

    def begin(self, program: str, parameters: Mapping[str, Any]) -> list[str]:
        self._system = self._constructor(_Toolbox(self._parent), **parameters)
        lacking: list[str] = getattr(self._system, "unanswerable", [])
        if Path(NAME).exists():
            compiled = read(Path())
            compiled.check(program, self._system, "--compiled")
            self._system = compiled.assemble(self._system)
        return lacking

    def answer(self, query: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
        sets = {
            name: None if query[name] is None else frozenset(query[name])
            for name in ("excluded", "candidates")
        }
        self._model = self._model or _Model(self._parent, model)
        with language_model.ConnectedModel("", {}, self._model).active():
            made = self._system(query=Query(**{**query, **sets}))
        if not isinstance(made, Submission):
            raise TypeError(f"the system handed in {type(made).__name__!r}, not a Submission")
        return {"ranking": made.ranking, "answer": made.answer, "scores": made.scores}


def main(descriptor: int, *, shielded: bool) -> None:
    """Do what the parent says until it is gone."""
    parent = _HostConnection(Connection(descriptor))
    parent.connection.send_bytes(dumps({"shielded": shielded}))
    host = _GuestServer(parent)
    with suppress(EOFError, OSError):
        while True:
            message = json.loads(parent.connection.recv_bytes())
            try:
                done = {"done": getattr(host, message["task"])(**message["given"])}
            except BaseException as error:  # noqa: BLE001  # the parent says what becomes of it
                said = {
                    "words": str(error),
                    "traceback": "".join(traceback.format_exception(error)),
                }
                about = {
                    "number": getattr(error, "number", -1),
                    "line": plugins.user_code_line(error),
                }
                done = {"failed": {"kind": type(error).__name__, **said, **about}}
            session.set_current(None)
            parent.connection.send_bytes(dumps({**done, "threads": threading.active_count() - 1}))
