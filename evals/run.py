"""`python -m evals.run --program multihop --task congress`: run a search system on a task, score it, print it.

The options are the fields of evals/running/request.py; what is done with them is in evals/running/evaluation.py.
"""

import argparse
import inspect
import json
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agents import AGENTS
from evals.running.request import SYSTEMS, Request, find_program
from programs import PROGRAMS
from tools import names, options
from tools.console import Parser, clean, put_out, run_and_leave
from tools.errors import UsageError
from tools.options import list_parameters

if TYPE_CHECKING:
    from evals.running.events import Events


def parser() -> Parser:
    """Return the command line."""
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
    if not arguments.json_events:
        return _command(arguments)
    from evals.running.events import Events  # with what it imports, --help would take longer

    with Events() as events:
        events.code = _command(arguments, events)
    return events.code


def _command(arguments: argparse.Namespace, events: "Events | None" = None) -> int:
    if arguments.program == "list":
        show_programs(as_json=arguments.json)
        return 0
    request = options.from_options(Request, vars(arguments))
    if arguments.dry_run:
        from evals.running import forecast  # as above

        found = forecast.forecast(request)
        put_out(json.dumps(found) + "\n" if arguments.json else forecast.render(found))
        return 0
    workers = import_module("tools.processes").starting("evals.workers.worker") if request.forks else nullcontext()
    with workers as start:
        from evals.running import evaluation  # as above, and while workers import what they need

        if events:
            result = evaluation.run(request, events.report, start=start)
            events.result = result.json()
        elif arguments.json:
            result = evaluation.run(request, start=start)
            put_out(json.dumps(result.json()) + "\n", kept="in the run folder")
        else:
            from evals.running.watch import report  # rich: not for --json
            from evals.showing.tables import show_scores  # as above

            result = evaluation.run(request, report, start=start)
            show_scores(result.json())
    if result.problem:
        raise result.problem
    return 7 if result.failed else 0


def show_programs(*, as_json: bool) -> None:
    """Print the programs and the agents, a line each, with what -P may set; those of installed packages say whose."""
    rows, lines = list[dict[str, Any]](), list[str]()
    installed = {name: whose for name, whose in names.known(SYSTEMS, names.PROGRAMS).items() if whose}
    for kind, table in (("program", PROGRAMS), ("agent", AGENTS), ("installed program", installed)):
        lines += [f"{kind}s"] * bool(table)
        for name in table:
            values = dict[str, Any]()
            try:
                constructor = find_program(name)
                about = (inspect.getdoc(constructor) or "").partition("\n")[0]
                values = {key: one.default for key, one in list_parameters(constructor).items()}
            except UsageError as error:  # an installed package may be broken
                about = f"cannot be used: {error}"
            about = clean(f"{about} ({installed[name]})".strip() if name in installed else about)
            rows.append({"name": name, "kind": kind, "about": about, "parameters": values})
            lines.append(f"  {clean(name):<18}{about}")
            plain = {key: str(value).lower() if isinstance(value, bool) else value for key, value in values.items()}
            if values:
                lines.append(f"  {'':<18}-P {' '.join(f'{key}={value}' for key, value in plain.items())}")
    lines.append("your own: --program FILE.py:NAME or package.module:NAME")
    put_out(json.dumps(rows) + "\n" if as_json else "\n".join(lines) + "\n")


if __name__ == "__main__":
    run_and_leave(parser(), command)
