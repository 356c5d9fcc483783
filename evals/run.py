"""`python -m evals.run --program multihop --task congress`: run a search system on a task, score it, print it.

The options are the fields of evals/running/request.py; what is done with them is in evals/running/evaluation.py.
"""

import argparse
from typing import TYPE_CHECKING

from evals.running import listing, options
from evals.running.request import Request
from tools.console.command import Parser, put_out, run_and_leave

if TYPE_CHECKING:
    from evals.running.evaluation import Beginning, Result
    from evals.running.events import Events
    from evals.running.watch import Watch


def parser() -> Parser:
    """The command line."""
    made = Parser(prog="python -m evals.run", description="Run a search system on a task and score it.")
    options.add_options(made, Request)
    add = made.add_argument
    add("--dry-run", action="store_true", help="say what it will cost and how long it will take; nothing is sent")
    add = made.add_mutually_exclusive_group().add_argument
    add("--json", action="store_true", help="print one JSON object and nothing else")
    add("--json-events", action="store_true", help="print one JSON object a line as things happen")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Answer the queries that are pending, score, print. Exit code 7 when queries failed or are still pending."""
    from evals.running.events import Events  # with what it imports, --help would take longer

    with Events(put_out if arguments.json_events else None) as events:
        events.code = _command(arguments, events)
    return events.code


def _command(arguments: argparse.Namespace, events: "Events") -> int:
    if arguments.program == "list":
        listing.show(as_json=arguments.json)
        return 0
    request = options.from_options(Request, vars(arguments))
    from evals.running.evaluation import forecast, run  # with what it imports, --help would take longer

    if arguments.dry_run:
        from evals.running.forecast import show

        show(forecast(request), as_json=arguments.json)
        return 0

    def report(beginning: "Beginning") -> "Watch":
        from evals.running.watch import Watch

        return Watch.of(beginning, events, quiet=arguments.json or events.heard)

    result = run(request, report)
    _show(result, events, as_json=arguments.json)
    if result.problem:
        raise result.problem
    return 7 if result.failed else 0


def _show(result: "Result", events: "Events", *, as_json: bool) -> None:
    from evals.showing.terminal import show

    if events.heard:
        events.result = result.json()
    else:
        show(result.json(), as_json=as_json)


if __name__ == "__main__":
    run_and_leave(parser(), command)
