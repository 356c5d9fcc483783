"""The overhead of a model call: `python -m benchmarks.calls [--in-flight 64] [--data FOLDER]
[--profile | --cached]`.

The main job, multihop over BM25, runs as `sextant run` runs it. The model is a local HTTP server in
another process (benchmarks/answering.py) that answers every call after the same time. The ideal
time is calls x latency / calls in flight, and efficiency is ideal / wall clock. CPU is that of this
process, which does everything but answer. For comparison, `--processes` workers do the same, and
aiohttp sends the same bodies and reads the answers in the same minute, and does nothing else.
`--profile` shows instead where the CPU goes, by sampling, with one query at a time and no latency.
`--cached` asks every prompt of such a run again by another run, which takes all answers from the
cache. In the miniature later hops find little to read, so quote figures of a release. Left out: providers
behind LiteLLM, and the CPU of workers.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from types import FrameType
from typing import NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import aiohttp
import orjson

from sextant import environments
from sextant.evals.run_folder import JsonlIndex, RunFolder
from sextant.evals.running import evaluate, runner
from sextant.evals.running.request import Request
from sextant.evals.running.workers.coordinator import Coordinator
from sextant.programs.multihop import MultiHop
from sextant.tools import retrievers
from sextant.tools.corpus import Corpus
from sextant.tools.errors import RunIncomplete, UsageError
from sextant.tools.models import language_model
from sextant.tools.models.call_limits import ConcurrencyLimiter
from sextant.tools.models.run_resources import RunResources
from sextant.tools.models.storage.request_store import read_call
from sextant.tools.platform.cli import (
    CommandParser,
    positive,
    print_stderr,
    print_stdout,
    run_command,
)
from sextant.tools.platform.files import sextant_home
from sextant.tools.platform.forkserver import fork_server
from sextant.tools.process_changes import while_running
from sextant.tools.records import Query, Usage
from sextant.tools.session import Toolbox

# Queries for each that is in flight, unless --queries says otherwise: the last ones are not in full
# company
ROUNDS = 4
# Seconds of CPU between two looks of --profile; the system's clock makes it four on most machines
EVERY = 0.001

# Part -> the files that belong to it. A moment belongs to the innermost frame that is of any of
# these.
PARTS = {
    "OpenAI's client": ("openai/", "httpx/", "httpcore/", "h11/"),
    "HTTP and protocol": ("tools/models/transport/",),
    "answers kept, budget, limiter": (
        "tools/models/client.py",
        "tools/models/language_model.py",
        "tools/models/run_resources.py",
        "tools/models/call_limits.py",
        "tools/models/provider_response.py",
        "tools/models/prices.py",
        "tools/models/storage/",
    ),
    "prompts and answers": (
        "tools/models/prompting.py",
        "tools/models/tokens.py",
        "tools/models/answers/",
    ),
    "search and documents": ("tools/retrievers/", "tools/corpus.py"),
    "trace": ("tools/session.py", "tools/records.py", "tools/text.py"),
    "outcomes on disk": ("evals/", "tools/platform/files.py"),
    "DSPy": ("dspy/",),
    "program": ("programs/", "agents/"),
}
HERE = Path(__file__).parents[1]
ROOTS = (
    f"{sysconfig.get_path('purelib')}/",
    f"{HERE}/",
)  # in this order: an environment may lie in the checkout


class Measured(NamedTuple):
    """One way of making calls."""

    what: str
    calls: int
    wall: float  # seconds
    cpu: float  # seconds
    disk: int = 0  # bytes of the outcomes


def parser() -> CommandParser:
    """The command line."""
    made = CommandParser(
        prog="python -m benchmarks.calls", description="What a model call costs beside the model."
    )
    made.add_argument("--task", default="congress", metavar="TASK")
    made.add_argument("--data", default="mini", metavar="FOLDER", help="mini, full or a folder")
    made.add_argument("--in-flight", type=positive, default=64, metavar="N", help="calls at a time")
    made.add_argument(
        "--latency", type=float, default=0.2, metavar="S", help="seconds that an answer takes"
    )
    made.add_argument(
        "--queries", type=positive, metavar="N", help=f"default: {ROUNDS} for each call in flight"
    )
    made.add_argument(
        "--no-prompts", action="store_true", help="keep answers without what was sent for them"
    )
    made.add_argument("--stream", action="store_true", help="have answers sent token by token")
    processes = (
        "workers, beside one process without any; no N: each number up to that of the cores "
        "(default: that one)"
    )
    made.add_argument("--processes", type=positive, nargs="*", metavar="N", help=processes)
    made.add_argument(
        "--hops", type=positive, metavar="N", help="of multihop by workers (default: 4)"
    )
    instead = made.add_mutually_exclusive_group()
    instead.add_argument(
        "--profile", action="store_true", help="say where the CPU goes, with one query at a time"
    )
    instead.add_argument(
        "--cached", action="store_true", help="say how fast kept answers are read, one by one"
    )
    return made


def command(arguments: argparse.Namespace) -> int:
    """Measure and print tables in Markdown."""
    if not 0 <= arguments.latency < 600:
        raise UsageError(f"--latency {arguments.latency:g} is no number of seconds below 600")
    environment = environments.load(arguments.task, arguments.data, "all")
    toolbox = Toolbox(
        environment.documents, retrievers.build("bm25", environment.documents, sextant_home())
    )
    system = MultiHop(toolbox)
    in_flight = arguments.in_flight
    queries = repeated(environment.queries, arguments.queries or ROUNDS * in_flight)
    if arguments.profile or arguments.cached:
        measure = profile if arguments.profile else cached
        with serving(0.0) as port:
            print_stdout(measure(system, queries, environment.documents, port, arguments))
        return 0
    with serving(arguments.latency) as port:
        rows = [run(system, queries, environment.documents, port, in_flight, arguments)]
        cores = len(os.sched_getaffinity(0))
        asked = [cores] if arguments.processes is None else arguments.processes
        for many in dict.fromkeys(asked or range(1, cores + 1)):
            rows.append(run_by(many, queries, port, arguments))
        rows.append(asyncio.run(bare(port, rows[0].calls, in_flight)))
    print_stdout(table(rows, arguments.latency, in_flight))
    return 0


def repeated(queries: Sequence[Query], count: int) -> list[Query]:
    """So many queries, each with a text of its own: answers of equal prompts are paid for once."""
    return [
        replace(query, query_id=f"{query.query_id}-{number}", text=f"{query.text} ({number})")
        for number, query in enumerate(islice(cycle(queries), count))
    ]


@contextlib.contextmanager
def serving(latency: float) -> Iterator[int]:
    """The port of a server in another process."""
    asked = [sys.executable, "-m", "benchmarks.answering", str(latency)]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True, cwd=HERE) as server:
        assert server.stdout
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


@contextlib.contextmanager
def begun(
    port: int, in_flight: int, arguments: argparse.Namespace
) -> Iterator[tuple[language_model.ConnectedModel, RunFolder]]:
    """A model and a run folder, which is removed in the end."""
    with tempfile.TemporaryDirectory() as runs:
        yield begin(Path(runs) / "task" / "run", port, in_flight, arguments)


def begin(
    place: Path, port: int, in_flight: int, arguments: argparse.Namespace
) -> tuple[language_model.ConnectedModel, RunFolder]:
    """A model and the folder of its run at `place`."""
    folder = RunFolder(place, place, "", JsonlIndex(place / "outcomes.jsonl", {}))
    place.mkdir(parents=True)
    settings = language_model.ModelSettings(stream="on" if arguments.stream else "off")
    resources = RunResources(
        limiter=ConcurrencyLimiter(in_flight), prompts=not arguments.no_prompts
    )
    model = language_model.connect(f"tiny@http://127.0.0.1:{port}/v1", resources, settings=settings)
    model.begin(folder.path, Usage())
    return model, folder


def run(
    system: MultiHop,
    queries: Sequence[Query],
    documents: Corpus,
    port: int,
    in_flight: int,
    arguments: argparse.Namespace,
) -> Measured:
    """The run, with as many queries at a time as calls may be in flight."""
    with begun(port, 1, arguments) as (model, folder):
        for query in repeated(
            queries[:3], 3
        ):  # what is loaded and compiled with the first ones does not count
            runner.answer_with_model(
                system, replace(query, text=f"{query.text} first"), documents, model
            )
    with begun(port, in_flight, arguments) as (model, folder):
        wall = time.perf_counter()
        cpu = time.process_time()
        if fault := runner.run_queries(
            system, queries, documents, folder, model, workers=in_flight
        ):
            raise RunIncomplete(
                f"a call was left without an answer: {fault}; run it again on a quiet machine"
            )
        if failed := [row["error"] for row in folder.outcomes.values() if row["error"]]:
            raise RunIncomplete(
                f"{len(failed)} queries failed, so there is nothing to measure: {failed[0]}"
            )
        return Measured(
            "multihop",
            model.resources.budget.calls,
            time.perf_counter() - wall,
            time.process_time() - cpu,
        )


def run_by(
    many: int, queries: Sequence[Query], port: int, arguments: argparse.Namespace
) -> Measured:
    """The same by so many workers of one coordinator, whose CPU it is, after a query for each that
    is in flight.
    """
    with (
        fork_server("sextant.evals.running.workers.worker") as start,
        tempfile.TemporaryDirectory() as runs,
    ):
        request = Request(
            program="multihop",
            task=arguments.task,
            data=arguments.data,
            split="all",
            lm=f"tiny@http://127.0.0.1:{port}/v1",
            stream="on" if arguments.stream else "off",
            parameters={"hops": arguments.hops} if arguments.hops else {},
            max_concurrent=arguments.in_flight,
            no_prompts=arguments.no_prompts,
            workers=many,
            runs=Path(runs),
        )
        ready = evaluate.prepare_loaded(evaluate.load_run(request))
        place = Path(runs) / "task" / "run"
        place.mkdir(parents=True)
        ready.start = start
        folder = RunFolder(place, place, "", JsonlIndex(place / "outcomes.jsonl", {}))
        ready.model.begin(place, Usage())
        with contextlib.closing(Coordinator(ready, place, many)) as coordinator:
            ask = partial(
                runner.run_queries,
                coordinator,
                documents=ready.environment.documents,
                folder=folder,
                model=ready.model,
            )
            first = [
                replace(query, query_id=f"{query.query_id} first", text=f"{query.text} first")
                for query in queries
            ]
            ask(first[: arguments.in_flight], workers=arguments.in_flight)
            calls = ready.model.resources.budget.calls
            wall = time.perf_counter()
            cpu = time.process_time()
            if fault := ask(queries, workers=arguments.in_flight):
                raise RunIncomplete(
                    f"a call was left without an answer: {fault}; run it again on a quiet machine"
                )
            wall = time.perf_counter() - wall
            cpu = time.process_time() - cpu
        size = (place / "outcomes.jsonl").stat().st_size
        return Measured(
            f"{many} workers", ready.model.resources.budget.calls - calls, wall, cpu, size
        )


async def bare(port: int, calls: int, in_flight: int) -> Measured:
    """As many posts of the bodies that the run sent last."""
    connector = aiohttp.TCPConnector(limit=in_flight)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector) as client:
        async with client.get("/") as reply:
            bodies = [body.encode() for body in orjson.loads(await reply.read())]
        left = islice(cycle(bodies), calls)

        async def post() -> None:
            for body in left:  # shared: whoever is free takes the next one
                async with client.post("/v1/chat/completions", data=body) as reply:
                    await reply.read()

        wall = time.perf_counter()
        cpu = time.process_time()
        await asyncio.gather(*(post() for _ in range(in_flight)))
        return Measured(
            "aiohttp alone", calls, time.perf_counter() - wall, time.process_time() - cpu
        )


def table(rows: Sequence[Measured], latency: float, in_flight: int) -> str:
    """One line for each way."""
    lines = [
        f"{in_flight} in flight, {latency:g} s an answer\n",
        "| | calls | wall clock | ideal | efficiency | CPU a call |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        ideal = row.calls * latency / in_flight
        figures = (
            f"{row.wall:.2f} s | {ideal:.2f} s | {ideal / row.wall:.0%} | "
            f"{1000 * row.cpu / row.calls:.2f} ms"
        )
        lines.append(f"| {row.what} | {row.calls} | {figures} |")
    return "\n".join(lines) + "\n"


def profile(
    system: MultiHop,
    queries: Sequence[Query],
    documents: Corpus,
    port: int,
    arguments: argparse.Namespace,
) -> str:
    """A table of where the CPU goes.

    In this thread alone, because only its moments can be looked at.
    """
    seen = Counter[str]()

    def look(number: int, frame: FrameType | None) -> None:
        seen[part(frame)] += 1

    with begun(port, 1, arguments) as (model, folder):
        for query in repeated(queries[:3], 3):
            runner.answer_with_model(
                system, replace(query, text=f"{query.text} first"), documents, model
            )
        before = signal.signal(signal.SIGPROF, look)
        calls = model.resources.budget.calls
        cpu = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
        try:
            answer_all(system, queries, documents, model, folder)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.signal(signal.SIGPROF, before)
        each = 1000 * (time.process_time() - cpu) / (model.resources.budget.calls - calls)
    print_stderr(f"{model.resources.budget.calls - calls} calls, looked at {seen.total()} times")
    lines = ["| part | CPU a call | share |", "|---|--:|--:|"]
    for name, count in seen.most_common():
        share = count / seen.total()
        lines.append(f"| {name} | {each * share:.3f} ms | {share:.0%} |")
    return "\n".join([*lines, f"| all | {each:.3f} ms | |"]) + "\n"


def answer_all(
    system: MultiHop,
    queries: Sequence[Query],
    documents: Corpus,
    model: language_model.ConnectedModel,
    folder: RunFolder,
) -> None:
    """Answer the queries one after another, in this thread."""
    with while_running():  # as in a run
        for query in queries:
            outcome = runner.answer_with_model(system, query, documents, model)
            if isinstance(outcome, Exception):
                raise outcome
            folder.append(outcome)
    model.resources.settle()


def cached(
    system: MultiHop,
    queries: Sequence[Query],
    documents: Corpus,
    port: int,
    arguments: argparse.Namespace,
) -> str:
    """A table of how fast answers are read that another run has paid for: by the model's calls
    alone, and by a whole run.
    """
    with tempfile.TemporaryDirectory() as runs:

        def start(name: str) -> tuple[language_model.ConnectedModel, RunFolder]:
            return begin(Path(runs) / "task" / name, port, 1, arguments)

        model, folder = start("paid")
        answer_all(system, queries, documents, model, folder)
        assert model.resources.ledger
        answers = model.resources.ledger.answers
        keys = answers.query("SELECT key FROM calls WHERE fault = ''")
        prompts = [(read_call(answers.path, key) or {})["messages"] for (key,) in keys]

        def ask_all(model: language_model.ConnectedModel, _: RunFolder) -> None:
            with while_running():
                for prompt in prompts:
                    model.lm(messages=prompt)
            model.resources.settle()

        rows = []
        for what, work in (
            ("calls of the model", ask_all),
            ("multihop", partial(answer_all, system, queries, documents)),
        ):
            model, folder = start(what)
            wall = time.perf_counter()
            cpu = time.process_time()
            work(model, folder)
            wall = time.perf_counter() - wall
            cpu = time.process_time() - cpu
            usage_totals = model.resources.usage_totals
            assert usage_totals and not usage_totals.sent, "an answer was not in the cache"
            rows.append(
                f"| {what} | {usage_totals.cached:,} | {usage_totals.cached / wall:,.0f} | "
                f"{usage_totals.cached / cpu:,.0f} |"
            )
    head = ["| | answers | a second | a second of CPU |", "|---|--:|--:|--:|"]
    return "\n".join([*head, *rows]) + "\n"


def part(frame: FrameType | None) -> str:
    """What the moment is spent on, by the innermost frame that says so."""
    while frame:
        name = frame.f_code.co_filename
        for root in ROOTS:
            name = name.removeprefix(root)
        for what, files in PARTS.items():
            if name.startswith(files):
                return what
        frame = frame.f_back
    return "other"


if __name__ == "__main__":
    sys.exit(
        run_command(parser(), command)
    )  # in the main thread, where alone --profile may set its timer
