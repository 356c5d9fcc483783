"""Another system's run as a run folder of ours, which everything else treats like ours.

The ranking comes from a TREC run file; with trajectories it can also be said where documents were lost. What is not
known stays unknown: the retriever, the model where none is named, and what it used. Left out: runs of parts of a split.
"""

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from evals import folder as run_folder
from evals.formats import atif, trajectory
from evals.formats.trajectory import Trajectory
from evals.formats.trec import RunFile
from evals.measuring.scoring import score
from evals.running.configuration import origin
from tools import disk, forms
from tools.errors import DataError
from tools.records import Usage, step_json, usage_json

if TYPE_CHECKING:
    from environments.base import Environment

UNKNOWN = "unknown"


def import_run(
    file: Path,
    environment: "Environment",
    *,
    runs: Path,
    name: str = "",
    model: str = "",
    trajectories: Path | None = None,
    encoded: bool = False,
) -> Path:
    """Make a run folder of a TREC run file in `runs`, score it, and return its path.

    `name` is the system's: the file's tag where it is empty. `encoded`: ids are percent-encoded, as in our own
    run.trec. DataError, with nothing left, for a file that does not fit the environment.
    """
    run_file, counts = RunFile(file, environment, encoded=encoded), Counter[str]()
    named = name or as_name(run_file.tag) or as_name(file.name.partition(".")[0]) or "imported"
    with disk.naming(Path(tempfile.gettempdir())), tempfile.TemporaryFile() as spool:
        _convert(spool, run_file, trajectories, environment, counts)
        imported = {
            "file": file.name,
            "sha256": disk.sha256(file),
            "trajectories": trajectories and disk.sha256(trajectories),
            "encoded": encoded,
            "usage": not counts["unpriced"],
            "notes": _notes(counts, environment),
        }
        config = make_config(environment, named, model, imported)
        path = run_folder.place(runs, config)
        with run_folder.claim(path, config):
            spool.seek(0)
            with run_folder.writing(path / "outcomes.jsonl") as outcomes:
                of = run_folder.digest(config)
                for line in spool:
                    outcomes.buffer.write(run_folder.seal(line[:-1], of) + b"\n")
            score(path, environment)
    return path


def as_name(text: str) -> str:
    """Reduce a text to what may be part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-.")[:60]


def read_trajectories(path: Path, environment: "Environment") -> Iterator[tuple[int, Trajectory]]:
    """Yield (line number, trajectory) of every line, in our own form or in ATIF. DataError for what does not fit."""
    queries = {query.query_id: query for query in environment.queries}
    seen: dict[str, int] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = forms.read_whole(dict[str, Any], line)
                made = (atif if atif.is_atif(row) else trajectory).read_line(row, queries, environment)
                if made.query_id in seen:
                    raise ValueError(f"query {made.query_id!r} is in line {seen[made.query_id]} already")
            except ValueError as error:
                raise DataError(f"{path}, line {number}: {error}") from None
            seen[made.query_id] = number
            yield number, made


def _convert(
    spool: IO[bytes], file: RunFile, trajectories: Path | None, environment: "Environment", counts: Counter[str]
) -> None:
    """Write an outcome for every query, those with a trajectory first."""
    seen = set[str]()
    for number, one in read_trajectories(trajectories, environment) if trajectories else ():
        try:
            _put(spool, _outcome(file, one, environment.depth, counts))
        except ValueError as error:
            raise DataError(f"{trajectories}, line {number}: {error}") from None
        seen.add(one.query_id)
        counts["traced"] += bool(one.steps)
    for query in environment.queries:
        if query.query_id not in seen:
            _put(spool, _outcome(file, Trajectory(query.query_id, [], []), environment.depth, counts))


def _put(spool: IO[bytes], row: run_folder.Outcome) -> None:
    line = json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace")
    run_folder.check_outcome(line)
    spool.write(line + b"\n")


def _outcome(file: RunFile, one: Trajectory, depth: int, counts: Counter[str]) -> run_folder.Outcome:
    """Make a line of outcomes.jsonl. ValueError where run file and trajectory are not of the same run."""
    doc_ids, scores, ties = file.ranking(one.query_id)
    if one.ranking is not None and one.ranking != doc_ids:
        raise ValueError(f"its ranking of query {one.query_id!r} is not that of {file.path}")
    if one.scores is not None:
        if len(one.scores) != len(doc_ids):
            raise ValueError(f"it has {len(one.scores)} scores for {len(doc_ids)} documents")
        scores, ties = one.scores, 0
    if one.error is not None and doc_ids:
        raise ValueError(f"it has an error for query {one.query_id!r}, of which {file.path} has a ranking")
    searched = any(step.tool == "search" for step in one.steps)
    counts["missing"] += not doc_ids and one.error is None
    counts["tied"] += bool(ties)
    counts["longer"] += len(doc_ids) > depth
    counts["unmapped"] += not one.mapped
    counts["unpriced"] += one.usage is None
    counts["unshown"] += searched and not any(step.shown for step in one.steps)
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
        # A price that is not known is None; that the numbers beside it are not known either, config.json says.
        "usage": usage_json(one.usage or Usage(paid_usd=None, list_usd=None)),
        "error": one.error,
        "seconds": one.seconds,
    }


def _notes(counts: Counter[str], environment: "Environment") -> list[str]:
    """Notes for a reader of the scores."""
    many = len(environment.queries)
    untraced = many - counts["traced"] - counts["unmapped"]
    notes = [
        (counts["missing"], "queries are not in the run file: they count 0, and trec_eval leaves them out"),
        (counts["tied"], "queries have equal scores, in trec_eval's order: by document id, last first"),
        (counts["longer"], f"rankings are longer than the task's {environment.depth}, and are cut there"),
        (untraced if untraced < many else 0, "queries have no trajectory"),
        (counts["unmapped"], "trajectories do not say what their searches found, so their steps are left out"),
        (counts["unshown"], "trajectories do not say what was shown of what searches found: as if nothing was"),
    ]
    return [f"{count} of {many} {what}" for count, what in notes if count]


def make_config(environment: "Environment", name: str, model: str, imported: dict[str, Any]) -> run_folder.Config:
    """Make config.json; what is not known of an imported run is "unknown" there."""
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
        "program": name,
        "parameters": {},
        "files": {},
        "depth": environment.depth,
        "retriever": {"name": UNKNOWN, "with": UNKNOWN, "others": {}},
        "lm": {"name": model or UNKNOWN},
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
