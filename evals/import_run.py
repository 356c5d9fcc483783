"""Another system's run as a run of ours (docs/guide/see-and-export.md): `sextant import FILE
--task T`.
"""

import argparse
import json
import tempfile
from dataclasses import fields
from pathlib import Path

from sextant import environments
from sextant.evals import run_folder
from sextant.evals.running.request import Request
from sextant.tools.errors import DataError, UsageError
from sextant.tools.platform import cli_options
from sextant.tools.platform.cli import (
    CommandParser,
    add_json_option,
    positive,
    print_json,
    print_stderr,
    run_and_leave,
)
from sextant.tools.platform.installation import find_page
from sextant.tools.platform.number_format import plural, queries
from sextant.tools.platform.result_table import show
from sextant.tools.platform.waiting import announced

# Options that are those of a run; --from does without a task.
_OF_TASK = {"task", "data", "columns", "split", "qrels", "relevant_from", "runs"}


def parser() -> CommandParser:
    """Return the parser of the command line."""
    command_line = CommandParser(
        prog="sextant import",
        description="Make a run of another system's rankings; score it.",
    )
    add = command_line.add_argument
    add(
        "run",
        type=Path,
        metavar="FILE",
        help="a TREC run file, plain or gzipped, or a log of Inspect AI as JSON",
    )
    description = (
        "birco-ranks: FILE is the folder evaluation/ranks of BIRCO's release; makes a run of each "
        "ranking in it"
    )
    add("--from", dest="form", choices=("birco-ranks",), help=description)
    cli_options.add_options(
        command_line, Request, without={field.name for field in fields(Request)} - _OF_TASK
    )
    add(
        "--name",
        metavar="NAME",
        help="what the system is called; the file's tag where none is named",
    )
    add("--model", default="", metavar="NAME", help="the model that it used, if that is known")
    description = f"what it did: JSON Lines ({find_page('docs/guide/see-and-export.md')}), or ATIF"
    add("--trajectories", type=Path, metavar="FILE", help=description)
    add("--epoch", type=positive, metavar="N", help="of a log of Inspect AI with several")
    add("--encoded", action="store_true", help="ids are percent-encoded, as in our own run.trec")
    add_json_option(command_line)
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Check, import, score, print.

    Exit code 7 if queries of the run had failed, 3 for files that cannot be imported.
    """
    if arguments.form:
        _import_birco(arguments)
        return 0
    _check(arguments)
    with announced(f"importing and scoring {arguments.run}"):
        path = _import(arguments)
    from sextant.evals.scoring.score_run import (  # NumPy: not for --help
        count_test_uses,
        record_test_use,
    )
    from sextant.evals.scoring.score_table import show_scores  # rich: not for --help

    config = run_folder.read_config(path)
    record_test_use(config, path)
    scores = json.loads((path / run_folder.SCORES_FILE).read_bytes())
    looks = count_test_uses(config)
    show_scores({"run": str(path), **scores, "looks": looks}, as_json=arguments.json)
    return 7 if scores["failed"] else 0


def _import_birco(arguments: argparse.Namespace) -> None:
    from sextant.evals.formats import birco_rankings  # NumPy: not for --help

    with announced(f"importing and scoring {arguments.run}"):
        imports = list(birco_rankings.import_ranks(arguments.run, arguments.data, arguments.runs))
    rows = []
    for file, run in imports:
        system = birco_rankings.find_system(file.stem)
        rows.append({"file": str(file), "system": system, "run": str(run)})
        text = f"{file}: {run}" if isinstance(run, Path) else f"refused: {run}"
        if not system:
            text += " (its name is that of no system of Table 7)"
        if not arguments.json:
            show([text])
    if arguments.json:
        print_json(rows)
    refused = [run for _, run in imports if isinstance(run, DataError)]
    if refused:
        files = plural(len(imports), "file")
        reason = str(refused[0]) if len(refused) == 1 else "the reasons are above"
        raise DataError(f"{len(refused)} of {files} refused, the others imported: {reason}")


def _check(arguments: argparse.Namespace) -> None:
    for file in (arguments.run, arguments.trajectories):
        if file and not file.is_file():
            problem = f"there is no file {file}"
            if file.exists():  # such as /dev/stdin, or what a shell makes of <(zcat RUN)
                problem = f"{file} is no file, which is read more than once"
            raise DataError(f"{problem}; give a TREC run file, and trajectories in JSON Lines")
    run_folder.check_place(arguments.runs)
    if not arguments.task:
        raise UsageError("say with --task which task the run is of")
    environments.locate_task(arguments.task, arguments.data)
    from sextant.evals.formats.import_run import slugify  # NumPy: not before names are right

    name = arguments.name
    if name is not None and name != slugify(name):
        example = slugify(name) or "theirs"
        raise UsageError(f"--name {name!r} is no name of a folder; e.g. {example!r}")


def _import(arguments: argparse.Namespace) -> Path:
    from sextant.evals.formats import import_run, inspect_log  # NumPy: not for --help

    with announced(f"loading {arguments.task}"):
        environment = environments.load(
            arguments.task,
            arguments.data,
            arguments.split,
            qrels=arguments.qrels,
            columns=dict(arguments.columns),
            relevant_from=arguments.relevant_from,
        )
    if not arguments.json:
        print_stderr(f"{environment.task}: {queries(len(environment.queries))}")
    file = arguments.run
    model = arguments.model
    trajectories = arguments.trajectories
    encoded = arguments.encoded
    notes = []
    with tempfile.TemporaryDirectory() as folder:
        if file.suffix in (".json", ".eval"):
            log = inspect_log.convert_inspect_log(file, Path(folder), arguments.epoch)
            file = log.rankings
            model = model or log.model
            trajectories = log.trajectories
            notes = log.notes
            encoded = True
        try:
            return import_run.import_run(
                file,
                environment,
                runs=arguments.runs,
                name=arguments.name or "",
                model=model,
                trajectories=trajectories,
                encoded=encoded,
                notes=notes,
            )
        except DataError as error:
            if file == arguments.run:
                raise
            raise error.saying(import_run.say_of(arguments.run, str(error), Path(folder))) from None


if __name__ == "__main__":
    run_and_leave(parser(), command)
