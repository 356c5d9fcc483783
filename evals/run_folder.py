"""A run folder: config.json, written once, and outcomes.jsonl, to which each query adds a line as
it finishes; lines of queries that finish together are written together.

A folder belongs to a single configuration, and to a single process at a time. Scoring is in
evals/scoring/score_run.py.

Digests show edits and files of another run: the last key of a line of outcomes.jsonl is a digest
over the line and its run's configuration, and scores.json has digests of the files that it was made
of. They are no signatures: anybody can make them again. Folders of old versions have none, which is
no error.
"""

import hashlib
import json
import logging
import os
import re
import zlib
from collections import Counter
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO

from sextant import environments
from sextant.environments.base import Environment
from sextant.tools import user_files
from sextant.tools.errors import (
    DataError,
    RunBusy,
    RunConflict,
    RunIncomplete,
    UsageError,
)
from sextant.tools.platform import files
from sextant.tools.records import (
    Document,
    JsonMapping,
    JsonObject,
    Query,
    Usage,
    total,
    usage_from_json,
    usage_json,
)

_LOG = logging.getLogger("sextant")

Config = JsonObject
Outcome = JsonObject  # query_id, ranking, answer, trace, usage, error, traceback, seconds

# The files of a run.
CONFIG_FILE = "config.json"
OUTCOMES_FILE = "outcomes.jsonl"  # a line a query
SCORES_FILE = "scores.json"
VALUES_FILE = "scores.csv"  # a row a query, a column a metric
JUDGED_FILE = "attribution.jsonl"  # a line a query: what became of its relevant documents
TREC_FILE = "run.trec"
# Kept in config.json for the reader; two runs that differ only here are the same run.
PROVENANCE = "provenance"
LEFT = "left.jsonl"  # usage of queries that were left pending, if no ledger has it
# The files that the program, retrievers and metrics of a user have opened, with their digests
OPENED = "opened.json"
MEND = "remove the line and give the run's command again to have that query answered again"

# The folder in RUNS that has the parts of runs which --shard made.
SHARD = re.compile(r"shard-(\d+)-of-(\d+)")
_RELEASES = {"mini", "full"}
_NAME_DIGEST = re.compile("-([0-9a-f]{8})$")  # at the end of a run folder's name
# It is written first, so a line need not be parsed for it.
_QUERY_ID = re.compile(rb'\{"query_id": ?("(?:[^"\\]|\\.)*")')
_LINES_AT_ONCE = 1 << 16  # bytes of a file that are read together: most lines in one go
_LENGTH = 16  # hex digits of a digest
_HEAD = b', "digest": "'
_TAIL = len(_HEAD) + _LENGTH + len(b'"}')


def digest(config: Config) -> str:
    """Return the eight hex digits that identify a configuration; a run folder's name ends
    with them.
    """
    return hashlib.sha256(
        json.dumps(
            {key: value for key, value in config.items() if key != PROVENANCE}, sort_keys=True
        ).encode()
    ).hexdigest()[:8]


def run_path(runs: Path, config: Config) -> Path:
    """Return the folder for a run of `config`: RUNS/<suite>-<task>/<program>-<lm>-<digest>."""
    program = re.sub(r"[^\w.+-]+", "-", config["program"])[:80]  # as the system bounds names
    model = re.sub(r"[^A-Za-z0-9.]+", "-", config["lm"]["name"]).strip("-")
    return place_of_task(runs, config["task"]) / f"{program}-{model}-{digest(config)}"


def place_of_task(runs: Path, task: str) -> Path:
    """Return the folder for all runs on a task."""
    return runs / re.sub("[/:]", "-", task)


def separate_changed(place: Callable[[Config], Path], config: Config) -> Config:
    """Return the configuration, of a run of its own if a file has changed that its program,
    retrievers or metrics opened in the run before. `place` returns the folder of a configuration.

    UsageError if it changed while that run was answering, so that nothing tells which it read.
    """
    while changed := find_changed(path := place(config), config):
        names = ", ".join(changed)
        if changed.items() <= config["files"].items():
            raise UsageError(
                f"{names} changed while {path} was answering; remove it, and run again"
            )
        _LOG.warning("%s changed since %s was answered: this is a run of its own", names, path)
        config = {**config, "files": config["files"] | changed}
    return config


