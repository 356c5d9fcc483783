r"""`command:LINE`: an agent outside, as a process for each query. It searches by MCP, and is given
its address.

    sextant run --task congress --split dev --query-timeout 10m \
        --program 'command:claude -p --mcp-config $SEXTANT_MCP_CONFIG --allowedTools mcp__sextant --output-format json'

The line is split into words as a shell does, and no shell runs it, for texts of queries are data.
In its words and its environment are $SEXTANT_QUERY, which {query} is as well, $SEXTANT_MCP_URL,
$SEXTANT_TOKEN and $SEXTANT_MCP_CONFIG, a file as `claude --mcp-config` takes it. On stdin is a
prompt. Of the other variables of the environment it gets PATH, HOME and the like (_USUAL) and those
that --env names. The end of its output is kept as a note. Its usage is booked if its last line is
JSON with usage, as of `claude --output-format json` and `codex exec --json`. Its processes end
with ours, however ours ends. With the tool `files`, $SEXTANT_FILES is a folder of the documents
(programs/document_files.py).
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import dspy

from sextant.programs import DEFAULT_TOOLS, FILES
from sextant.programs.base import Program
from sextant.programs.corpus_tools import list_tools
from sextant.programs.document_files import COMMANDS, give_files, open_files
from sextant.tools import schemas, session
from sextant.tools.errors import UsageError
from sextant.tools.models.client import DEADLINE
from sextant.tools.models.provider_errors import QueryTimeout
from sextant.tools.models.provider_response import read_report
from sextant.tools.models.secrets import get_secret, redact
from sextant.tools.platform.files import read_object
from sextant.tools.platform.installation import explain_missing
from sextant.tools.plugins import show
from sextant.tools.records import Query, Submission, Usage

PROMPT = """Search with the tools of the MCP server "sextant": take the query with next_query, search and read until you
have found what it asks for, and hand in the doc_ids with submit, best first. What counts as a find:

{objective}

The query:

{query}
"""
WITH_FILES = """
Each document is a file below $SEXTANT_FILES, too; the name is its doc_id, percent-encoded, and ".txt". Read them with
rg, sed -n 'A,Bp' FILE and cat FILE.
"""
# Variables that an agent gets beside the four above, none of which holds a key.
_USUAL = ("PATH", "HOME", "USER", "SHELL", "LANG", "LC_ALL", "TERM", "TMPDIR", "TZ")
KEPT = 20_000  # characters of what an agent prints, from its end
_LONGEST = 30_000  # characters of a query in an environment, which the system bounds
_STARTING = threading.Lock()
# A pipe into which nobody writes ends with this process; then what was started with these words
# kills its whole group.
_ALIVE = os.pipe()
_START = ("sh", "-c", '(read -r _ < "/dev/fd/$0"; kill -9 0) & exec "$@"', str(_ALIVE[0]))


class AgentFailed(Exception):
    """An agent's process ended with an error, and had done nothing."""


