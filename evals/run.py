"""`sextant run --program multihop --task congress`: run a search system on a task, score
it, print it.

The options are the fields of evals/running/request.py; they are carried out in
evals/running/evaluate.py. Several tasks, as `--task "obliq/*"` or `--task congress,math`, are run
in turn, each as a command of its own would do.
"""

import argparse
import inspect
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sextant import environments
from sextant.agents import AGENTS
from sextant.evals.query_id_files import read_query_ids
from sextant.evals.running.request import SYSTEMS, Request, find_program
from sextant.programs import PROGRAMS, list_deviations
from sextant.tools import plugins
from sextant.tools.errors import (
    BudgetReached,
    DataError,
    Interrupted,
    ProviderRefused,
    RunIncomplete,
    SextantError,
    UsageError,
)
from sextant.tools.platform import cli_options
from sextant.tools.platform.cli import (
    CommandParser,
    add_json_option,
    line_width,
    positive,
    print_json,
    print_result,
    print_stderr,
    print_stdout,
    run_and_leave,
    strip_control_characters,
)
from sextant.tools.platform.cli_options import list_parameters
from sextant.tools.platform.interrupts import is_interrupted
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import DefinitionList, TerminalBlock, show
from sextant.tools.platform.terminal import first_sentence
from sextant.tools.platform.waiting import announced
from sextant.tools.records import JsonObject

if TYPE_CHECKING:
    from sextant.evals.running.evaluate import LoadedRun, Result
    from sextant.evals.running.events import EventWriter