def find_changed(path: Path, config: Config) -> dict[str, str]:
    """Return the digests of the files that the run in `path` opened and that have changed since."""
    top = common_folder(config[PROVENANCE].get("folders", ()))
    changed = {}
    for name, digest_then in read_opened(path).items():
        digest_now = user_files.digest(os.path.join(top, name))  # noqa: PTH118  # as it stands
        if digest_now != digest_then:
            changed[name] = digest_now
    return changed


def common_folder(folders: Sequence[str]) -> str:
    """Return the folder from which opened files are named; "" if a run has no code of its user's."""
    return os.path.commonpath(folders) if folders else ""


def read_opened(path: Path) -> dict[str, str]:
    """Return the digests of the files that the user's code of a run has opened, by their names."""
    try:
        recorded: dict[str, str] = files.loads((path / OPENED).read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DataError(f"{path / OPENED} is damaged ({error}); remove {path}") from None
    return recorded


def check_place(runs: Path) -> None:
    """Raise UsageError when no run folder can be made in `runs`."""
    try:
        files.mkdir_private(runs)
        if not os.access(runs, os.W_OK | os.X_OK):
            raise PermissionError(None, "no permission to write")
    except OSError as error:
        raise UsageError(
            f"run folders cannot be written in {runs}: {error.strerror or error}; choose --runs"
        ) from None


def check_output(path: Path) -> None:
    """Raise UsageError if writing `path` would replace a file of a run."""
    folder = path.parent
    if path.exists() and (folder / CONFIG_FILE).is_file() and (folder / OUTCOMES_FILE).is_file():
        raise UsageError(f"{path} is a file of the run in {folder}; choose another place")


def write_opened(path: Path, opened: Mapping[str, str]) -> None:
    """Write what `read_opened` reads."""
    write(path / OPENED, json.dumps(opened, indent=2, sort_keys=True) + "\n")


@dataclass(eq=False)
class JsonlIndex(Mapping[str, JsonObject]):
    """query_id -> row of a JSON Lines file, read on access: memory holds where each line begins, and its checksum.

    A line that differs from the line checked when the file was opened is refused.
    """

    path: Path
    starts: dict[str, int]
    read: Callable[[bytes], JsonObject] = (
        files.loads
    )  # makes the row of a line; ValueError where it is damaged
    checksums: dict[int, int] = field(default_factory=dict)  # where a line begins -> its CRC-32

    def __getitem__(self, query_id: str) -> JsonObject:
        [row] = self.rows([query_id])
        return row

    def rows(self, query_ids: Iterable[str]) -> Iterator[JsonObject]:
        """Yield the rows of queries, in the order of `query_ids`."""
        starts = [(query_id, self.starts[query_id]) for query_id in query_ids]
        if not starts:  # there may be no file yet
            return
        with self.path.open("rb", buffering=_LINES_AT_ONCE) as file:
            for query_id, start in starts:
                file.seek(start)
                line = file.readline()
                if self.checksums.get(start) not in (None, zlib.crc32(line)):
                    raise DataError(
                        f"{self.path}, query {query_id!r} has changed since the file was opened; "
                        "give the command again"
                    )
                try:
                    row = self.read(line)
                except ValueError as error:
                    raise DataError(
                        f"{self.path}, query {query_id!r} is damaged ({error}); {MEND}"
                    ) from None
                yield row

    def __contains__(self, query_id: object) -> bool:
        return query_id in self.starts

    def __iter__(self) -> Iterator[str]:
        return iter(self.starts)

    def __len__(self) -> int:
        return len(self.starts)


def total_usage(outcomes: Mapping[str, Outcome]) -> Usage:
    """Return the usage of all these queries."""
    return total(usage_from_json(outcome["usage"]) for outcome in outcomes.values())


@dataclass
class RunFolder:
    """An open run folder; `claim` makes it."""

    path: Path  # whole, because a program may change the working folder
    shown: Path  # as its user named it
    digest: str  # of its configuration
    outcomes: JsonlIndex  # of this and earlier sittings
    folders: Sequence[str] = ()  # of code of the user's

    @property
    def usage(self) -> Usage:
        """Usage of all queries answered so far."""
        return total_usage(self.outcomes)

    def ask_failed_again(self) -> dict[str, int]:
        """Mark failed queries to be asked again. Their outcomes stay in the file, and count until
        new outcomes follow.

        Return a number for each query whose answers were unusable, which tells its new calls
        from the old.
        """
        errors = {
            query_id: row["error"]
            for query_id, row in self.outcomes.items()
            if row["error"] is not None
        }
        starts = {query_id: self.outcomes.starts.pop(query_id) for query_id in errors}
        if errors:
            for name in (SCORES_FILE, VALUES_FILE):
                (self.path / name).unlink(missing_ok=True)
        return {
            query_id: starts[query_id]
            for query_id in errors
            if errors[query_id].startswith("UnusableAnswer")
        }

    def append(self, *outcomes: Outcome) -> None:
        """Append outcomes, and return when they are on disk.

        RunIncomplete when that is full or broken; the outcomes that were written are in `outcomes`.
        """
        if not outcomes:
            return
        self.record_opened()
        path = self.path / OUTCOMES_FILE
        starts, error = files.append_lines(
            path, (sign_line(files.encode_row(outcome), self.digest) for outcome in outcomes)
        )
        query_ids = [outcome["query_id"] for outcome in outcomes]
        self.outcomes.starts.update(zip(query_ids, starts, strict=False))
        if error:
            raise RunIncomplete(
                f"{path}: {error.strerror or error}; query {query_ids[len(starts)]!r} could not be "
                f"written and is pending, "
                f"the {len(self.outcomes)} before it are safe; {files.remedy(error)}"
            )

    def record_opened(self) -> None:
        """Record what the user's code has opened so far. A file that was opened twice, and changed in
        between, has both digests.
        """
        if not self.folders:
            return
        recorded = read_opened(self.path)
        merged = dict(recorded)
        top = common_folder(self.folders)
        for opened_path, opened_digest in user_files.list_opened(self.folders).items():
            name = os.path.relpath(opened_path, top)
            if opened_digest not in merged.setdefault(name, opened_digest):
                merged[name] += f", {opened_digest}"
        if merged != recorded:
            write_opened(self.path, merged)

    def replace_outcomes(self, rows: Iterable[bytes]) -> None:
        """Put encoded outcomes, each of another query, in the place of all that the folder has."""
        starts = {}
        end = 0
        with writing(self.outcomes.path) as file:
            for row in rows:
                starts[_read_query_id(row)] = end
                end += file.buffer.write(sign_line(row, self.digest) + b"\n")
        self.outcomes.starts = starts
        self.outcomes.checksums.clear()

    def note_left(self, query_id: str, usage: Usage) -> None:
        """Record the usage of a query that is left pending."""
        line = files.dumps({"query_id": query_id, "usage": usage_json(usage), "error": None})
        with suppress(OSError):  # it is pending all the same
            files.append_line(self.path / LEFT, line.encode())


@contextmanager
def claim(path: Path, config: Config) -> Iterator[RunFolder]:
    """Reserve `path` for this configuration and process; RunConflict or UsageError if it
    cannot be had.
    """

    def busy() -> None:
        raise RunBusy(f"another process is running {path}; wait for it")

    try:
        files.mkdir_private(path)
        lock = files.lock_file(path / ".lock", busy, files.PRIVATE)
    except OSError as error:
        raise UsageError(
            f"the run folder {path} cannot be written: {error.strerror or error}; choose --runs"
        ) from None
    with lock:
        if (path / CONFIG_FILE).exists():
            old = read_config(path, named=False)
            new = json.loads(json.dumps(config))
            if changed := sorted(
                key for key in old | new if key != PROVENANCE and old.get(key) != new.get(key)
            ):
                raise RunConflict(
                    f"{path} holds a run with another {', '.join(changed)}; "
                    "choose another --runs, or remove that folder"
                )
        # Written again on resuming: the data may have moved, and so the provenance may have
        # changed.
        write(
            path / CONFIG_FILE,
            json.dumps(
                config | {PROVENANCE: files.hide_folders(config[PROVENANCE])},
                indent=2,
                sort_keys=True,
            )
            + "\n",
        )
        yield RunFolder(
            path.absolute(),
            path,
            digest(config),
            read_outcomes(path.absolute(), repair=True),
            config.get(PROVENANCE, {}).get("folders", ()),
        )


def read_config(path: Path, *, named: bool = True) -> Config:
    """Read the configuration of the run in `path`.

    DataError for none, or, if `named`, for another name.
    """
    from sextant.evals.run_schemas import ConfigSchema  # Pydantic, which --help does without
    from sextant.tools.schemas import read_file  # the same

    try:
        config: Config = read_file(
            ConfigSchema, path / CONFIG_FILE, "remove the folder, or mend it"
        )
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path} is not a run folder; it holds no config.json") from None
    provenance = config[PROVENANCE]
    if provenance["folder"]:
        provenance["data"] = provenance["folder"] = files.find_place(provenance["folder"], path)
    if config["data"] != (data := provenance["data"]) and config["data"] in _RELEASES | {data}:
        raise DataError(
            f"{path / 'config.json'} was edited: its data are {config['data']} and {data}; put it "
            f"back"
        )
    ending = _NAME_DIGEST.search(path.resolve().name)
    if named and ending and ending[1] != digest(config):
        raise DataError(
            f"{path} has the name of another configuration than config.json holds "
            f"({digest(config)}): "
            "it was edited; put it back, or run again"
        )
    return config


