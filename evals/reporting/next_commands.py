"""What to do after a run: three commands, with the run's own folder, task and options."""

import shlex
from dataclasses import replace
from pathlib import Path

from sextant.evals.running.request import Request
from sextant.programs import FLOOR, MAIN
from sextant.tools.platform import cli_options
from sextant.tools.platform.wrapping import command_lines
from sextant.tools.records import JsonMapping

# The model of the dry run that is proposed after a run without one.
MODEL = "openai/gpt-5-mini"
# Fields of a request that say what is asked, of whom, and where it goes; others are of one program.
_KEPT = (
    "task",
    "data",
    "split",
    "limit",
    "query_ids",
    "retriever",
    "runs",
    "k",
    "columns",
    "qrels",
    "instruction",
    "pool",
    "metrics",
)
# Fields of the program itself, kept if the same program is run again.
_OF_PROGRAM = (
    "name",
    "parameters",
    "compiled",
    "prompts",
)


def list_next(scores: JsonMapping, request: Request) -> list[tuple[str, str]]:
    """Return what to do next, with its command: look, compare with the floor, try a model."""
    run = shlex.quote(scores["run"])
    if request.shard:
        # A shard has no scores of its own.
        return [("join the shards when all are there", f"sextant gather {run}")]
    steps = [("look at it", f"sextant view {run}")]
    if scores["failed"]:
        same = shlex.join(cli_options.to_command_line(replace(request, again="failed")))
        steps.append(("ask what failed again", f"sextant run {same}"))
    floor = (scores.get("bounds") or {}).get("floor")
    if scores["program"] == FLOOR:
        steps.append(("try a program", _run_command(request, program=MAIN)))
    elif floor and not request.pool:
        # The bounds name a folder next to the run.
        path = shlex.quote(str(Path(scores["run"]).parent / Path(floor["run"]).name))
        steps.append(("compare with the floor", f"sextant compare {path} {run}"))
    else:
        steps.append(("run the floor", _run_command(request, program=FLOOR)))
    if scores["lm"] == "offline" and (scores["usage"]["calls"] or scores["program"] == FLOOR):
        program = MAIN if scores["program"] == FLOOR else request.program
        command = _run_command(request, program=program, lm=MODEL)
        steps.append(("price a model", f"{command} --dry-run"))
    else:
        steps.append(("see where it lost", f"sextant behaviour {run}"))
    return steps


def render_next(
    scores: JsonMapping,
    request: Request,
    width: int | None = None,
) -> list[str]:
    """Return the next commands as lines of at most `width` characters.

    A command that is longer goes on after a backslash, so that it can be copied.
    """
    lines = ["next:"]
    for purpose, command in list_next(scores, request):
        lines += command_lines(f"  {purpose}:", command, width)
    return lines


def _run_command(request: Request, **changes: str) -> str:
    kept = set(_KEPT)
    if changes["program"] == request.program:
        kept.update(_OF_PROGRAM)
    dropped = [name for name in vars(request) if name not in kept]
    words = ["sextant run"]
    for name, value in changes.items():
        words += [f"--{name}", shlex.quote(value)]
    words += map(shlex.quote, cli_options.to_command_line(request, dropped))
    return " ".join(words)
