"""Another system's run as a run folder of ours, which everything else treats like ours.

The ranking comes from a TREC run file; trajectories also tell how documents were lost. They are
JSON Lines, a line a query, in our own form (Line: that of outcomes.jsonl, of which "query_id" and
"steps" are needed) or in ATIF (atif.py); docs/guide/see-and-export.md has the keys. A step with
a document that its query cannot have is refused. The retriever, a model that is not named, and
usage stay unknown. Left out: runs of parts of a split.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NotRequired

from typing_extensions import TypedDict

from sextant.environments.base import Environment
from sextant.environments.opaque_ids import conceal
from sextant.environments.readers import document_ids, raw_files
from sextant.evals import run_folder
from sextant.evals.formats import atif
from sextant.evals.formats.trec import RunFile
from sextant.evals.running.identity import data_origin
from sextant.evals.scoring.score_run import score
from sextant.tools import schemas
from sextant.tools.errors import DataError
from sextant.tools.platform import files
from sextant.tools.platform.number_format import plural
from sextant.tools.records import (
    JsonMapping,
    JsonObject,
    Query,
    Step,
    Trace,
    Usage,
    total,
    trace_json,
    usage_from_json,
    usage_json,
)
from sextant.tools.schemas import Amount, Count, Number, StepFields

UNKNOWN = "unknown"
# Keys of a line that are those of its trace.
_TOLD = ("notes", "invented_ids", "unusable", "used_in_part", "fallbacks", "followed")


class _Usage(TypedDict):
    calls: Count
    repairs: NotRequired[Count]
    input_tokens: Count
    output_tokens: Count
    # A price that is left out is not known.
    paid_usd: NotRequired[Amount | None]
    list_usd: NotRequired[Amount | None]


class _Step(StepFields):
    tool: str
    argument: NotRequired[str]
    doc_ids: NotRequired[list[str]]
    usage: NotRequired[_Usage]


class _RequiredImportedLine(TypedDict):
    query_id: str
    steps: list[_Step]


class ImportedLine(_RequiredImportedLine, total=False):
    """A line in our own form; the keys from "steps" to "followed" may also stand in "trace"."""

    notes: list[str]
    invented_ids: Count
    unusable: dict[str, Count]
    used_in_part: dict[str, Count]
    fallbacks: Count
    followed: dict[str, str]
    usage: _Usage | None
    seconds: Amount | None
    answer: str | None
    error: str | None
    # Not read, but it must be the run file's.
    ranking: list[str]
    scores: list[Number] | None


def import_run(
    file: Path,
    environment: Environment,
    *,
    runs: Path,
    name: str = "",
    model: str = "",
    trajectories: Path | None = None,
    encoded: bool = False,
    notes: Sequence[str] = (),
) -> Path:
    """Make a run folder of a TREC run file in `runs`, score it, and return its path.

    `encoded`: ids are percent-encoded; `notes` are for readers of its scores. DataError, with
    nothing left, for a file that does not fit the environment.
    """
    query_ids = list(environment.queries_by_id)
    task = environment
    own_ids = {release_id: own_id for own_id, release_id in task.release_ids.items()}
    if task.released:  # what is imported names documents as the release does
        environment = task.released.asking(query_ids=query_ids)
    run_file = RunFile(file, environment, encoded=encoded)
    depth = environment.depth
    counts = Counter[str]()
    name = name or slugify(run_file.tag) or slugify(file.name.partition(".")[0]) or "imported"
    with files.with_filename(Path(tempfile.gettempdir())), tempfile.TemporaryFile() as spool:
        # The digest of a line is also over the configuration, and that has counts over all lines.
        untraced = {
            query.query_id: {"query_id": query.query_id, "steps": []}
            for query in environment.queries
        }
        for number, row in read_trajectories(trajectories, environment) if trajectories else ():
            outcome = _make_outcome(run_file, row, depth, f"{trajectories}, line {number}")
            spool.write(files.encode_row(conceal(outcome, own_ids)) + b"\n")
            _count(run_file, row, depth, counts)
            counts["traced"] += bool(row["steps"])
            del untraced[row["query_id"]]
        for row in untraced.values():
            _count(run_file, row, depth, counts)
        imported = {
            "file": file.name,
            "sha256": files.sha256(file),
            "trajectories": trajectories and files.sha256(trajectories),
            "encoded": encoded,
            "usage": not counts["unpriced"],
            "notes": [*_make_notes(counts, environment, run_file.left_out), *notes],
        }
        config = make_config(task, name, model, imported)
        path = run_folder.run_path(runs, config)
        is_new = not path.exists()
        with run_folder.claim(path, config) as folder:
            spool.seek(0)
            traced_lines = (line[:-1] for line in spool)
            lines = (
                files.encode_row(
                    conceal(
                        _make_outcome(run_file, row, depth, f"{file}, query {row['query_id']!r}"),
                        own_ids,
                    )
                )
                for row in untraced.values()
            )
            try:
                folder.replace_outcomes(chain(traced_lines, lines))
            except DataError:
                if is_new:
                    files.remove(path)
                raise
            score(path, task, folder.outcomes)
    return path


def slugify(text: str) -> str:
    """Reduce a text to characters that may be part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-.")[:60]