def read_outcomes(path: Path, *, skim: bool = False, repair: bool = False) -> JsonlIndex:
    """Read the outcomes so far of the run in `path`.

    DataError for a damaged line; `skim` checks it on access only.
    """
    config_digest = digest(read_config(path, named=False))
    read = partial(check_outcome, config_digest=config_digest)

    def query_of(line: bytes) -> str:
        query_id = _read_query_id(line)
        # A sealed line was checked when it was written.
        if query_id and (skim or is_sealed(line, config_digest)):
            return query_id
        return str(read(line)["query_id"])

    return read_rows(
        path / OUTCOMES_FILE, query_of, read=read if skim else files.loads, repair=repair, mend=MEND
    )


def _read_query_id(line: bytes) -> str:
    """Return the query of a line of outcomes.jsonl; "" if it does not begin with it, as other
    programs may write it.
    """
    named = _QUERY_ID.match(line)
    return str(files.loads(named[1])) if named else ""


def check_outcome(line: bytes, config_digest: str = "") -> Outcome:
    """Parse a line of outcomes.jsonl. ValueError for a line that is malformed or was edited."""
    from sextant.evals.run_schemas import OutcomeSchema  # Pydantic, which --help does without
    from sextant.tools.schemas import parse_json  # the same

    outcome: Outcome = parse_json(OutcomeSchema, line)
    _check_lengths(outcome)
    if "digest" in outcome and not is_sealed(line, config_digest):
        raise ValueError("another program has written it anew")
    return outcome


