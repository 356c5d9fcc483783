"""The request of a run: everything that `evals.run` can be asked for, as a frozen value.

    Request(program="multihop", task="congress", split="dev", parameters={"hops": 2})

A field that is None leaves the choice to the task, the model or the program. Values are checked when a request is made
(UsageError); whether there is such a program or task is the business of evals/running/resolve.py.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from agents import AGENTS
from environments.base import INSTRUCTIONS, SPLITS
from evals.measuring.metrics import LANGUAGE
from evals.running.parameters import LIMITS
from programs import PROGRAMS
from tools.console import command, options
from tools.console.command import clock, dollars, positive
from tools.console.options import Option, pair
from tools.models.spec import APIS, EFFORTS
from tools.retrievers import RETRIEVERS

SYSTEMS = PROGRAMS | AGENTS
WORKERS = 8  # queries at a time with a real model; the offline engine is bound by this process, and gets 1


def _default_lm() -> str:
    return os.environ.get("SEXTANT_LM") or "offline"


@dataclass(frozen=True, kw_only=True)
class Common:
    """What a run and a compilation can both be asked for."""

    program: Annotated[
        str,
        Option(
            f"one of {', '.join(sorted(SYSTEMS))}; evals.run --program list says what each does",
            "NAME",
            missing="python -m evals.run --program list has them",
        ),
    ]
    task: Annotated[
        str,
        Option("a task, e.g. congress or obliq/congress", "TASK", missing="python -m environments list has the tasks"),
    ]
    data: Annotated[
        str | None, Option("mini, full or a folder; without it full where that is fetched, else mini", "WHAT")
    ] = None
    qrels: Annotated[str, Option("which judgements lead, e.g. gold or pooled; all are reported", "NAME")] = ""
    instruction: Annotated[str, Option(f"what a query says of its task: {', '.join(INSTRUCTIONS)}", "KIND")] = "task"
    limit: Annotated[int | None, Option("ask only the first N queries", "N", positive)] = None
    retriever: Annotated[
        str | None,
        Option(
            f"bm25 where none is named; one of {', '.join(RETRIEVERS)}, or made of them, e.g. fusion(bm25,dense); "
            "python -m tools.retrievers",
            "SPEC",
        ),
    ] = None
    parameters: Annotated[
        Mapping[str, Any],
        Option(
            f"a parameter of the program, or a limit of each query: {', '.join(LIMITS)}", "NAME=VALUE", pair, flag="-P"
        ),
    ] = field(default_factory=dict)
    k: Annotated[
        int | None, Option("documents in a ranking; without it the task's own number, mostly 1000", "N", positive)
    ] = None
    lm: Annotated[
        str, Option("the model: offline, provider/model or MODEL@http://host:port/v1; also $SEXTANT_LM", "SPEC")
    ] = field(default_factory=_default_lm)
    temperature: Annotated[
        float | None, Option("from 0 to 2; 0 where the model takes one", "X", command.temperature)
    ] = None
    reasoning_effort: Annotated[
        str | None, Option(f"one of {', '.join(EFFORTS)}; the model's own", "HOW", choices=EFFORTS)
    ] = None
    api: Annotated[str, Option(f"which of OpenAI's protocols: {' or '.join(APIS)}", "API", choices=APIS)] = "chat"
    context: Annotated[
        int | None, Option("tokens that the model takes, where the price table does not say", "N", positive)
    ] = None
    prices: Annotated[Path | None, Option("prices of your own, in TOML; docs/decisions/paying.md", "FILE")] = None
    max_concurrent: Annotated[int | None, Option(f"queries at a time; {WORKERS}, or 1 offline", "N", positive)] = None
    budget_usd: Annotated[float | None, Option("stop before the call after X dollars are spent", "X", dollars)] = None
    budget_tokens: Annotated[int | None, Option("stop before the call after N tokens are spent", "N", positive)] = None
    budget_calls: Annotated[int | None, Option("stop before model call N+1", "N", positive)] = None
    time_limit: Annotated[float | None, Option("send nothing after it: 90s, 30m, 2h", "TIME", clock)] = None
    query_timeout: Annotated[
        float | None, Option("give a query up after it, and leave it pending; 1h", "TIME", clock)
    ] = None
    call_timeout: Annotated[float | None, Option("cut a model call off after it; 10m", "TIME", clock)] = None
    patience: Annotated[float | None, Option("how long a call that fails is tried again; 30s", "TIME", clock)] = None
    runs: Annotated[Path, Option("where run folders go", "DIR")] = Path("runs")

    def __post_init__(self) -> None:
        options.check(self)

    @property
    def workers(self) -> int:
        """Queries at a time."""
        return self.max_concurrent or (1 if self.lm == "offline" else WORKERS)


@dataclass(frozen=True, kw_only=True)
class Request(Common):
    """What a run can be asked for."""

    split: Annotated[str, Option(f"which queries: {', '.join(SPLITS)}", "SPLIT")] = "test"
    query_ids: Annotated[tuple[str, ...], Option("ask only this query; repeatable", "ID", flag="--query-id")] = ()
    pool: Annotated[
        str | None,
        Option("rank pools: union:300 of what the retriever finds, or oracle:300 with gold in it", "POOL"),
    ] = None
    compiled: Annotated[Path | None, Option("a compiled program: what python -m optimizers.compile made", "FILE")] = (
        None
    )
    seed: Annotated[int | None, Option("the model's sampling seed, where it takes one", "N", int)] = None
    cassette: Annotated[
        Path | None,
        Option("answer every model call from FILE, without a key; where there is none, record it", "FILE"),
    ] = None
    again: Annotated[
        str | None,
        Option("failed: ask the queries again whose outcome is a failure", "WHICH", choices=("failed",)),
    ] = None
    metrics: Annotated[
        tuple[str, ...], Option(f"one more than the task's own; repeatable: {LANGUAGE}", "NAME", flag="--metric")
    ] = ()
    isolated: Annotated[bool, Option("run the program in a process of its own; docs/decisions/isolation.md")] = False
