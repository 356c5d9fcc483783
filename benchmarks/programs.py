"""Every program and agent on the miniatures, without a model: `python -m benchmarks.programs
[scores|calls]`.

`scores` runs each of them on each task of a suite and prints a table in Markdown. Without a model a
score shows that a system works from end to end, not how good it is. `calls` counts what a model
would be asked on one task: calls and prompt tokens for each query, by OpenAI's o200k_base. Answer
tokens are left out, because they depend on the model. Runs are kept and resumed, so a second
`scores` only prints.
"""

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sextant.evals.running.request import (
    apply_hints,
    find_program,
    find_retrievers,
    parse_parameters,
)

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import dspy

from sextant import environments
from sextant.agents import AGENTS
from sextant.evals import evaluate
from sextant.programs import PROGRAMS
from sextant.tools import retrievers
from sextant.tools.errors import SextantError, UsageError
from sextant.tools.models import offline_engine
from sextant.tools.models.language_model import LanguageModel
from sextant.tools.models.prompting import Adapter
from sextant.tools.models.run_resources import RunResources
from sextant.tools.models.tokens import count_tokens
from sextant.tools.platform.cli import (
    CommandParser,
    positive,
    print_stderr,
    print_stdout,
    run_and_leave,
)
from sextant.tools.platform.files import sextant_home
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox

SYSTEMS = PROGRAMS | AGENTS
SUITES = (
    "obliq",
    "crumb",
    "birco",
)  # whose tasks are asked as searches; MultiConIR's are comparisons
PARTS = ("scores", "calls")
COLUMNS = ("a query", "calls", "tokens of prompts", "largest prompt", "searches", "documents shown")


def parser() -> CommandParser:
    """The command line."""
    made = CommandParser(
        prog="python -m benchmarks.programs",
        description="Every program on the miniatures, without a model.",
    )
    made.add_argument(
        "part", nargs="?", default="scores", metavar="PART", help=f"one of {', '.join(PARTS)}"
    )
    made.add_argument(
        "--program", action="append", default=[], metavar="NAME", help="only this one; repeatable"
    )
    made.add_argument(
        "--task", action="append", default=[], metavar="TASK", help="only this one; repeatable"
    )
    made.add_argument(
        "--limit", type=positive, default=3, metavar="N", help="queries that calls are counted over"
    )
    made.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="where run folders go"
    )
    return made


def command(arguments: argparse.Namespace) -> int:
    """Run what is asked for and print it."""
    if arguments.part not in PARTS:
        raise UsageError(f"there is no part {arguments.part!r}; there are {', '.join(PARTS)}")
    for name in arguments.program:
        find_program(name)
    names = arguments.program or list(SYSTEMS)
    if arguments.part == "calls":
        task = environments.resolve((arguments.task or ["congress"])[0])
        rows = counted(str(task), names, arguments.limit)
        print_stdout(_markdown([list(COLUMNS), *(list(row.values()) for row in rows)]))
        return 0
    wanted = [str(environments.resolve(task)) for task in arguments.task]
    for suite in SUITES:
        tasks = [
            task
            for task in environments.tasks()
            if task.startswith(f"{suite}/") and task in (wanted or [task])
        ]
        if tasks:
            print_stdout(_scores(tasks, names, arguments.runs))
    return 0


def _scores(tasks: list[str], names: list[str], runs: Path) -> str:
    """nDCG@10 of every system on the tasks of a suite, as a table."""
    rows = [["nDCG@10", *(task.partition("/")[2] for task in tasks)]]
    for name in names:
        cells = []
        for task in tasks:
            print_stderr(f"{name} on {task}")
            cells.append(score(name, task, runs))
        rows.append([f"`{name}`", *cells])
    return _markdown(rows)


def score(name: str, task: str, runs: Path) -> str:
    """The mean nDCG@10 of one system on one task, to three decimals."""
    result = evaluate(program=name, task=task, data="mini", split="all", runs=runs)
    if result.failed:
        raise SextantError(f"{name} on {task} failed {result.failed} queries")
    return f"{result.metrics['nDCG@10'].mean:.3f}"


def counted(task: str, names: list[str], limit: int) -> list[dict[str, str]]:
    """Calls and tokens a query of every system on one task, as they are printed, by column."""
    environment = environments.load(task, "mini", "all").asking(limit=limit)
    rows = []
    for name in names:
        print_stderr(f"{name} on {task}")
        prompts, steps = _asked(name, environment)
        searches = sum(step.tool == "search" for step in steps)
        shown = sum(len(step.shown) for step in steps)
        count = len(environment.queries)
        cells = [
            len(prompts) / count,
            sum(prompts) / count,
            max(prompts, default=0),
            searches / count,
            shown / count,
        ]
        written = [f"{cell:,.0f}" if cell >= 100 else f"{cell:.3g}" for cell in cells]
        rows.append(dict(zip(COLUMNS, [f"`{name}`", *written], strict=True)))
    return rows


def _asked(name: str, environment: Any) -> tuple[list[int], list[Any]]:
    """Tokens of every prompt that a system sends for the queries, and the steps that it makes."""
    prompts: list[int] = []

    class Counting(offline_engine.OfflineEngine):
        def complete(self, request: Any) -> Any:
            texts = [request.system or "", *(message.text or "" for message in request.messages)]
            prompts.append(sum(count_tokens(str(text)) for text in texts))
            return super().complete(request)

    constructor = find_program(name)
    values = apply_hints(parse_parameters(name, constructor, {}), [], environment.hints)
    index = BM25(environment.documents, sextant_home())
    others = {
        text: retrievers.build(text, environment.documents, sextant_home())
        for text in find_retrievers(values)
    }
    system = constructor(Toolbox(environment.documents, index, others=others), **values)
    metered = LanguageModel(
        offline_engine.VERSION, RunResources(), free=True, engine=Counting(index.statistics)
    )
    steps: list[Any] = []
    with dspy.context(lm=metered, adapter=Adapter(), trace=[]):
        for query in environment.queries:
            steps += system(query=query).trace.steps
    return prompts, steps


def _markdown(rows: Iterable[list[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n\n"


if __name__ == "__main__":
    run_and_leave(parser(), command)
