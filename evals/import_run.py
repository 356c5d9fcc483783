"""Somebody else's run as one of ours: `python -m evals.import_run FILE.trec --task congress`.

The ranking comes from a TREC run file; with --trajectories also what the system did, so that it can be said where
documents were lost. What is made is a run folder that everything else treats like ours. What nobody knows stays
unknown: the retriever, the model where --model does not name it, and what it used. docs/decisions/export-import.md has
the forms. Left out: runs of parts of a split.
"""

import argparse
import json
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from evals import folder as run_folder
from evals import seal
from tools.console.command import Parser, run_and_leave, say
from tools.errors import DataError, UsageError

if TYPE_CHECKING:
    from environments.base import Environment
    from evals.formats.imported.trace import Trajectory
    from evals.formats.imported.trec import RunFile

UNKNOWN = "unknown"


@dataclass(slots=True)
class Counted:
    """What was met on the way, for the notes."""

    queries: int = 0
    missing: int = 0  # queries that the run file does not have
    tied: int = 0  # queries with equal scores
    longer: int = 0  # queries with more documents than a ranking has
    traced: int = 0
    unmapped: int = 0
    unpriced: int = 0  # queries whose usage nobody says
    unshown: int = 0  # queries whose searches do not say what was shown
    seen: set[str] = field(default_factory=set)

    def notes(self, *, depth: int) -> list[str]:
        """What a reader of the scores should know."""
        many, untraced = self.queries, self.queries - self.traced - self.unmapped
        said = [
            (self.missing, "queries are not in the run file: they count 0, and trec_eval leaves them out"),
            (self.tied, "queries have equal scores, in trec_eval's order: by document id, last first"),
            (self.longer, f"rankings are longer than the task's {depth}, and are cut there"),
            (untraced if untraced < many else 0, "queries have no trajectory"),
            (self.unmapped, "trajectories do not say what their searches found, so their steps are left out"),
            (self.unshown, "trajectories do not say what was shown of what searches found: as if nothing was"),
        ]
        return [f"{count} of {many} {what}" for count, what in said if count]


def import_run(arguments: argparse.Namespace, environment: "Environment") -> Path:
    """Make the run folder and score it; where it is."""
    from evals.formats.imported.trec import RunFile
    from evals.measuring.scoring import score
    from tools import disk

    file, counted = RunFile(arguments.run, environment, encoded=arguments.encoded), Counted()
    arguments.name = arguments.name or name_of(file.tag) or name_of(arguments.run.name.partition(".")[0]) or "imported"
    imported: dict[str, Any] = {
        "file": arguments.run.name,
        "sha256": disk.sha256(arguments.run),
        "trajectories": arguments.trajectories and disk.sha256(arguments.trajectories),
        "encoded": arguments.encoded,
    }
    # Nothing is left of a file that does not fit.
    with disk.naming(Path(tempfile.gettempdir())), tempfile.TemporaryFile() as spool:
        _convert(spool, file, arguments.trajectories, environment, counted)
        imported |= {"usage": not counted.unpriced, "notes": counted.notes(depth=environment.depth)}
        config = configuration(arguments, environment, imported)
        path = run_folder.place(arguments.runs, config)
        with run_folder.claim(path, config):
            spool.seek(0)
            with run_folder.writing(path / "outcomes.jsonl") as outcomes:
                of = run_folder.digest(config)
                for line in spool:
                    outcomes.buffer.write(seal.sealed(line[:-1], of) + b"\n")
            score(path, environment)
    return path


def _convert(
    spool: IO[bytes], file: "RunFile", trajectories: Path | None, environment: "Environment", counted: Counted
) -> None:
    """Write an outcome for every query, those with a trajectory first."""
    from evals.formats.imported.trace import Trajectory
    from evals.formats.imported.trajectories import read

    counted.queries = len(environment.queries)
    for number, one in read(trajectories, environment) if trajectories else ():
        try:
            _put(spool, outcome(file, one, environment.depth, counted))
        except ValueError as error:
            raise DataError(f"{trajectories}, line {number}: {error}") from None
        counted.seen.add(one.query_id)
        counted.traced += bool(one.steps)
    for query in environment.queries:
        if query.query_id not in counted.seen:
            _put(spool, outcome(file, Trajectory(query.query_id, [], []), environment.depth, counted))


def _put(spool: IO[bytes], row: run_folder.Outcome) -> None:
    line = json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace")
    run_folder.check_outcome(line)
    spool.write(line + b"\n")