# The errors that a command over several tasks may end with; the first that a task has met decides.
ERRORS_BY_WEIGHT = (BudgetReached, RunIncomplete, ProviderRefused, DataError, UsageError)
ABOUT = (
    "Run a search system on a task and score it. --task 'obliq/*' or --task congress,math runs "
    "each of these tasks in "
    "turn; budgets and the time limit hold for all of them together."
)


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(prog="sextant run", description=ABOUT)
    cli_options.add_options(command_line, Request)
    cli_options.add_tools_option(command_line)
    command_line.add_argument(
        "--query-ids",
        action="extend",
        default=[],
        type=read_query_ids,
        metavar="FILE",
        help="ask only the queries of a file with an id a line; # begins a comment; as sextant "
        "compare --write-ids writes it",
    )
    command_line.lists.add("--task")
    add = command_line.add_argument
    add(
        "--repeat",
        type=positive,
        default=1,
        metavar="N",
        help="runs with the seeds from --seed (0) on, their spread, and pass@k",
    )
    add(
        "--success",
        type=float,
        default=0.5,
        metavar="VALUE",
        help="the headline metric from which a query succeeds, for the pass@k of --repeat",
    )
    add(
        "--dry-run",
        action="store_true",
        help="say how many calls it will make at most, and estimate tokens and list price; nothing is sent",
    )
    add("--view", action="store_true", help="show the run in a browser while it goes")
    forms = command_line.add_mutually_exclusive_group()
    add_json_option(forms)
    forms.add_argument(
        "--json-events", action="store_true", help="print one JSON object a line as things happen"
    )
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Answer the queries that are pending, score, print.

    Exit code 7 when queries failed or are still pending.
    """
    if not arguments.view or arguments.dry_run or arguments.program == "list":
        return _report_events(arguments)
    from sextant.evals.view import watch  # with what it imports, --help would take longer

    return watch(arguments.runs, partial(_report_events, arguments))


def _report_events(arguments: argparse.Namespace) -> int:
    if not arguments.json_events:
        return _command(arguments)
    from sextant.evals.running.events import (
        EventWriter,  # with what it imports, --help would take longer
    )

    with EventWriter() as events:
        events.code = _command(arguments, events)
    return events.code


def _command(arguments: argparse.Namespace, events: "EventWriter | None" = None) -> int:
    if arguments.program == "list":
        show_programs(as_json=arguments.json)
        return 0
    if arguments.task and names_several(arguments.task):
        return run_tasks(arguments, events)
    request = cli_options.from_options(Request, vars(arguments))
    request.check_names()
    if arguments.repeat > 1:
        return run_repeatedly(request, arguments, events)
    if arguments.dry_run:
        with announced("estimating the cost"):
            from sextant.evals.running import cost_estimate  # as above

            estimate = cost_estimate.forecast(request)
        print_result(estimate, cost_estimate.render_estimate, as_json=arguments.json)
        return 0
    result = run_request(request, arguments, events)
    if events:
        events.result = result.json()
    elif arguments.json:
        print_json(result.json(), kept="in the run folder")
    if result.problem:
        raise result.problem
    if not events and not arguments.json:
        from sextant.evals.reporting.next_commands import render_next  # not for --json

        for line in render_next(result.json(), request, line_width(sys.stderr)):
            print_stderr(line, whole=True)
    return 7 if result.failed else 0


def run_request(
    request: Request,
    arguments: argparse.Namespace,
    events: "EventWriter | None",
    opening: "Callable[[Request], LoadedRun] | None" = None,
) -> "Result":
    """Run a request, and print its scores if a person reads them."""
    with announced("loading libraries"):
        from sextant.evals.run_folder import read_config  # as above
        from sextant.evals.running import evaluate, progress_display  # as above
        from sextant.evals.scoring.score_table import show_scores  # as above

    report = None if arguments.json else progress_display.report
    result = evaluate.run_request(
        request, events.report if events else report, opening=opening or evaluate.load_run
    )
    if not (events or arguments.json):
        scores = result.json()
        has_candidates = scores.get("candidates") is not None
        deviations = list_deviations(read_config(result.folder), has_candidates=has_candidates)
        show_scores(scores, deviations=len(deviations))
    return result


def run_repeatedly(
    request: Request, arguments: argparse.Namespace, events: "EventWriter | None"
) -> int:
    """Run a request with one seed after another, and print what the runs have in common.

    UsageError for a run that does not depend on its seed, and for a dry run.
    """
    if arguments.dry_run or arguments.cassette:
        raise UsageError("--repeat makes runs; estimate or record one run without it")
    from sextant.evals.scoring.repetitions import lay_out_repetitions, repeat_scores  # NumPy
    from sextant.evals.scoring.scored_run import read_scored_run  # as above

    first = request.seed or 0
    requests = [replace(request, seed=seed) for seed in range(first, first + arguments.repeat)]
    opening = open_on_shared_budget(requests, counting=True)
    results: list[Result] = []
    for repeated in requests:
        result = run_request(repeated, arguments, events, opening)
        if result.problem:
            raise result.problem
        if result.folder in [other.folder for other in results]:
            raise UsageError(
                f"nothing in {result.folder} depends on a seed, so a repetition is the same run; "
                "name a model with --lm"
            )
        results.append(result)
    repetitions = repeat_scores(
        [read_scored_run(result.folder) for result in results], arguments.success
    )
    values = {"repetitions": repetitions.json(), "runs": [result.json() for result in results]}
    if events:
        events.result = values
    elif arguments.json:
        print_json(values, kept="in the run folders")
    else:
        show(lay_out_repetitions(repetitions))
    return 7 if any(result.failed for result in results) else 0


def open_on_shared_budget(
    requests: Sequence[Request], *, counting: bool
) -> "Callable[[Request], LoadedRun]":
    """Return the function that opens runs of these requests, on the budget of the first.

    With `counting`, what all of them have spent before is counted.
    """
    from sextant.evals.running import (  # with what they import, --help would take longer
        cost_estimate,
        earlier_usage,
        evaluate,
    )

    budget = evaluate.make_resources(requests[0]).budget

    def opening(request: Request) -> "LoadedRun":
        resources = evaluate.make_resources(request)
        resources.budget = budget
        return evaluate.load_run(request, resources)

    if counting:
        earlier_usage.count_all(
            requests, budget, lambda request: cost_estimate.find_existing_run(opening(request))
        )
    return opening


def names_several(task: str) -> bool:
    """Return whether --task is a pattern or a list, and not the place of data that has such a
    name.
    """
    return ("*" in task or "," in task) and not Path(task).exists()


def list_requests(arguments: argparse.Namespace) -> dict[str, Request]:
    """Return the request of each task that --task names, by the task.

    UsageError before anything is run.
    """
    if arguments.repeat > 1:
        raise UsageError("--repeat is for one task; a study has `repeats` over several")
    if arguments.cassette:
        raise UsageError("a cassette has the answers of one run; name one task with --cassette")
    tasks = dict[
        tuple[str, str | None], str
    ]()  # a task may be named twice, by its short and its full name
    requests = {}
    named = environments.expand_tasks(arguments.task)
    for task in named:
        data = environments.choose_data(task, arguments.data, named)
        if tasks.setdefault(environments.locate_task(task, data), task) == task:
            requests[task] = cli_options.from_options(
                Request, vars(arguments) | {"task": task, "data": data}
            )
            requests[task].check_names()
    return requests


def run_tasks(arguments: argparse.Namespace, events: "EventWriter | None") -> int:
    """Run each task in turn, or print its estimate.

    A task that fails keeps no other from running.
    """
    requests = list_requests(arguments)
    with announced("loading libraries"):
        from sextant.evals.running import (
            cost_estimate,  # with what it imports, --help would take longer
        )

    opening = open_on_shared_budget(list(requests.values()), counting=not arguments.dry_run)
    results = list[JsonObject]()
    problems = {}
    failed_queries = 0
    for task, request in requests.items():
        values = {"task": task}
        try:
            if arguments.dry_run:
                with announced(f"estimating the cost of {task}"):
                    values = cost_estimate.forecast(request)
                if not arguments.json:
                    print_stdout(("\n" if results else "") + cost_estimate.render_estimate(values))
            else:
                if results and not (arguments.json or events):
                    print_stdout("\n")
                result = run_request(request, arguments, events, opening)
                values = result.json()
                failed_queries += result.failed
                if result.problem:
                    raise result.problem
        except SextantError as problem:
            if is_interrupted() or isinstance(problem, Interrupted):
                raise
            print_stderr(f"{task}: {problem}")
            problems[task] = problem
            values = values | {"error": str(problem)}
        results.append(values)
        if events:
            events.result = {"runs": results}
    if arguments.json:
        print_json({"runs": results}, kept="in the run folders")
    if problems:
        raise summarise(problems, len(requests), failed_queries)
    return 7 if failed_queries else 0


def summarise(problems: dict[str, SextantError], tasks: int, failed_queries: int) -> SextantError:
    """Return the error that ends the command, with the exit code that comes first in
    ERRORS_BY_WEIGHT.
    """
    codes = {problem.exit_code for problem in problems.values()} | (
        {RunIncomplete.exit_code} if failed_queries else set()
    )
    error_type = next(
        (error for error in ERRORS_BY_WEIGHT if error.exit_code in codes), SextantError
    )
    return error_type(
        f"{len(problems)} of {plural(tasks, 'task')} did not finish: {', '.join(problems)}; the "
        f"reasons are above"
    )


def show_programs(*, as_json: bool) -> None:
    """Print the programs and the agents, a line each, with the parameters of -P; those of installed
    packages name the package.
    """
    with announced("loading programs"):
        rows, blocks = describe_programs()
    if as_json:
        print_json(rows)
    else:
        show(blocks)


def describe_programs() -> tuple[list[JsonObject], list[TerminalBlock]]:
    """Return the programs and agents as rows for --json, and laid out for a terminal."""
    rows = list[JsonObject]()
    blocks = list[TerminalBlock]()
    installed = {
        name: origin
        for name, origin in plugins.list_names(SYSTEMS, plugins.PROGRAMS).items()
        if origin
    }
    for label, table in {
        "program": PROGRAMS,
        "agent": AGENTS,
        "installed program": installed,
    }.items():
        items = list[tuple[str, str]]()
        for name in table:
            values = JsonObject()
            try:
                constructor = find_program(name)
                description = first_sentence(inspect.getdoc(constructor))
                values = {
                    key: parameter.default
                    for key, parameter in list_parameters(constructor).items()
                }
            except UsageError as error:  # an installed package may be broken
                description = f"cannot be used: {error}"
            if name in installed:
                description += f" ({installed[name]})"
            description = strip_control_characters(description)
            rows.append({"name": name, "kind": label, "about": description, "parameters": values})
            pairs = [
                # As -P takes the value.
                shlex.quote(f"{key}={str(value).lower() if isinstance(value, bool) else value}")
                for key, value in values.items()
            ]
            items += [(name, description), ("", f"-P {' '.join(pairs)}")][: 1 + bool(pairs)]
        if items:
            blocks += [f"{label}s", DefinitionList(items)]
    blocks.append("your own: --program FILE.py:NAME or package.module:NAME")
    return rows, blocks


if __name__ == "__main__":
    run_and_leave(parser(), command)
