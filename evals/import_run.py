"""Another system's run as one of ours (docs/guide/see-and-export.md): `python -m
evals.import_run FILE --task T`.
"""

import argparse
import json
import tempfile
from pathlib import Path

import environments
from evals import run_folder
from tools.cli import CommandParser, print_stderr, print_stdout, run_and_leave
from tools.cli_options import parse_name_value
from tools.errors import DataError, UsageError
from tools.installation import find_page
from tools.number_format import plural, queries


def parser() -> CommandParser:
    """Return the parser of the command line."""
    command_line = CommandParser(
        prog="python -m evals.import_run",
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
    add(
        "--task",
        metavar="TASK",
        help="a task, e.g. congress or obliq/congress; --from does without",
    )
    add(
        "--data", metavar="WHAT", help="mini, full or a folder; full where it is fetched, else mini"
    )
    add(
        "--column",
        type=parse_name_value,
        action="append",
        default=[],
        metavar="NAME=COLUMN",
        help="as for evals.run",
    )
    add("--split", default="test", metavar="SPLIT", help="which queries it answers: dev, test, all")
    add(
        "--qrels",
        default="",
        metavar="NAME",
        help="which judgements lead, e.g. gold or pooled; all are reported",
    )
    add(
        "--name",
        metavar="NAME",
        help="what the system is called; the file's tag where none is named",
    )
    add("--model", default="", metavar="NAME", help="the model that it used, if that is known")
    description = f"what it did: JSON Lines ({find_page('docs/guide/see-and-export.md')}), or ATIF"
    add("--trajectories", type=Path, metavar="FILE", help=description)
    add("--encoded", action="store_true", help="ids are percent-encoded, as in our own run.trec")
    add("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where run folders go")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Check, import, score, print; exit code 7 when queries of the run had failed, 3 for
    files of no use.
    """
    from evals.formats import (  # here, as all below, for the sake of --help
        birco_rankings,
        import_run,
        inspect_log,
    )
    from evals.reporting.score_table import show_scores  # as above
    from evals.scoring.score_run import count_test_uses, record_test_use  # as above

    if arguments.form:
        imports = list(birco_rankings.import_ranks(arguments.run, arguments.data, arguments.runs))
        rows = [{"file": str(file), "run": str(run)} for file, run in imports]
        lines = "".join(f"{row['file']}: {row['run']}\n" for row in rows)
        print_stdout(json.dumps(rows) + "\n" if arguments.json else lines)
        refused = [run for _, run in imports if isinstance(run, DataError)]
        if refused:
            raise DataError(
                f"{len(refused)} of {plural(len(imports), 'file')} refused, the others imported: "
                f"{refused[0]}"
            )
        return 0
    if arguments.name is not None and arguments.name != (fit := import_run.slugify(arguments.name)):
        raise UsageError(
            f"--name {arguments.name!r} is no name of a folder; e.g. {fit or 'theirs'!r}"
        )
    for file in filter(None, (arguments.run, arguments.trajectories)):
        if not file.is_file():
            raise DataError(
                f"there is no file {file}; give a TREC run file, and trajectories in JSON Lines"
            )
    run_folder.check_place(arguments.runs)
    judged = {"qrels": arguments.qrels, "columns": dict(arguments.column)}
    if not arguments.task:
        raise UsageError("say with --task which task the run is of")
    environment = environments.load(arguments.task, arguments.data, arguments.split, **judged)
    if not arguments.json:
        print_stderr(f"{environment.task}: {queries(len(environment.queries))}")
    settings = {
        key: getattr(arguments, key) for key in ("runs", "model", "trajectories", "encoded")
    }
    with tempfile.TemporaryDirectory() as folder:
        file = arguments.run
        name = arguments.name or ""
        if file.suffix in (".json", ".eval"):
            model, file, settings["trajectories"] = inspect_log.convert_inspect_log(
                file, Path(folder)
            )
            settings |= {"model": arguments.model or model, "encoded": True}
        try:
            path = import_run.import_run(file, environment, name=name, **settings)
        except DataError as error:
            if file != arguments.run:
                raise error.saying(
                    import_run.say_of(arguments.run, str(error), Path(folder))
                ) from None
            raise
    config = run_folder.read_config(path)
    record_test_use(config, path)
    scores = json.loads((path / "scores.json").read_bytes())
    show_scores(
        {"run": str(path), **scores, "looks": count_test_uses(config)}, as_json=arguments.json
    )
    return 7 if scores["failed"] else 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
