"""`--isolated`: a program in a process of its own, which has its query and neither judgements nor the data's paths.

Corpus, index, session, model, key, cache and budget stay here. A child asks for what its session and its model do, in
JSON: nothing of a child is unpickled. It is a fresh interpreter and no fork, in whose memory judgements would still
lie, and it alone imports the program's module. What is shielded besides, and what is not, is in
docs/decisions/isolation.md.

A child that ends by itself is a fault of the program, as an exception is. One that hangs is ended when the time of its
query is up, and the query stays pending.
"""

import inspect
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import Context, copy_context
from dataclasses import asdict, replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import dspy

from programs.compiled import NAME, Compiled, fuse, write
from programs.isolation.child import CALLS, dumps
from programs.isolation.shield import around
from tools import errors, session
from tools.disk import InputFile
from tools.errors import RunIncomplete, SextantError, UnknownName, UsageError
from tools.models.adapter import ANSWERED, Answered
from tools.models.call import DEADLINE
from tools.models.offline import publish
from tools.records import Query, Submission, Trace, Usage, trace_json, usage_json
from tools.retrievers import Expression, Expressions
from tools.session import Session, Toolbox

_ROOT = Path(__file__).parents[2]
_CODE = ("agents", "programs", "tools")
_SYSTEM = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/urandom")
_START = """
import json, sys
root, descriptor, files = sys.argv[1:]
sys.path.insert(0, root)
from programs.isolation.shield import shield
shielded = shield(**json.loads(files))
from programs.isolation.child import main
main(int(descriptor), shielded=shielded)
"""
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")  # of ours: no key
_TYPES = {one.__name__: one for one in (int, float, bool, str, Expression, Expressions, InputFile)}
# What a call of the child's may set. Whatever else DSPy and LiteLLM take could lead to another server, with our key.
_SETTINGS = frozenset({"temperature", "max_tokens", "n", "rollout_id", "stop", "top_p"})
_LARGEST = 256 << 20  # bytes of a message
_LATE = 3.0  # seconds after a query's time is up, in which evals.running.runner gives it up
_NUMBERS = itertools.count(1)  # of branches
_SHIELDED, _BARE = "without files or TCP", "files not shielded: this system has no Landlock"


class ProcessEnded(Exception):
    """A child has ended, or does not keep to the protocol."""


class Isolated:
    """A program in a process of its own, in place of the program's constructor."""

    def __init__(
        self, name: str, systems: Mapping[str, str], hidden: Sequence[Path], compiled: Compiled | None = None
    ) -> None:
        """`name` is in the table `systems`. What is in `hidden` cannot be read, where the system can see to that."""
        if name not in systems:
            raise UnknownName("program", name, systems)
        self._name, self._reference, self._compiled = name, systems[name], compiled
        self._files = _files([*hidden, Path(".env")])
        first = self._child()
        self._idle = deque([first])
        self.told = f"in a process of its own, {_SHIELDED if first.shielded else _BARE}"
        named = inspect.Parameter.KEYWORD_ONLY
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(one, named, default=value, annotation=_TYPES[kind]) for one, kind, value in first.takes]
        )

    def __call__(self, toolbox: Toolbox, **given: Any) -> Callable[..., Submission]:
        """A system as evals.running.runner runs it; UsageError for parameters that the program refuses."""
        with self._begun(given) as child:
            lacking = child.unanswerable

        def answer(*, query: Query) -> Submission:
            with self._begun(given) as child:
                return _Desk(toolbox, query).submission(child)

        answer.unanswerable = lacking  # type: ignore[attr-defined]  # as programs.base.unanswerable reads it
        return answer

    def _child(self) -> "_Child":
        try:
            return _Child(self._reference, self._files, self._compiled)
        except ProcessEnded as error:
            raise RunIncomplete(f"a process for the program could not be started: {error}") from None

    @contextmanager
    def _begun(self, given: Mapping[str, Any]) -> "Iterator[_Child]":
        """A child that has nothing else to do, with the program made."""
        try:
            child = self._idle.pop()
        except IndexError:
            child = self._child()
        try:
            child.begin(self._name, given)
            yield child
        finally:
            if child in _CHILDREN:  # it has not ended
                self._idle.append(child)


