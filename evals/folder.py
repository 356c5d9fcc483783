"""A run folder: config.json, written once, and outcomes.jsonl, to which each query adds a line as it finishes.

A folder belongs to one configuration, and to one process at a time. Scoring is in evals/measuring/scoring.py.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from evals import seal
from tools import disk
from tools.errors import DataError, RunConflict, RunIncomplete, UsageError
from tools.records import Usage, total, usage_from_json

Config = dict[str, Any]
Outcome = dict[str, Any]  # query_id, ranking, answer, trace, usage, error, traceback, seconds

# Kept in config.json for the reader; two runs that differ only here are the same run.
PROVENANCE = "provenance"


def digest(config: Config) -> str:
    """Return the eight hex digits that identify a configuration; a run folder's name ends with them."""
    text = json.dumps(_determining(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _determining(config: Config) -> Config:
    return {key: value for key, value in config.items() if key != PROVENANCE}


def place(runs: Path, config: Config) -> Path:
    """Return the folder for a run of `config`: RUNS/<suite>-<task>/<program>-<lm>-<digest>."""
    task: str = re.sub("[/:]", "-", config["task"])
    model = re.sub(r"[^A-Za-z0-9.]+", "-", config["lm"]["name"]).strip("-")
    return runs / task / f"{config['program']}-{model}-{digest(config)}"


def check_place(runs: Path) -> None:
    """Raise UsageError when no run folder can be made in `runs`; called before any work that costs."""
    try:
        disk.make_private(runs)
        if not os.access(runs, os.W_OK | os.X_OK):
            raise PermissionError(None, "no permission to write")
    except OSError as error:
        raise UsageError(f"run folders cannot be written in {runs}: {error.strerror}; choose --runs") from None


class RunFolder:
    """An open run folder; `claim` makes one."""

    def __init__(self, path: Path, of: str, outcomes: "Rows") -> None:
        self.path = path
        self.digest = of  # of its configuration
        self.outcomes = outcomes  # of this and earlier sittings

    @property
    def usage(self) -> Usage:
        """What all queries answered so far used."""
        return total(usage(outcome) for outcome in self.outcomes.values())

    def ask_failed_again(self) -> dict[str, int]:
        """Mark failed queries to be asked again. Their outcomes stay in the file, and count until new ones follow.

        Returns a number for each query whose answers could not be used, which tells its new calls from the old.
        """
        failed = self.outcomes.drop_failed()
        if failed:
            for name in ("scores.json", "scores.csv"):
                (self.path / name).unlink(missing_ok=True)
        return {query_id: at for query_id, (error, at) in failed.items() if error.startswith("UnusableAnswer")}

    def append(self, outcome: Outcome) -> None:
        """Append one outcome; it is on disk when this returns.

        RunIncomplete when the disk is full or broken: the outcomes before it are whole, this query is pending.
        """
        path = self.path / "outcomes.jsonl"
        line = json.dumps(outcome, ensure_ascii=False).encode("utf-8", "backslashreplace")
        try:
            start = disk.append_line(path, seal.sealed(line, self.digest))
        except OSError as error:
            raise RunIncomplete(
                f"{path}: {error.strerror}; query {outcome['query_id']!r} could not be written and is pending, "
                f"the {len(self.outcomes)} before it are safe; make room"
            ) from None
        self.outcomes.add(outcome["query_id"], start)


class Rows(Mapping[str, dict[str, Any]]):
    """query_id -> row of a JSON Lines file, read on access: memory holds only where each line begins."""

    def __init__(
        self, path: Path, starts: dict[str, int], read: Callable[[bytes], dict[str, Any]] = disk.loads
    ) -> None:
        """`read` makes the row of a line; ValueError where it is damaged."""
        self._path = path
        self._starts = starts
        self._read = read

    def add(self, query_id: str, start: int) -> None:
        """Record a line that begins at byte `start`; it replaces an earlier one of the same query."""
        self._starts[query_id] = start

    def drop_failed(self) -> dict[str, tuple[str, int]]:
        """Forget failed queries, whose lines stay in the file; return the error of each and where its line begins."""
        failed = {query_id: one["error"] for query_id, one in self.items() if one["error"] is not None}
        return {query_id: (error, self._starts.pop(query_id)) for query_id, error in failed.items()}

    def __getitem__(self, query_id: str) -> dict[str, Any]:
        start = self._starts[query_id]
        with self._path.open("rb", buffering=1 << 15) as file:  # most lines at one go
            file.seek(start)
            line = file.readline()
        try:
            return self._read(line)
        except ValueError as error:
            raise DataError(f"{self._path}, query {query_id!r} is damaged ({error}); {MEND}") from None

    def __contains__(self, query_id: object) -> bool:
        return query_id in self._starts

    def __iter__(self) -> Iterator[str]:
        return iter(self._starts)

    def __len__(self) -> int:
        return len(self._starts)


@contextmanager
def claim(path: Path, config: Config) -> Iterator[RunFolder]:
    """Reserve `path` for this configuration and this process while the block runs.

    RunConflict when it holds another configuration, or when another process is writing it; UsageError
    when it cannot be written.
    """

    def busy() -> None:
        raise RunConflict(f"another process is running {path}; wait for it")

    try:
        disk.make_private(path)
        lock = disk.hold(path / ".lock", busy, disk.PRIVATE)
    except OSError as error:
        raise UsageError(f"the run folder {path} cannot be written: {error.strerror}; choose --runs") from None
    with lock:
        # Written again on resuming, because the provenance may have changed: the data may have moved.
        if not (path / "config.json").exists() or _same(path, config):
            write(path / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")
        of = digest(config)
        yield RunFolder(path, of, _outcomes(path / "outcomes.jsonl", of, repair=True))


def _same(path: Path, config: Config) -> bool:
    """Return True when `path` is a run of `config`; otherwise RunConflict names the keys that differ."""
    old, new = _determining(read_config(path, named=False)), _determining(json.loads(json.dumps(config)))
    if changed := sorted(key for key in old | new if old.get(key) != new.get(key)):
        raise RunConflict(
            f"{path} holds a run with another {', '.join(changed)}; choose another --runs, or remove that folder"
        )
    return True


def check_output(path: Path) -> None:
    """Raise UsageError where writing `path` would replace a file of a run."""
    folder = path.parent
    if path.exists() and (folder / "config.json").is_file() and (folder / "outcomes.jsonl").is_file():
        raise UsageError(f"{path} is a file of the run in {folder}; choose another place")


def read_config(path: Path, *, named: bool = True) -> Config:
    """Read the configuration of the run in `path`. DataError for none, or, if `named`, one of another name."""
    from evals import forms  # Pydantic, which --help does without

    try:
        config: Config = forms.read_file(forms.ConfigForm, path / "config.json", "remove the folder, or mend it")
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path} is not a run folder; it holds no config.json") from None
    if config["data"] != (data := config[PROVENANCE]["data"]) and config["data"] in _RELEASES | {data}:
        raise DataError(f"{path / 'config.json'} was edited: its data are {config['data']} and {data}; put it back")
    ending = _DIGEST.search(path.resolve().name)
    if named and ending and ending[1] != digest(config):
        raise DataError(
            f"{path} has the name of another configuration than config.json holds ({digest(config)}): it was edited; "
            "put it back, or run again"
        )
    return config


_RELEASES = {"mini", "full"}
_DIGEST = re.compile("-([0-9a-f]{8})$")  # at the end of a run folder's name


def read_outcomes(path: Path, *, skim: bool = False) -> Rows:
    """Read the outcomes of the queries answered so far by the run in `path`. DataError for a damaged line.

    With `skim` only the query ids are read; a line is checked on access.
    """
    return _outcomes(path / "outcomes.jsonl", digest(read_config(path, named=False)), skim=skim)


def _outcomes(path: Path, of: str, *, skim: bool = False, repair: bool = False) -> Rows:
    """Read what is on disk of the configuration `of`. A torn last line is a pending query."""
    read = partial(check_outcome, of=of)

    def query_of(line: bytes) -> str:
        named = _QUERY_ID.match(line)
        if named and (skim or seal.fits(line, of)):  # what fits its digest was checked when it was written
            return str(disk.loads(named[1]))
        return str(read(line)["query_id"])

    return read_rows(path, query_of, read=read if skim else disk.loads, repair=repair, mend=MEND)


# The runner writes the id first, so a line need not be parsed to know whose it is.
_QUERY_ID = re.compile(rb'\{"query_id": ?("(?:[^"\\]|\\.)*")')
MEND = "remove the line and give the run's command again to have that query answered again"


def check_outcome(line: bytes, of: str = "") -> Outcome:
    """Parse a line of outcomes.jsonl. ValueError for one that is malformed or was edited."""
    from evals import forms  # Pydantic, which --help does without

    outcome: Outcome = forms.read(forms.OutcomeForm, line)
    for step in outcome["trace"]["steps"]:
        told = "shown" in step or "lengths" in step
        if told and not len(step["doc_ids"]) == len(step.get("shown", ())) == len(step.get("lengths", ())):
            raise ValueError("'shown' and 'lengths' of a step are not of its documents")
    if (scores := outcome.get("scores")) and len(scores) != len(outcome["ranking"]):
        raise ValueError("'scores' are not of the documents in 'ranking'")
    if "digest" in outcome and not seal.fits(line, of):
        raise ValueError("another program has written it anew")
    return outcome


def read_rows(
    path: Path,
    query_of: Callable[[bytes], str],
    *,
    read: Callable[[bytes], dict[str, Any]] = disk.loads,
    repair: bool = False,
    mend: str = "score the run again",
) -> Rows:
    """Index the lines of a JSON Lines file by `query_of`, the last one of each query; none where there is no file.

    DataError for a line for which `query_of` raises ValueError. `read` parses a line on access.
    """
    starts, start = dict[str, int](), 0
    for number, line in enumerate(disk.lines(path, repair=repair), start=1):
        try:
            starts[query_of(line)] = start
        except ValueError as error:
            raise DataError(f"{path}, line {number} is damaged ({error}); {mend}") from None
        start += len(line)
    return Rows(path, starts, read)


_VARIES = re.compile(r"""\d+|'[^']*'|"[^"]*\"""")


def generalize(message: str) -> str:
    """Return the first line of a message with numbers and quoted names replaced, so that like messages are equal."""
    return _VARIES.sub("_", message.strip().partition("\n")[0])


def usage(outcome: Outcome) -> Usage:
    """Return the usage that an outcome records."""
    return usage_from_json(outcome["usage"])


def write(path: Path, text: str) -> None:
    """Replace a file of the folder in one step. RunIncomplete when the disk is full."""
    with writing(path) as file:
        file.write(text)


@contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """Yield a file to be written piece by piece, which replaces `path` in one step when the block ends."""
    try:
        with disk.replacing(path) as file:
            yield file
    except OSError as error:
        raise RunIncomplete(
            f"{path}: {error.strerror}; the answered queries are safe; make room and give the same command again"
        ) from None
