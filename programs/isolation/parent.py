"""`--isolated`: a program in a process of its own, which has its query and neither judgements nor
the data's paths.

Corpus, index, session, model, key, cache and budget stay here; a child asks for their work in JSON,
so nothing of it is unpickled. It is a fresh interpreter, because a fork's memory would hold
judgements, and it alone imports the program's module (docs/decisions/isolation.md). A child that
ends by itself is a fault of the program; one that hangs is ended when the time of its query is up,
and the query stays pending.
"""

import inspect
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import dspy

from programs.compiled import NAME, Compiled, fuse_rankings, write
from programs.isolation import shield
from programs.isolation.child import CALLS, dumps
from tools import errors, session
from tools.errors import RunIncomplete, SextantError, UsageError
from tools.files import InputFilePath
from tools.models.adapter import ANSWERED
from tools.models.client import DEADLINE
from tools.models.offline import expose_call
from tools.plugins import resolve_file
from tools.records import Query, Submission, Trace, Usage
from tools.retrievers import Expression, Expressions
from tools.session import Toolbox

_ROOT = Path(__file__).parents[2]
_CODE = ("agents", "programs", "tools", "sextant_search.py")
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/null",
    "/dev/urandom",
)
_ENVIRONMENT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
)  # of ours: no key
_TYPES = {
    one.__name__: one for one in (int, float, bool, str, Expression, Expressions, InputFilePath)
}
# What a call of the child's may set: other settings could lead to another server, with our key.
_SETTINGS = frozenset(
    {"temperature", "max_tokens", "n", "rollout_id", "stop", "top_p", "response_format"}
)
_LARGEST = 256 << 20  # bytes of a message
_LATE = 3.0  # seconds after a query's time is up, in which evals.running.runner gives it up
_SHIELDED = "without files or TCP"
_BARE = "files not shielded: this system has no Landlock"
_current: Callable[[], Any] = session.current
_CHILDREN: set["_GuestProcess"] = set()


class ProcessEnded(Exception):
    """A child has ended, or does not keep to the protocol."""


class IsolatedProgram:
    """A program in a process of its own, in place of the program's constructor."""

    def __init__(
        self, name: str, reference: str, hidden: Sequence[Path], compiled: Compiled | None = None
    ) -> None:
        """`reference` is as of tools.plugins. What is in `hidden` cannot be read, where the system can see to that."""
        source, _, attribute = reference.rpartition(":")
        beside = []
        if source.endswith(".py"):
            source = str(file := resolve_file(source))
            beside = [str(file.parent)]
            if file.parent == Path.home() or any(
                file.is_relative_to(one.resolve()) for one in hidden
            ):
                why = (
                    "an isolated program is not shown what is beside it there; give it a folder "
                    "of its own"
                )
                raise UsageError(f"{file}: {why}")
        self._name = name
        self._reference = f"{source}:{attribute}"
        self._compiled = compiled
        self._files = _list_readable(
            [*hidden, *(Path(one) / ".env" for one in (".", *beside))], beside
        )
        first = self._start()
        self._idle = [first]
        self.shielding = f"in a process of its own, {_SHIELDED if first.shielded else _BARE}"
        make = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
        takes = [
            make(one, default=value, annotation=_TYPES.get(kind, str))
            for one, kind, value in first.takes
        ]
        self.__signature__ = inspect.Signature(takes)

    def __call__(self, toolbox: Toolbox, **parameters: Any) -> Callable[..., Submission]:
        """Return a system as evals.running.runner runs it; UsageError for parameters that the program refuses."""

        def answer(*, query: Query) -> Submission:
            with self._begin(parameters) as child:
                return _HostSession(toolbox, query).have_answered(child)

        with self._begin(parameters) as child:
            answer.unanswerable = child.unanswerable  # type: ignore[attr-defined]  # as of a Program
        return answer

    def _start(self) -> "_GuestProcess":
        try:
            return _GuestProcess(self._reference, self._files, self._compiled)
        except ProcessEnded as error:
            raise RunIncomplete(
                f"a process for the program could not be started: {error}"
            ) from None

    @contextmanager
    def _begin(self, parameters: Mapping[str, Any]) -> "Iterator[_GuestProcess]":
        try:
            child = self._idle.pop()
        except IndexError:
            child = self._start()
        try:
            child.begin(self._name, parameters)
            yield child
        finally:
            if child in _CHILDREN:  # it has not ended
                self._idle.append(child)


