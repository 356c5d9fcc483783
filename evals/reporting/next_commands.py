"""The next two commands after a run, with the run's own folder, task and options.

The first looks at the run. The second asks what failed again, or compares with the floor, or, if the
floor is not there, runs it; after a floor it runs a program.
"""

import shlex
from dataclasses import replace
from pathlib import Path

from sextant.evals.running.request import Request
from sextant.programs import FLOOR, MAIN
from sextant.tools.platform import cli_options
from sextant.tools.platform.wrapping import command_lines
from sextant.tools.records import JsonMapping

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


def list_next(scores: JsonMapping, request: Request) -> list[tuple[str, str]]:
    """Return the next steps, each with its command."""
    run = shlex.quote(scores["run"])
    if request.shard:
        # A shard has no scores of its own.
        return [("join the shards when all are there", f"sextant gather {run}")]
    look = ("look at it", f"sextant view {run}")
    floor = (scores.get("bounds") or {}).get("floor")
    if scores["failed"]:
        words = cli_options.to_command_line(replace(request, again="failed"))
        return [look, ("ask what failed again", f"sextant run {shlex.join(words)}")]
    if floor and not request.pool and scores["program"] != FLOOR:
        # The bounds name a folder next to the run.
        path = shlex.quote(str(Path(scores["run"]).parent / Path(floor["run"]).name))
        return [look, ("compare with the floor", f"sextant compare {path} {run}")]
    purpose, program = "run the floor", FLOOR
    if scores["program"] == FLOOR:
        purpose, program = "try a program", MAIN
    dropped = [name for name in vars(request) if name not in _KEPT]
    words = ["--program", program, *cli_options.to_command_line(request, dropped)]
    return [look, (purpose, f"sextant run {shlex.join(words)}")]


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