def read_trajectories(path: Path, environment: Environment) -> Iterator[tuple[int, JsonObject]]:
    """Yield (line number, row in our own form) of every trajectory; "mapped": whether searches
    name their documents.
    """
    queries = environment.queries_by_id
    first_lines: dict[str, int] = {}
    for number, line in raw_files.read_lines(path):
        try:
            row = schemas.parse_json_exact(JsonObject, line)
            mapped = True
            if str(row.get("schema_version", "")).startswith("ATIF"):
                row, mapped = atif.convert_atif(row, queries, environment.documents)
            row = _check_line(row, queries, environment) | {"mapped": mapped}
            if (query_id := row["query_id"]) in first_lines:
                raise ValueError(f"query {query_id!r} is in line {first_lines[query_id]} already")
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}") from None
        first_lines[query_id] = number
        yield number, row


def _check_line(
    row: JsonObject, queries: Mapping[str, Query], environment: Environment
) -> JsonObject:
    if isinstance(row.get("trace"), dict):
        row = row["trace"] | row
    schemas.validate(ImportedLine, row)
    if row["query_id"] not in queries:
        split = f"the {environment.split} split of {environment.task}"
        alike = document_ids.suggest(row["query_id"], queries)
        raise ValueError(f"query {row['query_id']!r} is not in {split}{alike}")
    query = queries[row["query_id"]]
    steps = [
        _make_step(step_row, query, environment, number)
        for number, step_row in enumerate(row["steps"], start=1)
    ]
    usage = _make_usage(row["usage"]) if row.get("usage") else None
    if "usage" not in row and any("usage" in step_row for step_row in row["steps"]):
        usage = total(step.usage for step in steps)
    return row | {"steps": steps, "usage": usage}


def _make_step(row: JsonMapping, query: Query, environment: Environment, number: int) -> Step:
    """Make a step; a document that is read is shown whole, unless the row has `shown`.

    ValueError for documents that its query cannot have.
    """
    try:
        # A document may be in a step twice.
        doc_ids = row.get("doc_ids", [])
        run_folder.check_ranking(list(dict.fromkeys(doc_ids)), query, environment.documents)
        shown, lengths = _shown_and_lengths(row, environment)
        return schemas.build_dataclass(
            Step,
            {
                **row,
                "doc_ids": doc_ids,
                "shown": shown,
                "lengths": lengths if shown else [],
                "usage": _make_usage(row["usage"]) if row.get("usage") else Usage(),
            },
        )
    except ValueError as error:
        raise ValueError(f"step {row.get('step_id', number)}: {error}") from None


def _shown_and_lengths(row: JsonMapping, environment: Environment) -> tuple[list[int], list[int]]:
    """Return the characters that were shown of each document, and those that it has."""
    doc_ids = row.get("doc_ids", [])
    shown = row.get("shown", [])
    lengths = row.get("lengths", [])
    reads = row["tool"] in ("read", "judge")
    if (shown or reads) and not lengths:
        lengths = [len(environment.documents[doc_id].text) for doc_id in doc_ids]
    if reads and not shown:
        shown = lengths
    if any(characters > length for characters, length in zip(shown, lengths, strict=False)):
        raise ValueError("'shown' is more of a document than there is")
    return shown, lengths


def _make_usage(row: JsonMapping) -> Usage:
    return usage_from_json(
        {name: row.get(name, 0 if name == "repairs" else None) for name in _Usage.__annotations__}
    )