def _list_readable(hidden: Sequence[Path], beside: Sequence[str]) -> dict[str, list[str]]:
    """List what a child may read: Python, its libraries, our code, $PYTHONPATH and `beside`, less what is hidden."""
    packages = [path for path in sys.path if path.endswith("-packages")]
    added = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    code = [_ROOT / name for name in _CODE]
    out_of_reach = [place.resolve() for place in hidden]
    out_of_reach += [
        entry for entry in _ROOT.iterdir() if (entry / "__init__.py").exists() and entry not in code
    ]
    readable = list[str]()
    listable = [str(_ROOT)]
    places = [sys.prefix, sys.base_prefix, *packages, *added, *beside, *map(str, code), *_SYSTEM]
    for path in {Path(path).resolve() for path in places}:
        _add_around(path, out_of_reach, readable, listable)
    return {"readable": readable, "listable": listable}


def _add_around(
    place: Path, hidden: Iterable[Path], readable: list[str], listable: list[str]
) -> None:
    """Add `place` if nothing in it is hidden; else what is not, and that the names in its folders can be listed."""
    if place in hidden or not place.exists():
        return
    if not any(place in one.parents for one in hidden):
        readable.append(str(place))
        return
    listable.append(str(place))
    for entry in place.iterdir():
        if not entry.is_symlink():
            _add_around(entry, hidden, readable, listable)


@contextmanager
def kill_children_on_exit() -> Iterator[None]:
    """End every child with the block."""
    try:
        yield
    finally:
        for child in list(_CHILDREN):
            child.end()