def outcome(file: "RunFile", one: "Trajectory", depth: int, counted: Counted) -> run_folder.Outcome:
    """A line of outcomes.jsonl. ValueError where run file and trajectory are not of the same run."""
    from tools.records import Usage, step_json, usage_json

    doc_ids, scores, ties = file.ranking(one.query_id)
    if one.ranking is not None and one.ranking != doc_ids:
        raise ValueError(f"its ranking of query {one.query_id!r} is not that of {file.path}")
    if one.scores is not None:
        if len(one.scores) != len(doc_ids):
            raise ValueError(f"it has {len(one.scores)} scores for {len(doc_ids)} documents")
        scores, ties = one.scores, 0
    if one.error is not None and doc_ids:
        raise ValueError(f"it has an error for query {one.query_id!r}, of which {file.path} has a ranking")
    counted.missing += not doc_ids and one.error is None
    counted.tied += bool(ties)
    counted.longer += len(doc_ids) > depth
    counted.unmapped += not one.mapped
    counted.unpriced += one.usage is None
    searched = [step for step in one.steps if step.tool == "search"]
    counted.unshown += bool(searched) and not any(step.shown for step in one.steps)
    return {
        "query_id": one.query_id,
        "ranking": doc_ids[:depth],
        "scores": scores[:depth],
        "answer": one.answer,
        "trace": {
            "steps": [step_json(step) for step in one.steps],
            "notes": one.notes,
            **(one.counts or {"invented_ids": 0, "unusable": {}, "followed": {}}),
        },
        # A price that nobody knows is None; that the numbers beside it are not known either, config.json says.
        "usage": usage_json(one.usage or Usage(paid_usd=None, list_usd=None)),
        "error": one.error,
        "seconds": one.seconds,
    }


def configuration(
    arguments: argparse.Namespace, environment: "Environment", imported: dict[str, Any]
) -> run_folder.Config:
    """What config.json of a run says, with what is not known of this one as unknown."""
    from evals.running.provenance import origin

    folder = None if environment.data in ("mini", "full") else str(Path(environment.data).resolve())
    return {
        "task": environment.task,
        "data": "folder" if folder else environment.data,
        "compiled": None,
        "pool": None,
        "max_p": environment.max_p,
        "instruction": "task",
        "data_fingerprint": environment.fingerprint,
        "split": environment.split,
        "asked": {"limit": None, "query_ids": []},
        "program": arguments.name,
        "parameters": {},
        "files": {},
        "depth": environment.depth,
        "retriever": {"name": UNKNOWN, "with": UNKNOWN, "others": {}},
        "lm": {"name": arguments.model or UNKNOWN},
        "code": UNKNOWN,
        "versions": {},
        "imported": imported,
        run_folder.PROVENANCE: {
            "judgements": environment.headline,
            "data": environment.data,
            "folder": folder,
            "source": environment.source,
            "compiled": None,
            **origin(),
        },
    }


def name_of(text: str) -> str:
    """What of a text can be part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-.")[:60]


def parser() -> Parser:
    """The command line."""
    made = Parser(prog="python -m evals.import_run", description="Make a run of somebody else's rankings; score it.")
    add = made.add_argument
    add("run", type=Path, metavar="FILE", help="a TREC run file, plain or gzipped")
    add("--task", required=True, metavar="TASK", help="a task, e.g. congress or obliq/congress")
    add("--data", metavar="WHAT", help="mini, full or a folder; full where it is fetched, else mini")
    add("--split", default="test", metavar="SPLIT", help="which queries it answers: dev, test, all")
    add("--qrels", default="", metavar="NAME", help="which judgements lead, e.g. gold or pooled; all are reported")
    add("--name", metavar="NAME", help="what the system is called; the file's tag where none is named")
    add("--model", metavar="NAME", help="the model that it asked, if one is known")
    add(
        "--trajectories",
        type=Path,
        metavar="FILE",
        help="what it did: JSON Lines (docs/decisions/export-import.md), or ATIF",
    )
    add("--encoded", action="store_true", help="ids are percent-encoded, as in our own run.trec")
    add("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where run folders go")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Check, import, score, print; exit code 7 when queries of the run had failed."""
    import environments
    from evals.measuring import split_uses
    from evals.showing.terminal import queries, show

    if arguments.name is not None and arguments.name != name_of(arguments.name):
        raise UsageError(
            f"--name {arguments.name!r} is no name of a folder; e.g. {name_of(arguments.name) or 'theirs'!r}"
        )
    for file in filter(None, (arguments.run, arguments.trajectories)):
        if not file.is_file():
            raise DataError(f"there is no file {file}; give a TREC run file, and trajectories in JSON Lines")
    environments.resolve(arguments.task)
    run_folder.check_place(arguments.runs)
    environment = environments.load(arguments.task, arguments.data, arguments.split, qrels=arguments.qrels)
    if not arguments.json:
        say(f"{environment.task}: {queries(len(environment.queries))}")
    path = import_run(arguments, environment)
    config = run_folder.read_config(path)
    split_uses.record(config, path)
    scores = json.loads((path / "scores.json").read_bytes())
    seen = split_uses.count(config["task"], split_uses.data_of(config), config["program"])
    show({"run": str(path), **scores, "looks": seen}, as_json=arguments.json)
    return 7 if scores["failed"] else 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
