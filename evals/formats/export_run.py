"""Exports: the scored run that each format is written from, and the folder that it fills.

The folder is written whole or not at all, and replaces nothing but an export: export.json and the
files that it lists.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from sextant.environments.opaque_ids import reveal
from sextant.evals.run_folder import (
    CONFIG_FILE,
    OUTCOMES_FILE,
    TREC_FILE,
    Outcome,
    check_file,
    load_environment,
)
from sextant.evals.scoring.scored_run import ScoredRun, read_scored_run
from sextant.tools import schemas
from sextant.tools.errors import DataError, UnknownName, UsageError
from sextant.tools.models.storage.ledger import NAME
from sextant.tools.models.storage.request_store import read_call
from sextant.tools.platform import files as disk
from sextant.tools.records import JsonMapping, JsonObject, Step, Usage, usage_from_json

MANIFEST = "export.json"


@dataclass(frozen=True)
class ExportedQuery:
    """A query of a run: its outcome, and how that was judged."""

    query_id: str
    outcome: Outcome
    # Its line of attribution.jsonl; empty if the run has none.
    judged: JsonMapping
    # The metrics that are defined for it.
    values: dict[str, float]
    # None if it is not known, as in many imported runs.
    usage: Usage | None

    @property
    def text(self) -> str:
        """Return the query's text; its id if the text is not known."""
        return str(self.judged.get("text", self.query_id))

    @cached_property
    def steps(self) -> list[Step]:
        """Return the steps of its session."""
        return [schemas.build_dataclass(Step, row) for row in self.outcome["trace"]["steps"]]

    @property
    def relevant(self) -> list[JsonObject]:
        """Return the documents that recall counts, each with its rank and how it was lost; best
        grade first.
        """
        keys = ("unit", "grade", "place", "lost_as")
        return [
            {key: document[key] for key in keys} for document in self.judged.get("relevant", ())
        ]

    def gold(self, doc_ids: Iterable[str]) -> dict[str, float]:
        """Return the grades above 0 of these documents."""
        units = self.judged.get("units", {})
        grades = self.judged.get("grades", {})
        return {
            doc_id: grades[units.get(doc_id, doc_id)]
            for doc_id in doc_ids
            if units.get(doc_id, doc_id) in grades
        }


@dataclass(frozen=True)
class ExportedRun:
    """A run, or some of its queries, to be written in another format."""

    run: ScoredRun
    # In the order of the split.
    query_ids: list[str]
    # Whether the run says what became of its documents.
    has_judged: bool
    # The file of the model calls that are exported with their prompts; None for none.
    answers: Path | None = None

    @cached_property
    def release_ids(self) -> Mapping[str, str]:
        """The release's ids of documents, if programs saw others; DataError without the data."""
        if not self.run.scores.get("opaque_ids"):
            return {}
        return load_environment(self.run.config).release_ids

    @property
    def model(self) -> str:
        """Return the model's name; "" if there was none, or it is not known."""
        name = str(self.run.config["lm"]["name"])
        return "" if name in ("offline", "unknown") else name

    def calls(self, keys: Iterable[str]) -> list[JsonObject]:
        """Return the model calls with these keys whose prompts are kept, as read_call has
        them; "said" are messages.
        """
        calls = [read_call(self.answers, key) for key in keys] if self.answers else []
        with_prompts = [call for call in calls if call and call["messages"] is not None]
        for call in with_prompts:
            call["said"] = [
                output if isinstance(output, dict) else {"content": output}
                for output in call["outputs"]
            ]
        return list(reveal(with_prompts, self.release_ids))

    @property
    def notes(self) -> list[str]:
        """Return a note on the prompts in an export that has them."""
        return (
            [
                "prompts and answers of models are in it, with documents' texts; --no-prompts "
                "leaves them out"
            ]
            if self.answers and self.model and self.answers.is_file()
            else []
        )

    def __iter__(self) -> Iterator[ExportedQuery]:  # one at a time: a run may be larger than memory
        run = self.run
        judged = self.run.judged if self.has_judged else {}
        for query_id in self.query_ids:
            outcome = reveal(run.outcomes[query_id], self.release_ids)
            values = {
                name: value
                for name, column in run.columns.items()
                if (value := column[query_id]) is not None
            }
            usage = usage_from_json(outcome["usage"]) if run.usage_known else None
            yield ExportedQuery(
                query_id,
                outcome,
                reveal(judged.get(query_id, {}), self.release_ids),
                values,
                usage,
            )


