"""A run folder: config.json, written once, and outcomes.jsonl, one line a query, safe on disk as it finishes.

A folder belongs to one configuration and to one process at a time. Scores are somebody else's (evals/score.py).
"""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from tools import disk
from tools.errors import DataError, RunConflict, RunIncomplete, UsageError
from tools.records import Usage, total, usage_from_json

Config = dict[str, Any]
Outcome = dict[str, Any]  # query_id, ranking, answer, trace, usage, error, traceback, seconds

# Kept in config.json for the reader; two runs that differ only here are the same run.
PROVENANCE = "provenance"


def digest(config: Config) -> str:
    """Eight hex digits that name a configuration; the last part of a run folder's name."""
    text = json.dumps(_determining(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _determining(config: Config) -> Config:
    return {key: value for key, value in config.items() if key != PROVENANCE}


def place(runs: Path, config: Config) -> Path:
    """Where a run of `config` goes: RUNS/<suite>-<task>/<program>-<lm>-<digest>."""
    task: str = re.sub("[/:]", "-", config["task"])
    model = re.sub(r"[^A-Za-z0-9.]+", "-", config["lm"]["name"]).strip("-")
    return runs / task / f"{config['program']}-{model}-{digest(config)}"


def check_place(runs: Path) -> None:
    """UsageError when no run folder can be made in `runs`; before anything is done that costs."""
    try:
        disk.make_private(runs)
        if not os.access(runs, os.W_OK | os.X_OK):
            raise PermissionError(None, "no permission to write")
    except OSError as error:
        raise UsageError(f"run folders cannot be written in {runs}: {error.strerror}; choose --runs") from None


class RunFolder:
    """An open run folder; `claim` makes one."""

    def __init__(self, path: Path, outcomes: "Rows") -> None:
        self.path = path
        self.outcomes = outcomes  # of this and earlier sittings

    @property
    def usage(self) -> Usage:
        """What all queries answered so far used."""
        return total(usage(outcome) for outcome in self.outcomes.values())

    def ask_failed_again(self) -> dict[str, int]:
        """Have failed queries asked again. Their outcomes stay in the file, and count until others follow.

        Given back is a number for each query whose answers could not be used, which tells its new calls from the old.
        """
        failed = self.outcomes.drop_failed()
        if failed:
            for name in ("scores.json", "scores.csv"):
                (self.path / name).unlink(missing_ok=True)
        return {query_id: at for query_id, (error, at) in failed.items() if error.startswith("UnusableAnswer")}

    def append(self, outcome: Outcome) -> None:
        """Put one outcome on disk; it is safe when this returns.

        RunIncomplete when the disk is full or broken: the outcomes before it are whole, this one is owed.
        """
        path = self.path / "outcomes.jsonl"
        line = json.dumps(outcome, ensure_ascii=False).encode("utf-8", "backslashreplace")
        try:
            start = disk.append_line(path, line)
        except OSError as error:
            raise RunIncomplete(
                f"{path}: {error.strerror}; query {outcome['query_id']!r} could not be written and is still owed, "
                f"the {len(self.outcomes)} before it are safe; make room"
            ) from None
        self.outcomes.add(outcome["query_id"], start)


class Rows(Mapping[str, dict[str, Any]]):
    """query_id -> line of a JSON Lines file, read when it is asked for: memory holds only where each one begins."""

    def __init__(self, path: Path, starts: dict[str, int]) -> None:
        self._path = path
        self._starts = starts

    def add(self, query_id: str, start: int) -> None:
        """One more is in the file, from this byte on; a later one of the same query takes its place."""
        self._starts[query_id] = start

    def drop_failed(self) -> dict[str, tuple[str, int]]:
        """Forget the failures, which stay in the file: the error of each, and where its line begins."""
        failed = {query_id: one["error"] for query_id, one in self.items() if one["error"] is not None}
        return {query_id: (error, self._starts.pop(query_id)) for query_id, error in failed.items()}

    def __getitem__(self, query_id: str) -> dict[str, Any]:
        start = self._starts[query_id]
        with self._path.open("rb") as file:
            file.seek(start)
            row: dict[str, Any] = disk.loads(file.readline())
        return row

    def __contains__(self, query_id: object) -> bool:
        return query_id in self._starts

    def __iter__(self) -> Iterator[str]:
        return iter(self._starts)

    def __len__(self) -> int:
        return len(self._starts)


@contextmanager
def claim(path: Path, config: Config) -> Iterator[RunFolder]:
    """Make `path` this configuration's and this process' own while the block runs.

    RunConflict when it holds another configuration, or when another process is writing it; UsageError
    when it cannot be written.
    """
    try:
        disk.make_private(path)
        lock = disk.open_lock(path / ".lock", disk.PRIVATE)
    except OSError as error:
        raise UsageError(f"the run folder {path} cannot be written: {error.strerror}; choose --runs") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunConflict(f"another process is running {path}; wait for it") from None
        # Written again on resuming, because the provenance may have changed: the data may have moved.
        if not (path / "config.json").exists() or _same(path, config):
            write(path / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")
        yield RunFolder(path, _outcomes(path / "outcomes.jsonl", repair=True))


def _same(path: Path, config: Config) -> bool:
    """True when `path` is a run of `config`; RunConflict with the keys that differ when it is another."""
    old, new = _determining(read_config(path)), _determining(json.loads(json.dumps(config)))
    if changed := sorted(key for key in old | new if old.get(key) != new.get(key)):
        raise RunConflict(
            f"{path} holds a run with another {', '.join(changed)}; choose another --runs, or remove that folder"
        )
    return True


def check_output(path: Path) -> None:
    """UsageError where a file that is to be written would take the place of one of a run's own."""
    folder = path.parent
    if path.exists() and (folder / "config.json").is_file() and (folder / "outcomes.jsonl").is_file():
        raise UsageError(f"{path} is a file of the run in {folder}; choose another place")


def read_config(path: Path) -> Config:
    """The configuration of the run in `path`. DataError when there is none."""
    try:
        config: Config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        _check_config(config)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path} is not a run folder; it holds no config.json") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{path / 'config.json'} is damaged ({error}); remove the folder, or mend it") from None
    return config


# What scoring reads of a configuration, and the kind of each; "lm.name" is a key in a key.
_CONFIG: dict[str, type | tuple[type, ...]] = {
    "task": str,
    "data": str,
    "data_fingerprint": str,
    "split": str,
    "asked": dict,
    "asked.limit": (int, type(None)),
    "asked.query_ids": list,
    "instruction": str,
    "depth": int,
    "max_p": bool,
    "program": str,
    "parameters": dict,
    "retriever": dict,
    "retriever.name": str,
    "lm": dict,
    "lm.name": str,
    PROVENANCE: dict,
    f"{PROVENANCE}.data": str,
    f"{PROVENANCE}.folder": (str, type(None)),
    f"{PROVENANCE}.judgements": str,
}


_POOL = {"kind": str, "size": int, "of": list}


def _check_config(config: Any) -> None:
    """ValueError for what is no configuration."""
    for name, kind in _CONFIG.items():
        value = config
        for key in name.split("."):
            if not isinstance(value, dict) or key not in value:
                raise ValueError(f"there is no {name!r}")
            value = value[key]
        if not isinstance(value, kind):
            raise ValueError(f"{name!r} is of the wrong kind")
    for name in ("pool", "imported"):  # which older runs have not
        if not isinstance(config.get(name) or {}, dict):
            raise ValueError(f"{name!r} is of the wrong kind")
    if (pool := config.get("pool")) and any(not isinstance(pool.get(key), kind) for key, kind in _POOL.items()):
        raise ValueError("'pool' is of the wrong kind")
    may_be: list[tuple[Any, Any]] = [(config.get("compiled"), dict | None), (config.get("imported"), dict | None)]
    may_be += [(config["retriever"].get("with", ""), str), (config["retriever"].get("others"), dict | None)]
    if not all(isinstance(value, kind) for value, kind in may_be):
        raise ValueError("'compiled', 'imported' or 'retriever' is of the wrong kind")
    if len(config["asked"]) != 2 or not all(isinstance(query_id, str) for query_id in config["asked"]["query_ids"]):
        raise ValueError("'asked' is of the wrong kind")


def read_outcomes(path: Path) -> Rows:
    """The outcomes of the queries answered so far by the run in `path`. DataError for a line that is damaged."""
    return _outcomes(path / "outcomes.jsonl", repair=False)


def _outcomes(path: Path, *, repair: bool) -> Rows:
    """What is on disk. A torn last line is a query still owed."""
    return read_rows(
        path, repair=repair, check=_check_outcome, mend="remove the line to have that query answered again"
    )


def read_rows(
    path: Path,
    *,
    repair: bool = False,
    check: Callable[[dict[str, Any]], None] = lambda row: None,
    mend: str = "score the run again",
) -> Rows:
    """The lines of a JSON Lines file by their "query_id", the last one of each query; none where there is no file.

    DataError for a line that is damaged, or to which `check` objects with a ValueError, KeyError, TypeError or
    AttributeError.
    """
    starts, start = dict[str, int](), 0
    for number, line in enumerate(disk.lines(path, repair=repair), start=1):
        try:
            row: dict[str, Any] = disk.loads(line)
            check(row)
            starts[row["query_id"]] = start
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DataError(f"{path}, line {number} is damaged; {mend}") from None
        start += len(line)
    return Rows(path, starts)


def _check_outcome(outcome: Outcome) -> None:
    """TypeError or KeyError for a row that is no outcome."""
    for name, kind in {"query_id": str, "ranking": list, "trace": dict, "usage": dict}.items():
        if not isinstance(outcome[name], kind):
            raise TypeError(name)
    if not all(isinstance(doc_id, str) for doc_id in outcome["ranking"]):
        raise TypeError("ranking")
    if outcome["error"] is not None and not isinstance(outcome["error"], str):
        raise TypeError("error")
    _check_steps(outcome["trace"]["steps"])
    scores = outcome.get("scores") or []
    if (scores and len(scores) != len(outcome["ranking"])) or not all(isinstance(s, (int, float)) for s in scores):
        raise ValueError("scores")
    _check_usage(outcome["usage"])


def _check_steps(steps: list[dict[str, Any]]) -> None:
    """TypeError, KeyError or ValueError for what are no steps of a trace."""
    texts = [[step["tool"], step["argument"], *step["doc_ids"]] for step in steps]
    numbers = [[step.get(name, 0) for name in ("hop", "k", "started", "seconds")] for step in steps]
    numbers += [step[name] for step in steps if "shown" in step or "lengths" in step for name in ("shown", "lengths")]
    # As sets of types, of all steps together: a run has millions of ids.
    if not set(map(type, chain(*texts))) <= {str} or not set(map(type, chain(*numbers))) <= {int, float}:
        raise TypeError("steps")
    for step in steps:
        if len(step.get("shown", ())) != len(step.get("lengths", ())):
            raise ValueError("lengths")
        if "usage" in step:
            _check_usage(step["usage"])


_VARIES = re.compile(r"""\d+|'[^']*'|"[^"]*\"""")
_NUMBERS = {int, float, type(None)}


def _check_usage(row: dict[str, Any]) -> None:
    """TypeError for what is no usage; a price that nobody knows is None."""
    if not set(map(type, row.values())) <= _NUMBERS:
        raise TypeError("usage")


def alike(message: str) -> str:
    """What messages have in common that differ only in numbers and quoted names."""
    return _VARIES.sub("_", message.strip().partition("\n")[0])


def usage(outcome: Outcome) -> Usage:
    """The usage that an outcome records."""
    return usage_from_json(outcome["usage"])


def write(path: Path, text: str) -> None:
    """Replace a file of the folder in one step. RunIncomplete when the disk is full."""
    with writing(path) as file:
        file.write(text)


@contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """The same for a file that is written piece by piece."""
    try:
        with disk.replacing(path) as file:
            yield file
    except OSError as error:
        raise RunIncomplete(
            f"{path}: {error.strerror}; the answered queries are safe; make room and give the same command again"
        ) from None


def trec(query_id: str, ranking: Sequence[str], tag: str) -> str:
    """The lines of a TREC run file for one query: query, Q0, document, rank, score, tag.

    Scores fall strictly, so that no tool breaks our ties in its own way. Blanks and % in ids are
    percent-encoded: OBLIQ-Bench's math task has an id with a blank in it.
    """
    start, tails = f"{encoded(query_id)}\tQ0\t", _tails(len(ranking), tag)
    return "".join([f"{start}{doc_id}{tail}" for doc_id, tail in zip(map(encoded, ranking), tails, strict=True)])


@lru_cache(8)
def _tails(many: int, tag: str) -> list[str]:
    """What follows the documents in so many lines; rankings of a run are of few lengths."""
    return [f"\t{rank}\t{many + 1 - rank}\t{tag}\n" for rank in range(1, many + 1)]


_SPECIAL = re.compile(r"[\s%]")


@lru_cache(1 << 16)
def encoded(identifier: str) -> str:
    """An id as it stands in TREC files, which separate columns by blanks: blanks and % are percent-encoded."""
    if not _SPECIAL.search(identifier):
        return identifier
    return _SPECIAL.sub(lambda match: "".join(f"%{b:02X}" for b in match[0].encode()), identifier)