class Command(Program):
    """An agent outside, as a process for each query: the line that starts it follows the colon."""

    called: ClassVar[str] = ""  # what follows the colon
    env: ClassVar[
        Sequence[str]
    ] = ()  # names of variables that the agent gets beside the usual ones
    starts_agents: ClassVar[bool] = True

    tools: str = DEFAULT_TOOLS  # names, with commas between: programs/corpus_tools.py
    show_left: bool = False  # tell the agent what its limits leave

    def __post_init__(self) -> None:
        self.functions = list_tools(self.tools, runs_commands=True)
        try:
            self.words = shlex.split(self.called)
        except ValueError as error:
            raise UsageError(f"command:{self.called} cannot be split into words: {error}") from None
        if not self.words:
            raise UsageError(
                "command: has no line; write the command that starts the agent after it"
            )
        if not shutil.which(self.words[0]):
            raise UsageError(f"there is no command {self.words[0]!r} that could be started")
        self._given = {name: os.environ[name] for name in _USUAL if name in os.environ}
        for name in self.env:
            self._given[name] = get_secret(name)
            if not self._given[name]:
                raise UsageError(
                    f"--env {name}: ${name} is not set; export it, or put it into .env"
                )
        self._let_clients_in()  # which takes seconds, before any query's time begins
        self._has_files = FILES in [tool.__name__ for tool in self.functions]
        if self._has_files and self.toolbox.documents:
            open_files(self.toolbox.documents)  # which may take minutes

    @staticmethod
    def open_clients() -> Any:
        """Return the server that agents come in by. A subclass gives it, because servers are above programs."""
        raise UsageError(
            "nothing is there for an agent to come in by; evaluate(program='command:LINE') starts it"
        )

    def _let_clients_in(self) -> Any:
        """Return the server that all agents of this process come in by."""
        with _STARTING:
            try:
                return self.open_clients()
            except ModuleNotFoundError as error:
                raise UsageError(
                    f"agents come in over MCP, which needs {explain_missing(error.name, 'mcp')}"
                ) from None

    def forward(self, query: Query) -> Submission:
        """Start the agent, and wait until it ends; if it has not submitted, its trace makes the submission."""
        if not (client := getattr(dspy.settings.lm, "client", None)):
            raise UsageError(
                "what an agent outside will use is not known before it runs; leave --dry-run out"
            )
        workspace = TemporaryDirectory(prefix="sextant-agent-")
        budget = client.resources.budget
        budget.check()
        with (
            self._let_clients_in().admit(
                self.toolbox, self.depth, query, self.tools, show_left=self.show_left
            ) as (
                episode,
                token,
                server,
            ),
            workspace as name,
        ):
            opened = episode.desk.session
            folder = Path(name)
            session.set_current(opened)
            variables = {
                "SEXTANT_MCP_URL": server["url"],
                "SEXTANT_TOKEN": token,
                "SEXTANT_QUERY": query.text[:_LONGEST].replace("\0", " "),
            }
            variables["SEXTANT_MCP_CONFIG"] = str(folder / "mcp.json")
            (folder / "mcp.json").write_text(
                json.dumps({"mcpServers": {"sextant": server}}), encoding="utf-8"
            )
            prompt = PROMPT.format(objective=query.objective, query=query.text)
            if self._has_files:
                variables["SEXTANT_FILES"] = str(
                    give_files(episode.desk, self.toolbox.documents, query, folder)
                )
                variables["PATH"] = f"{COMMANDS}:{self._given.get('PATH', os.defpath)}"
                prompt += WITH_FILES
            (folder / "stdin").write_text(
                prompt,
                encoding="utf-8",
                errors="replace",
            )
            code = self._run(variables, folder)
            printed, stderr = (_read_end(folder / name) for name in ("stdout", "stderr"))
        usage = _book(opened, printed, episode.reported)
        budget.resume(usage, usage.calls or 1)
        if printed_text := f"{printed}\n{stderr if code else ''}".replace(token, "***").strip():
            opened.note_at_end(redact(printed_text)[-KEPT:])
        if code is None and not episode.submission:
            raise QueryTimeout("the query's time is up (--query-timeout), and the agent was ended")
        if code and all(step.tool in ("note", "files") for step in opened.trace.steps):
            last = (stderr or "it said nothing").splitlines()[-1]
            raise AgentFailed(f"{self.words[0]} ended with exit code {code}: {redact(last)[:500]}")
        # The agent has ended by itself. If a search was refused, the session says that its limit
        # was the reason.
        episode.cut(why="error" if code else "done")
        session.set_current(None)
        submission: Submission = replace(episode.submission, usage=opened.usage)
        return submission

    def _run(self, variables: dict[str, str], folder: Path) -> int | None:
        """Return the exit code of the agent; None if the query's time was up before."""
        pattern = re.compile(r"\$(SEXTANT_\w+)|\{query\}")
        words = [
            pattern.sub(lambda match: variables.get(match[1] or "SEXTANT_QUERY", match[0]), word)
            for word in self.words
        ]
        with ExitStack() as files:
            stdin, stdout, stderr = (
                files.enter_context((folder / name).open("rb" if name == "stdin" else "wb"))
                for name in ("stdin", "stdout", "stderr")
            )
            options: Any = {
                "env": self._given | variables,
                "start_new_session": True,
                "pass_fds": _ALIVE[:1],
            }
            process = subprocess.Popen(
                [*_START, *words],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                **options,
            )
        try:
            return process.wait(max(0.0, DEADLINE.get() - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _read_end(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2**20))
        return file.read().decode("utf-8", "replace").strip()


def _read_cost(opened: session.Session, cost: Any) -> float | None:
    """Return the dollars that an agent reports; None, with a note, for what is no price."""
    try:
        return None if cost is None else float(schemas.validate(schemas.Amount, cost))
    except ValueError:
        opened.note_at_end(
            f"total_cost_usd is {show(cost)[:40]}, which is no price; what the agent cost is not "
            "known"
        )
        return None


def _book(opened: session.Session, printed: str, reported: Usage) -> Usage:
    """Book the usage in an agent's last line, and return it; without such a line it is unknown.

    The usage that it `reported` with its calls of tools is booked already.
    """
    report = read_object(printed.rpartition("\n")[2]) or {}
    metered = read_report(report.get("usage"))
    usd = _read_cost(opened, report.get("total_cost_usd"))
    usage = Usage(paid_usd=usd, list_usd=usd)
    if metered:
        turns = report.get("num_turns")
        calls = turns if isinstance(turns, int) and 0 < turns <= schemas.LARGEST else 1
        usage = Usage(
            calls,
            0,
            metered.input_tokens,
            metered.output_tokens,
            usd,
            usd,
            cached_tokens=metered.cached_tokens,
        )
    elif usd is None and reported != Usage():
        return reported
    opened.charge(usage)
    return usage if metered else replace(usage, unmetered=1)