def _files(hidden: Sequence[Path]) -> dict[str, list[str]]:
    """What a child may read: Python, its libraries, our code, and what $PYTHONPATH names; not what is hidden in it."""
    packages = [path for path in sys.path if path.endswith("-packages")]
    named = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    code = [_ROOT / name for name in _CODE]
    out_of_reach = [place.resolve() for place in hidden]
    out_of_reach += [entry for entry in _ROOT.iterdir() if (entry / "__init__.py").exists() and entry not in code]
    wanted = [sys.prefix, sys.base_prefix, *packages, *named, *map(str, code), *_SYSTEM]
    found = [around(place, out_of_reach) for place in sorted({Path(path).resolve() for path in wanted})]
    return {
        "readable": [path for readable, _ in found for path in readable],
        "listable": [str(_ROOT), *(path for _, listable in found for path in listable)],
    }


_CHILDREN: set["_Child"] = set()


@contextmanager
def reaping() -> Iterator[None]:
    """End every child with the block."""
    try:
        yield
    finally:
        for child in list(_CHILDREN):
            child.end()


class _Child:
    """One process, which one thread at a time has do something."""

    def __init__(self, reference: str, files: Mapping[str, list[str]], compiled: Compiled | None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="sextant-isolated-"))
        self._connection, theirs = Pipe()
        self._given: Any = None
        if compiled:
            write(self._folder / NAME, compiled)
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment |= dict.fromkeys(("HOME", "TMPDIR", "DSPY_CACHEDIR", "NUMBA_CACHE_DIR"), str(self._folder))
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        rules = json.dumps({**files, "own": str(self._folder)})
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, str(_ROOT), str(theirs.fileno()), rules],
                cwd=self._folder,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # ours is for the run's result
                start_new_session=True,  # a Ctrl-C is for us: what is in flight is waited for
            )
        _CHILDREN.add(self)
        self.shielded: bool = self._received()["shielded"]
        self.takes: list[tuple[str, str, Any]] = self.do("describe", system=reference)

    def begin(self, name: str, given: Mapping[str, Any]) -> None:
        """Make the program with these parameters, unless that is done. It gets copies of the files that they name."""
        if given == self._given:
            return
        copied = {
            key: shutil.copy(value, self._folder) if isinstance(value, InputFile) and value else value
            for key, value in given.items()
        }
        self.unanswerable: list[str] = self.do("begin", program=name, given=copied)
        self._given = given

    def do(self, task: str, desk: "_Desk | None" = None, **given: Any) -> Any:
        """Have the child do a task, and return what comes of it; what it asks meanwhile is for the `desk`."""
        self._send({"task": task, "given": given})
        while (message := self._received()).keys() == {"call", "line", "arguments", "named"} and desk:
            self._send(desk.answer(message))
        if message.get("threads"):  # which would go on in the next query
            self.end()
        if "failed" in message:
            raise _failure(message["failed"], desk.raised if desk else [])
        return message["done"]

    def _send(self, message: Mapping[str, Any]) -> None:
        with suppress(OSError):  # it has ended: who reads meets that
            self._connection.send_bytes(dumps(message))

    def _received(self) -> dict[str, Any]:
        left = DEADLINE.get() + _LATE - time.monotonic()
        try:
            if not self._connection.poll(None if left == math.inf else max(0.0, left)):
                self.end()
                raise RunIncomplete("the program has not come to an end in the time of its query")
            return dict(json.loads(self._connection.recv_bytes(_LARGEST)))
        except EOFError:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            why = f"ended by itself with exit code {self._process.returncode}"
        except (OSError, TypeError, ValueError, RecursionError) as error:
            why = f"was ended: {error}"
        self.end()
        raise ProcessEnded(f"the program's process {why}")

    def end(self) -> None:
        """End it, and what it has started."""
        _CHILDREN.discard(self)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _failure(failed: dict[str, Any], raised: list[Exception]) -> Exception:
    """The exception that ended a program: our own, where it came from here; else one of its name, with its words."""
    number: int = failed["number"]
    if 0 <= number < len(raised):
        return raised[number]
    kind: Any = getattr(errors, failed["kind"], None)
    if not (isinstance(kind, type) and issubclass(kind, SextantError)):
        kind = type(failed["kind"], (Exception,), {"__module__": "builtins"})
    made: Exception = kind.__new__(kind, failed["words"])
    made.add_note(failed["traceback"])
    return made


