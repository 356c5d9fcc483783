"""The page's data as JSON: the runs, one run, one query of a run. Made on request, from run folders alone.

One query is page_query.py's. Left out: the server and the file that carry the answers (page_server.py, page_file.py),
and everything that is drawn of them (page/).
"""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from evals import folder as run_folder
from evals.measuring import bounds, scored
from evals.measuring.attribution import WORDS
from evals.showing.page_query import Answer, Opened, Texts, describe_query, plain_json
from tools.errors import DataError, SextantError


class NoSuchAnswer(DataError):
    """There is no such run, query or answer."""


@dataclass(frozen=True)
class _Entry:
    """A run folder, and what came of reading it."""

    run_id: str
    path: Path
    stamp: tuple[Any, ...]
    opened: Opened | None
    why: str


class Answers:
    """The answers to the page's requests, by path: runs.json, run/ID.json, run/ID/query/QUERY.json."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        exported: bool = False,
        texts: bool = True,
        chosen: Callable[[Sequence[str]], Sequence[str]] = lambda query_ids: query_ids,
    ) -> None:
        """`chosen` says which of a run's queries there are; an `exported` answer waits for the corpus.

        Without `texts` there are none of documents. DataError for a path without a run.
        """
        self._paths = list(paths)
        self._exported = exported
        self._chosen = chosen
        self._texts = Texts(wait=exported, documents=texts)
        self._lock = threading.Lock()
        self._ids: dict[Path, str] = {}  # once given, the id of a folder stays
        self._known: dict[str, _Entry] = {}
        scored.find_folders(self._paths)
        self._scan()

    def __call__(self, path: str) -> bytes:
        """The answer at `path`, as the browser wrote it. NoSuchAnswer where there is none."""
        if path == "runs.json":
            return self.runs()
        if found := re.fullmatch(r"run/(.*?)(?:/query/(.*))?\.json", path, re.DOTALL):
            run_id, query = found.groups()
            return self.run(run_id) if query is None else self.query(run_id, unquote(query))
        raise NoSuchAnswer(f"there is no {_brief(path)}")

    @property
    def _readable(self) -> dict[str, Opened]:
        return {entry.run_id: entry.opened for entry in self._known.values() if entry.opened}

    @property
    def run_ids(self) -> list[str]:
        """The runs that can be opened."""
        return list(self._readable)

    @property
    def unreadable(self) -> list[tuple[Path, str]]:
        """The run folders that cannot be opened, and why."""
        return [(entry.path, entry.why) for entry in self._known.values() if not entry.opened]

    @property
    def places(self) -> dict[str, str]:
        """Absolute path of a run or its data -> the name for it in an exported page."""
        runs = {run_id: opened.run for run_id, opened in self._readable.items()}
        named = {str(run.path): run_id for run_id, run in runs.items() if run.path.is_absolute()}
        folders = [run.config[run_folder.PROVENANCE]["folder"] for run in runs.values()]
        return named | {folder: Path(folder).name for folder in folders if folder and Path(folder).is_absolute()}

    def query_ids(self, run_id: str) -> list[str]:
        """The queries of a run, as the page names them."""
        return list(self._open(run_id).named)

    def runs(self) -> bytes:
        """The list of runs as it is now."""
        self._scan()
        unreadable = [] if self._exported else self.unreadable
        return plain_json(
            {
                "title": ", ".join(dict.fromkeys(path.resolve().name or "runs" for path in self._paths)),
                "exported": self._exported,
                "runs": [_summarize(run_id, opened) for run_id, opened in self._readable.items()],
                "unreadable": [{"path": str(path), "why": why} for path, why in unreadable],
                "fates": {fate.value: words for fate, words in WORDS.items()},
            }
        )

    def run(self, run_id: str) -> bytes:
        """One run: its configuration and scores, and a value of every metric and the fates for each query."""
        opened = self._open(run_id)
        answer = plain_json(self._describe_run(run_id, opened))
        if not self._exported:  # its queries are what is looked at next
            threading.Thread(target=self._prepare, args=(opened,), daemon=True).start()
        return answer

    def _prepare(self, opened: Opened) -> None:
        self._texts.load(opened.run.config)
        with suppress(SextantError, OSError):  # said when a query is asked for
            len(opened.outcomes)

    def _describe_run(self, run_id: str, opened: Opened) -> Answer:
        run, query_ids, judged = opened.run, opened.query_ids, opened.judged
        others = {name: one.run for name, one in self._readable.items() if name != run_id}
        return {
            "id": run_id,
            "config": run.config,
            "scores": run.scores | {"notes": _notes(opened)},
            "query_ids": query_ids,
            "texts": [judged.texts.get(query_id, "") for query_id in query_ids],
            "values": {name: [column[query_id] for query_id in query_ids] for name, column in run.columns.items()},
            "errors": {query_id: run.errors[query_id] for query_id in query_ids if query_id in run.errors},
            "fates": None if judged.why else [judged.fates[query_id] for query_id in query_ids],
            "why_no_fates": judged.why,
            "bounds": [
                {"label": label, "mean": mean, "what": what}
                for label, mean, what in bounds.among(run, others.values(), run.metric).lines
            ],
            "siblings": [name for name, other in others.items() if other.contract == run.contract],
        }

    def query(self, run_id: str, name: str) -> bytes:
        """One query of a run: what was asked, what was done, what became of the relevant documents."""
        opened = self._open(run_id)
        query_id = opened.named.get(name)
        if query_id is None:
            raise NoSuchAnswer(f"{run_id} has no query {_brief(name)}")
        try:
            answer = describe_query(opened, query_id)
            return plain_json(answer | self._texts.of(opened.run.config, answer))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as problem:
            raise DataError(
                f"what {run_id} holds of query {_brief(name)} is damaged ({type(problem).__name__}: {problem}); "
                "remove its line in outcomes.jsonl and give the run's command again"
            ) from None

    def _open(self, run_id: str) -> Opened:
        """A run as it is on disk now."""
        with self._lock:
            entry = self._known.get(run_id)
            if entry and entry.stamp != _stamp(entry.path):
                entry = self._known[run_id] = self._read(run_id, entry.path)
        if entry is None:
            raise NoSuchAnswer(f"there is no run {_brief(run_id)}")
        if entry.opened is None:
            raise DataError(entry.why)
        return entry.opened

    def _scan(self) -> None:
        """Look for runs that are new, changed or gone."""
        with self._lock:
            known: dict[str, _Entry] = {}
            for given in self._paths:
                folders = list[Path]()
                with suppress(DataError, OSError):  # it was there when the page was opened
                    folders = scored.find_folders([given])
                for path in folders:
                    run_id = self._id(given, path)
                    entry = self._known.get(run_id)
                    if entry is None or entry.stamp != _stamp(path):
                        entry = self._read(run_id, path)
                    known.setdefault(run_id, entry)
            self._known = known

    def _read(self, run_id: str, path: Path) -> _Entry:
        stamp = _stamp(path)  # before reading: what changes meanwhile is read again
        try:
            run = _read_run(path)
        except (SextantError, OSError) as problem:
            return _Entry(run_id, path, stamp, None, str(problem))
        return _Entry(run_id, path, stamp, Opened(run, list(self._chosen(run.query_ids))), "")

    def _id(self, given: Path, path: Path) -> str:
        """How links name a run folder: its place below `given`, in letters that need no escape anywhere."""
        place = path.resolve()
        if place not in self._ids:
            below = path.relative_to(given).parts or place.parts[-2:]
            name = "/".join(_segment(part) for part in below if part != place.anchor)
            taken, free, number = set(self._ids.values()), name, 2
            while free in taken:
                free, number = f"{name}~{number}", number + 1
            self._ids[place] = free
        return self._ids[place]


def _summarize(run_id: str, opened: Opened) -> Answer:
    """A run's row in the table of runs."""
    run, scores = opened.run, opened.run.scores
    kept = ("task", "data", "split", "judgements", "program", "retriever", "lm")
    return {
        "id": run_id,
        **{key: scores.get(key) for key in (*kept, "compiled", "pool")},
        "metric": run.metric,
        "contract": hashlib.sha256(plain_json(run.contract)).hexdigest()[:8],
        "queries": scores["queries"],
        "failed": scores["failed"],
        "metrics": {
            name: {key: value.get(key) for key in ("mean", "low", "high")} for name, value in scores["metrics"].items()
        },
        "usage": scores["usage"],
        "losses": scores.get("losses"),
        "notes": _notes(opened),
        "mini": scores["data"] == "mini",
        "imported": bool(run.config.get("imported")),
    }