def check_new_outcome(outcome: Outcome) -> None:
    """Raise ValueError for an outcome that is malformed, and so could not be read again."""
    from sextant.evals.run_schemas import OutcomeSchema  # as above
    from sextant.tools.schemas import validate  # as above

    validate(OutcomeSchema, outcome)
    _check_lengths(outcome)


def _check_lengths(outcome: Outcome) -> None:
    for step in outcome["trace"]["steps"]:
        if ("shown" in step or "lengths" in step) and not len(step["doc_ids"]) == len(
            step.get("shown", ())
        ) == len(step.get("lengths", ())):
            raise ValueError("'shown' and 'lengths' of a step are not of its documents")
    if (scores := outcome.get("scores")) and len(scores) != len(outcome["ranking"]):
        raise ValueError("'scores' are not of the documents in 'ranking'")


def read_rows(
    path: Path,
    query_of: Callable[[bytes], str],
    *,
    read: Callable[[bytes], JsonObject] = files.loads,
    repair: bool = False,
    mend: str = "score the run again",
) -> JsonlIndex:
    """Index the lines of a JSON Lines file, if it exists, by `query_of`; the last line of each
    query counts.

    DataError if `query_of` raises ValueError. `read` parses a line on access.
    """
    rows = JsonlIndex(path, {}, read)
    start = 0
    for line, query_id in files.read_lines(path, query_of, mend, repair=repair):
        rows.starts[query_id] = start
        rows.checksums[start] = zlib.crc32(line)
        start += len(line)
    return rows


def error_template(message: str) -> str:
    """Return the first line of a message with numbers and quoted names replaced, so that like
    messages are equal.
    """
    return re.sub(r"""\d+|'[^']*'|"[^"]*\"""", "_", message.strip().partition("\n")[0])


def first_error_line(error: str) -> str:
    """Return the first line of an outcome's error, and the line of a user's code that it ends
    with.
    """
    first, _, details = error.strip().partition("\n")
    return first[:300] + "".join(re.findall(r" \([^()\n]+, line \d+\)$", details))


def write(path: Path, text: str) -> None:
    """Replace a file of the folder in a single step. RunIncomplete when the disk is full."""
    with writing(path) as file:
        file.write(text)


@contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """Yield a file that replaces `path` in a single step when the block ends.

    RunIncomplete when the disk is full.
    """
    try:
        with files.replacing(path) as file:
            yield file
    except OSError as error:
        raise RunIncomplete(
            f"{path}: {error.strerror or error}; "
            f"the answered queries are safe; {files.remedy(error)} and give the same command again"
        ) from None