class _Desk:
    """Where one query's child has its questions answered, with the session and the model of the calling context."""

    def __init__(self, toolbox: "Toolbox", query: Query) -> None:
        self.raised: list[Exception] = []
        self._toolbox = toolbox
        self._query = query
        self._branches: dict[int, tuple[Context, AbstractContextManager[None]]] = {}
        self._ended: list[Submission] = []

    def submission(self, child: _Child) -> Submission:
        """Return what the program hands in for the query. Its trace and usage are those of the sessions here."""
        model = dspy.settings.lm
        settings = {name: value for name, value in model.kwargs.items() if name in _SETTINGS and value is not None}
        about = {"model": model.model, "window": model.window, "tools": bool(model.tools), "offline": model.caller.free}
        made = child.do("answer", self, query=asdict(self._query), model={**about, "settings": settings})
        done = fuse(self._ended) if self._ended else Submission((), Trace(self._query.query_id))
        return replace(done, ranking=tuple(made["ranking"]), answer=made["answer"], scores=tuple(made["scores"]))

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one question of the child's, made in the branch that asks."""
        context, _ = self._branches.get(question["line"], (None, None))
        try:
            return {"value": context.run(self._answer, **question) if context else self._answer(**question)}
        except Exception as error:  # noqa: BLE001  # the program meets it, or ends with it
            self.raised.append(error)
            return {"error": [type(error).__name__, str(error), len(self.raised) - 1]}

    def _answer(self, call: str, line: int, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        here = session.current()
        if call in CALLS:
            return getattr(here, call)(*arguments, **named)
        if call in _ANSWERS:
            return _ANSWERS[call](here, *arguments)
        if call in ("open", "submit", "branch", "leave"):
            return getattr(self, f"_{call}")(here, *arguments, **named)
        raise ValueError(f"there is no {call!r}")

    def _open(self, here: Any, text: str, objective: str) -> None:
        # Exclusions and pool are the query's own, whatever the program makes of it.
        self._toolbox.open(replace(self._query, text=text, objective=objective))

    def _submit(self, here: Session, ranking: list[str], **how: Any) -> tuple[Any, Any]:
        made = here.submit(ranking, **how)
        self._ended.append(made)
        return trace_json(made.trace), usage_json(made.usage)

    def _branch(self, here: Session, hop: int | None, line: int | None) -> int:
        number, context, branch = next(_NUMBERS), copy_context(), here.branch(hop, line=line)
        context.run(branch.__enter__)
        self._branches[number] = context, branch
        return number

    def _leave(self, here: Any, number: int) -> None:
        context, branch = self._branches.pop(number)
        context.run(branch.__exit__, None, None, None)


def _texts(here: Session, doc_ids: list[str], chars: int | None) -> list[str]:
    """Return texts that are about to be shown; what is shown is recorded when the program has cut it to fit."""
    return [here.read_whole(doc_id)[:chars] for doc_id in doc_ids]


def _asked(
    here: Any, prompt: Any, messages: Any, settings: dict[str, Any], written: str | None
) -> tuple[Any, str, str]:
    """Return the model's answer, its text and its end; for the engine without a model, what the child has `written`."""
    if strange := sorted(settings.keys() - _SETTINGS):
        raise UsageError(f"an isolated program cannot set {strange[0]} of a call")
    with nullcontext() if written is None else publish(written):
        outputs = dspy.settings.lm(prompt, messages=messages, **settings)
    return outputs, *(ANSWERED.get() or Answered())


def _statistics(here: Any) -> tuple[int, float, Mapping[str, int]]:
    known = dspy.settings.lm.engine.statistics()
    return known.documents, known.average_length, known.frequency


_ANSWERS: dict[str, Callable[..., Any]] = {  # to questions that are no plain call of the session
    "ask": _asked,
    "converse": lambda here, messages, tools: dspy.settings.lm.converse(messages, tools),
    "statistics": _statistics,
    "texts": _texts,
    "judged": lambda here, doc_ids, chars, shown: here.judge(doc_ids, chars, fit=lambda texts: shown),
    "hop": lambda here, hop: setattr(here, "hop", hop),
    "repaired": lambda here: here.charge(Usage(repairs=1)),
}