class _GuestProcess:
    def __init__(
        self, reference: str, files: Mapping[str, list[str]], compiled: Compiled | None
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="sextant-isolated-"))
        self._connection, theirs = Pipe()
        self._parameters: Any = None
        if compiled:
            write(self._folder / NAME, compiled)
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment |= dict.fromkeys(
            ("HOME", "TMPDIR", "DSPY_CACHEDIR", "NUMBA_CACHE_DIR"), str(self._folder)
        )
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        rules = json.dumps({**files, "own": str(self._folder)})
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", shield.__file__, str(_ROOT), str(theirs.fileno()), rules],
                cwd=self._folder,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # ours is for the run's result
                start_new_session=True,  # a Ctrl-C is for us: what is in flight is waited for
            )
        _CHILDREN.add(self)
        self.shielded: bool = self._receive()["shielded"]
        self.takes: list[tuple[str, str, Any]] = self.do("describe", system=reference)

    def begin(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Make the program with these parameters, unless that is done. It gets copies of the files that they name."""
        if parameters == self._parameters:
            return
        files = {
            key: value
            for key, value in parameters.items()
            if isinstance(value, InputFilePath) and value
        }
        copies = {key: shutil.copy(value, self._folder) for key, value in files.items()}
        self.unanswerable: list[str] = self.do(
            "begin", program=name, parameters={**parameters, **copies}
        )
        self._parameters = parameters

    def do(self, task: str, desk: "_HostSession | None" = None, **given: Any) -> Any:
        """Have the child do a task, and return what comes of it; what it asks meanwhile is for the `desk`."""
        self._send({"task": task, "given": given})
        while (message := self._receive()).keys() == {"call", "arguments", "named"} and desk:
            self._send(desk.answer(**message))
        if message.get("threads"):  # which would go on in the next query
            self.end()
        if "failed" in message:
            raise _make_error(message["failed"], desk.raised if desk else [])
        return message["done"]

    def _send(self, message: Mapping[str, Any]) -> None:
        with suppress(OSError):  # it has ended: who reads meets that
            self._connection.send_bytes(dumps(message))

    def _receive(self) -> dict[str, Any]:
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
        _CHILDREN.discard(self)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _make_error(failed: dict[str, Any], raised: list[Exception]) -> Exception:
    """Return the exception that ended a program: the one raised here, or one of its name and words."""
    number: int = failed["number"]
    kind: Any = getattr(errors, failed["kind"], None)
    if not (isinstance(kind, type) and issubclass(kind, SextantError)):
        kind = type(failed["kind"], (Exception,), {"__module__": "builtins"})
    made: Any = raised[number] if 0 <= number < len(raised) else kind.__new__(kind, failed["words"])
    made.add_note(failed["traceback"])
    made.user_line = failed["line"]
    return made  # type: ignore[no-any-return]


class _HostSession:
    """Answers the questions of one query's child, with the session and the model of the calling context."""

    def __init__(self, toolbox: Toolbox, query: Query) -> None:
        self.raised: list[Exception] = []
        self._toolbox = toolbox
        self._query = query
        self._branches: list[AbstractContextManager[None]] = []
        self._ended: list[Submission] = []
        self._answers: dict[str, Callable[..., Any]] = {  # beside plain calls of the session
            "open": self._open,
            "hop": lambda hop: setattr(_current(), "hop", hop),
            "judged": lambda doc_ids, chars, shown: _current().judge(
                doc_ids, chars, fit=lambda texts: shown
            ),
            "repaired": lambda: _current().charge(Usage(repairs=1)),
            "branch": self._branch,
            "leave": lambda: self._branches.pop().__exit__(None, None, None),
            "submit": lambda ranking, **how: self._ended.append(_current().submit(ranking, **how)),
            "ask": _ask_model,
            "converse": lambda messages, tools: dspy.settings.lm.converse(messages, tools),
            "statistics": lambda: dspy.settings.lm.engine.statistics()._asdict(),
        }

    def have_answered(self, child: _GuestProcess) -> Submission:
        """Return what the program hands in for the query. Its trace and usage are those of the sessions here."""
        model = dspy.settings.lm
        settings = {
            name: value
            for name, value in model.kwargs.items()
            if name in _SETTINGS and value is not None
        }
        about = {name: getattr(model, name) for name in ("model", "window", "limit")}
        about |= {"tools": bool(model.tools), "offline": model.caller.free}
        about |= {"schemas": "on" if model.structured else "off", "settings": settings}
        made = child.do("answer", self, query=asdict(self._query), model=about)
        done = (
            fuse_rankings(self._ended)
            if self._ended
            else Submission((), Trace(self._query.query_id))
        )
        return replace(
            done,
            ranking=tuple(made["ranking"]),
            answer=made["answer"],
            scores=tuple(made["scores"]),
        )

    def answer(
        self, call: str, arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> dict[str, Any]:
        try:
            make = getattr(_current(), call) if call in CALLS else self._answers[call]
            return {"value": make(*arguments, **named)}
        except Exception as error:  # noqa: BLE001  # the program meets it, or ends with it
            self.raised.append(error)
            return {"error": [type(error).__name__, str(error), len(self.raised) - 1]}

    def _open(self, text: str, objective: str) -> None:
        self._toolbox.open(
            replace(self._query, text=text, objective=objective)
        )  # with its own exclusions and pool

    def _branch(self, hop: int | None, line: int | None) -> None:
        self._branches.append(_current().branch(hop, line=line))
        self._branches[-1].__enter__()


def _ask_model(
    prompt: Any, messages: Any, settings: dict[str, Any], written: str | None
) -> tuple[Any, str, str]:
    """Return the model's answer, its text and its end; the engine without a model returns what is `written`."""
    if strange := sorted(settings.keys() - _SETTINGS):
        raise UsageError(f"an isolated program cannot set {strange[0]} of a call")
    with nullcontext() if written is None else expose_call(written):
        outputs = dspy.settings.lm(prompt, messages=messages, **settings)
    return outputs, *(ANSWERED.get())