def sign_line(line: bytes, config_digest: str) -> bytes:
    """Return a JSON object, without a line end, with a digest as its last key."""
    over = hashlib.sha256(b"%b\n%b" % (config_digest.encode(), line)).hexdigest()[:_LENGTH]
    return line[:-1] + _HEAD + over.encode() + b'"}'


def is_sealed(line: bytes, config_digest: str) -> bool:
    """Return whether `sign_line` made a line; ValueError if it has changed since, or is of
    another run.
    """
    line = line.rstrip(b"\r\n")
    if not line[-_TAIL:].startswith(_HEAD):
        return False
    if sign_line(line[:-_TAIL] + b"}", config_digest) != line:
        raise ValueError("it was edited, or is of another run")
    return True


def file_digest(path: Path) -> str:
    """Return a run file's digest, as scores.json records it under "made_of"."""
    return files.sha256(path)[:_LENGTH]


def check_file(path: Path, scores: JsonMapping) -> None:
    """Raise ValueError if a file differs from the file that `scores` were made of or with; a
    missing file is no error.
    """
    expected = scores.get("made_of", {}).get(path.name)
    if expected is not None and path.exists() and expected != file_digest(path):
        raise ValueError(f"{path.name} has changed since the run was scored")


def seal_scores(scores: JsonObject) -> JsonObject:
    """Return the contents of scores.json with their digest."""
    plain = json.dumps(
        json.loads(json.dumps({key: value for key, value in scores.items() if key != "digest"})),
        sort_keys=True,
    )  # keys that are no text become text before they are sorted
    return scores | {"digest": hashlib.sha256(plain.encode()).hexdigest()[:_LENGTH]}


def check_scores(scores: JsonObject, config_digest: str) -> None:
    """Raise ValueError if scores.json was edited, or was made with another configuration."""
    if "digest" in scores and seal_scores(scores)["digest"] != scores["digest"]:
        raise ValueError("scores.json was edited")
    if scores.get("made_of", {}).get("config", config_digest) != config_digest:
        raise ValueError("config.json was edited after the run was scored")


class InvalidRanking(ValueError):
    """A ranking that its query cannot have; `doc_id` is the document that is wrong in it."""

    def __init__(self, doc_id: str, reason: str) -> None:
        super().__init__(f"document {doc_id!r} {reason}")
        self.doc_id = doc_id


def check_ranking(
    ranking: Sequence[str],
    query: Query,
    documents: Mapping[str, Document],
) -> None:
    """Raise InvalidRanking for a document that is there twice, not in the corpus, or not to be found
    for the query.
    """
    ranked = set(ranking)
    if len(ranked) < len(ranking):
        raise InvalidRanking(
            next(doc_id for doc_id, count in Counter(ranking).items() if count > 1),
            f"is there twice for query {query.query_id!r}",
        )
    if not documents.keys() >= ranked:
        raise InvalidRanking(
            next(doc_id for doc_id in ranking if doc_id not in documents), "is not in the corpus"
        )
    if hidden := query.excluded.intersection(ranking):
        raise InvalidRanking(
            min(hidden, key=ranking.index),
            f"is excluded for query {query.query_id!r}, so no system may find it",
        )
    if query.candidates is not None and (outside := ranked - query.candidates):
        raise InvalidRanking(
            min(outside, key=ranking.index), f"is not in the pool of query {query.query_id!r}"
        )


def load_environment(
    config: Config, qrels: str = "", relevant_from: float | None = None
) -> Environment:
    """Load the environment that a run was made in, `qrels` leading, documents relevant from a
    grade on; DataError when the data has changed.
    """
    provenance = config[PROVENANCE]
    location = provenance["folder"] or config["data"]
    if relevant_from is None:
        relevant_from = provenance.get("relevant_from")
    chosen = environments.load(
        config["task"],
        location,
        config["split"],
        qrels=qrels or provenance["judgements"],
        instruction=config["instruction"],
        columns=provenance.get("columns"),
        relevant_from=relevant_from,
    ).asking(**config["asked"])
    if chosen.fingerprint != config["data_fingerprint"]:
        raise DataError(
            f"the data of {config['task']} in {location} is not what the run was made with"
            f" ({chosen.fingerprint}, not {config['data_fingerprint']}); run again"
        )
    return chosen