def _notes(opened: Opened) -> list[str]:
    notes = list(opened.run.scores.get("notes") or ())
    here, asked = len(opened.query_ids), len(opened.run.query_ids)
    if here < asked:
        notes.append(f"this file has {here} of the {asked} queries; means and losses are over all of them")
    return notes


def _stamp(path: Path) -> tuple[Any, ...]:
    """The state of a run's files; another one when one of them changes."""
    states = list[tuple[int, ...] | None]()
    for name in ("config.json", "scores.json", "scores.csv", "attribution.jsonl", "outcomes.jsonl"):
        try:
            status = (path / name).stat()
            states.append((status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        except OSError:
            states.append(None)
    return tuple(states)


def _read_run(path: Path) -> scored.Run:
    """`scored.read`, but without loading the corpus to count the queries that a run without scores lacks."""
    if not (path / "scores.json").is_file() or not (path / "scores.csv").is_file():
        run_folder.read_config(path)
        answered = len(run_folder.read_outcomes(path, skim=True))
        raise DataError(
            f"{answered} queries are answered, and there are no scores: it is unfinished, or was not scored; "
            f"give its command again, or python -m evals.score {path}"
        )
    return scored.read(path)


def address(run_id: str, name: str) -> str:
    """The path of the answer for query `name` of a run, as the browser writes it."""
    return f"run/{run_id}/query/{quote(name, safe=_UNESCAPED)}.json"


_UNESCAPED = "!'()*"  # by encodeURIComponent, beside what `quote` leaves alone too


def _segment(part: str) -> str:
    """A folder's name as a part of a run's id; words that links have a meaning for are not used."""
    kept = re.sub(r"[^A-Za-z0-9._~-]+", "-", part)
    return f"{kept}-" if kept in ("q", "s", "query") else kept


def _brief(text: str, most: int = 200) -> str:
    return repr(text if len(text) <= most else f"{text[:most]}...")


def list_answers(answers: Answers) -> Iterator[tuple[str, bytes]]:
    """Every answer with its path, one after the other."""
    yield "runs.json", answers.runs()
    for run_id in answers.run_ids:
        yield f"run/{run_id}.json", answers.run(run_id)
        for name in answers.query_ids(run_id):
            yield address(run_id, name), answers.query(run_id, name)