def select(
    path: Path, query_ids: Sequence[str], limit: int | None, *, prompts: bool
) -> tuple[ExportedRun, list[str]]:
    """Return the chosen queries of a run, and notes for the user.

    UnknownName for a query that it does not have.
    """
    run = read_scored_run(path)
    try:
        check_file(path / TREC_FILE, run.scores)
    except ValueError as error:
        raise DataError(f"{path}: {error}; sextant score {path} makes it again") from None
    if strange := [query_id for query_id in query_ids if query_id not in run.query_ids]:
        raise UnknownName(f"query of {run.path}", strange[0], run.query_ids)
    wanted = set(query_ids or run.query_ids)
    chosen = [query_id for query_id in run.query_ids if query_id in wanted]
    try:
        has_judged = run.judged is not None
        notes = []
    except DataError as missing:
        has_judged = False
        notes = [f"without judgements and gold marks: {missing}"]
    return ExportedRun(
        run, chosen[:limit], has_judged, path.resolve().parents[1] / NAME if prompts else None
    ), notes


def compact(row: Any) -> str:
    """Write JSON in a line, of well-formed text: a lone surrogate, which no other tool reads,
    becomes U+FFFD.
    """
    try:
        return orjson.dumps(row).decode()
    except TypeError:  # lone surrogates, numbers beyond 64 bits
        return (
            json.dumps(row, ensure_ascii=False, separators=(",", ":"))
            .encode("utf-16", "surrogatepass")
            .decode("utf-16", "replace")
        )


def name_file(identifier: str) -> str:
    """Return a file's name for any id: its harmless part, and a digest if that is not all of it."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", identifier)[:80].lstrip(".")
    digest = sha256(identifier.encode(errors="surrogatepass")).hexdigest()[:12]
    return plain if plain == identifier else f"{plain}-{digest}"


@contextmanager
def fill_folder(path: Path, *, force: bool) -> Iterator[Path]:
    """Yield an empty folder, which takes the name `path` when the block ends without an exception.

    UsageError if `path` holds something else; with `force` that stays, but for files of the same
    names.
    """
    path = path.resolve()
    replaceable = _is_replaceable(path)
    _check_target(path, replaceable=replaceable or force)
    with ExitStack() as stack:
        try:
            disk.mkdir_private(path.parent)
            draft = stack.enter_context(disk.temporary_sibling(path, folder=True))
        except OSError as error:
            raise UsageError(
                f"{path} cannot be written: {error.strerror or error}; choose another --out"
            ) from None
        try:
            yield draft
            for name in files_in(draft):
                (draft / name).chmod(disk.PRIVATE)
                if not replaceable:
                    # Each file is replaced in a step.
                    disk.mkdir_private((path / name).parent)
                    (draft / name).replace(path / name)
            if replaceable:
                old = stack.enter_context(disk.temporary_sibling(path, folder=True))
                if path.exists():
                    path.rename(old)
                draft.rename(path)
                disk.sync(path.parent)
        except OSError as error:
            if error.filename and draft not in Path(os.fsdecode(error.filename)).parents:
                # It is about another file, such as a file of the run that cannot be read.
                raise
            raise DataError(
                f"{path} cannot be written: {error.strerror or error}; "
                f"{disk.remedy(error)}, or choose --out"
            ) from None


def _check_target(path: Path, *, replaceable: bool) -> None:
    if not replaceable:
        raise UsageError(
            f"{path} holds something that is not an export; choose another --out, or give --force"
        )
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; choose a folder as --out")
    # Also with --force.
    if (path / CONFIG_FILE).is_file() and (path / OUTCOMES_FILE).is_file():
        raise UsageError(
            f"{path} is a run folder, whose files an export would replace; choose another --out"
        )


def _is_replaceable(path: Path) -> bool:
    files = [""] if path.is_file() else files_in(path)
    try:
        return set(files) <= {
            MANIFEST,
            *(json.loads((path / MANIFEST).read_bytes())["files"] if files else ()),
        }
    except (OSError, ValueError, LookupError, TypeError):
        return False


def files_in(folder: Path) -> list[str]:
    """Return the names of all files in a folder and below, in order."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()
    )