def _make_outcome(file: RunFile, row: JsonObject, depth: int, place: str) -> run_folder.Outcome:
    """Return the outcome of a row. DataError, with the `place` of the row, if it cannot be one."""
    steps = row["steps"]
    told: JsonObject = {"notes": [step.argument for step in steps if step.tool == "note"]}
    told |= {key: row[key] for key in _TOLD if key in row}
    try:
        doc_ids, scores = _find_ranking(file, row)
        outcome: run_folder.Outcome = {
            "query_id": row["query_id"],
            "ranking": doc_ids[:depth],
            "scores": scores[:depth],
            "answer": row.get("answer") or "",
            "trace": trace_json(Trace(row["query_id"], steps, **told)),
            # A price that is not known is None; config.json says whether the numbers of tokens are
            # known.
            "usage": usage_json(row.get("usage") or Usage(paid_usd=None, list_usd=None)),
            "error": row.get("error"),
            "seconds": row.get("seconds"),
        }
        run_folder.check_new_outcome(outcome)
    except ValueError as error:
        raise DataError(f"{place}: {error}") from None
    return outcome


def _find_ranking(file: RunFile, row: JsonObject) -> tuple[list[str], list[float]]:
    """Return a query's ranking and scores. ValueError if the row contradicts the run file."""
    query_id = row["query_id"]
    doc_ids, scores, _ = file.ranking(query_id)
    if row.get("ranking", doc_ids) != doc_ids:
        raise ValueError(f"its ranking of query {query_id!r} is not that of {file.path}")
    own_scores = row.get("scores")
    if row.get("error") is not None and doc_ids:
        raise ValueError(
            f"it has an error for query {query_id!r}, of which {file.path} has a ranking"
        )
    return doc_ids, own_scores or scores


def _count(file: RunFile, row: JsonObject, depth: int, counts: Counter[str]) -> None:
    steps = row["steps"]
    ranking = file.ranking(row["query_id"])
    length = len(ranking.doc_ids)
    searches = any(step.tool == "search" for step in steps)
    counts["tied"] += ranking.is_tied and not row.get("scores")
    counts["missing"] += not length and row.get("error") is None
    counts["longer"] += length > depth
    counts["unmapped"] += not row.get("mapped", True)
    counts["unpriced"] += row.get("usage") is None
    counts["unshown"] += searches and not any(step.shown for step in steps)


def _make_notes(counts: Counter[str], environment: Environment, left_out: int) -> list[str]:
    query_count = len(environment.queries)
    untraced = query_count - counts["traced"] - counts["unmapped"]
    notes = [
        (
            counts["missing"],
            "queries are not in the run file: they count 0, and trec_eval leaves them out",
        ),
        (
            counts["tied"],
            "queries have equal scores, in trec_eval's order: by document id, last first",
        ),
        (
            counts["longer"],
            f"rankings are longer than the task's {environment.depth}, and are cut there",
        ),
        (untraced if untraced < query_count else 0, "queries have no trajectory"),
        (
            counts["unmapped"],
            "trajectories do not say what their searches found, so their steps are left out",
        ),
        (
            counts["unshown"],
            "trajectories do not say what was shown of what searches found: as if nothing was",
        ),
    ]
    sentences = [f"{count} of {query_count} {remark}" for count, remark in notes if count]
    if left_out:
        answered = plural(left_out, "query of the run file has", "queries of the run file have")
        sentences.append(f"{answered} no judgement: left out, as trec_eval does")
    return sentences


def make_config(
    environment: Environment, name: str, model: str, imported: JsonObject
) -> run_folder.Config:
    """Make config.json; unknown values of an imported run are "unknown" there."""
    return {
        "task": environment.task,
        "data": "folder" if environment.folder else environment.data,
        "compiled": None,
        "pool": None,
        "max_p": environment.max_p,
        "instruction": "ours",
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
        run_folder.PROVENANCE: {"compiled": None, **data_origin(environment)},
    }


def say_of(file: Path, message: str, folder: Path) -> str:
    """Return a message about files in a temporary `folder` as a message about the user's `file`,
    of which they were made.
    """
    text = re.sub(rf"{re.escape(str(folder))}[^\s,:;]*(?:, line \d+)?", str(file), message)
    return text if str(file) in text else f"{file}: {text}"
