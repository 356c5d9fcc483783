"""What the page asks for, as JSON: the runs, one run, one query of a run. Made when asked for, from run folders alone.

A run of 10,000 trajectories opens at once because nothing of it is read that is not looked at: outcomes are found by
where their lines begin. Texts of documents are there where the corpus is; without it there are their ids. Left out: the
server and the file that carry the answers (evals/view.py), and everything that is drawn of them (evals/page/).
"""

import hashlib
import json
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import orjson

from evals import folder as run_folder
from evals import seal
from evals.forms import JudgedForm
from evals.measuring import bounds, scored
from evals.measuring.attribution import WORDS, fate_at
from tools import disk, forms
from tools.errors import DataError, SextantError

if TYPE_CHECKING:
    from tools.corpus import Corpus
    from tools.records import Query

# The page's program is these files of evals/page/, one after the other.
SCRIPTS = (
    "dom.js",
    "data.js",
    "words.js",
    "charts.js",
    "lists.js",
    "trajectory.js",
    "overview.js",
    "run.js",
    "query.js",
    "compare.js",
    "main.js",
)

BEGINNING = 200  # characters of a query's text in a list
TEXT = 600  # characters of a document
RANKED = 100  # documents of a ranking
NAMED = 20  # of a ranking or a search: those whose texts are sent
PATIENCE = 0.7  # seconds that an answer waits for a corpus; later ones have its texts

READING = "the corpus is still being read; the texts come in a moment"

Answer = dict[str, Any]


class NoSuchAnswer(DataError):
    """A run, a query or an answer that there is not."""


class Answers:
    """Every answer that the page may ask for, by its path: runs.json, run/ID.json, run/ID/query/QUERY.json."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        exported: bool = False,
        texts: bool = True,
        chosen: Callable[[Sequence[str]], Sequence[str]] = lambda query_ids: query_ids,
    ) -> None:
        """`chosen` says which of a run's queries there are; an `exported` answer waits for the corpus.

        Without `texts` there are none of documents.
        """
        self._paths = list(paths)
        self._exported = exported
        self._with_texts = texts
        self._chosen = chosen
        self._corpora = _Corpora(None if exported else PATIENCE)
        self._lock = threading.Lock()
        self._ids: dict[Path, str] = {}  # once given, the id of a folder stays
        self._known: dict[str, _Entry] = {}
        scored.folders(self._paths)  # DataError for a path without a run
        self._scan()

    def __call__(self, path: str) -> bytes:
        """The answer at `path`, as the browser wrote it. NoSuchAnswer where there is none."""
        name, ended = path.removesuffix(".json"), path.endswith(".json")
        if ended and name == "runs":
            return self.runs()
        if ended and name.startswith("run/"):
            run_id, asked, query = name.removeprefix("run/").partition("/query/")
            return self.query(run_id, unquote(query)) if asked else self.run(run_id)
        raise NoSuchAnswer(f"there is no {_brief(path)}")

    @property
    def run_ids(self) -> list[str]:
        """The runs that can be opened."""
        return [entry.run_id for entry in self._known.values() if entry.opened]

    @property
    def unreadable(self) -> list[tuple[Path, str]]:
        """The run folders that cannot be, and why."""
        return [(entry.path, entry.why) for entry in self._known.values() if not entry.opened]

    @property
    def places(self) -> dict[str, str]:
        """Where runs and their data lie on this machine -> what to call that elsewhere."""
        entries = [entry for entry in self._known.values() if entry.opened]
        named = {str(entry.path): entry.run_id for entry in entries if entry.path.is_absolute()}
        folders = [entry.opened.run.config[run_folder.PROVENANCE]["folder"] for entry in entries if entry.opened]
        return named | {folder: Path(folder).name for folder in folders if folder and Path(folder).is_absolute()}

    def query_ids(self, run_id: str) -> list[str]:
        """The queries of a run, as the page names them."""
        return list(self._opened(run_id).named)

    def runs(self) -> bytes:
        """The runs that there are now."""
        self._scan()
        unreadable = [] if self._exported else self.unreadable
        return plain_json(
            {
                "title": ", ".join(dict.fromkeys(path.resolve().name or "runs" for path in self._paths)),
                "exported": self._exported,
                "runs": [_summary(entry.run_id, entry.opened) for entry in self._known.values() if entry.opened],
                "unreadable": [{"path": str(path), "why": why} for path, why in unreadable],
                "fates": {fate.value: words for fate, words in WORDS.items()},
            }
        )

    def run(self, run_id: str) -> bytes:
        """One run: its configuration and scores, and a value of every metric and the fates for each query."""
        opened = self._opened(run_id)
        answer = plain_json(self._run(run_id, opened))
        if not self._exported:  # its queries are what is looked at next
            threading.Thread(target=self._prepare, args=(opened,), daemon=True).start()
        return answer

    def _prepare(self, opened: "_Opened") -> None:
        self._corpora.data(opened.run.config)
        with suppress(SextantError, OSError):  # said when a query is asked for
            len(opened.outcomes)

    def _run(self, run_id: str, opened: "_Opened") -> Answer:
        run, query_ids, judged = opened.run, opened.query_ids, opened.judged
        entries = list(self._known.values())
        others = [entry.opened.run for entry in entries if entry.opened and entry.run_id != run_id]
        alike = [entry for entry in entries if entry.opened and entry.opened.run.contract == run.contract]
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
                {"label": label, "mean": one.mean, "what": one.what}
                for label, one in bounds.among(run, others, run.metric).told
            ],
            "siblings": [entry.run_id for entry in alike if entry.run_id != run_id],
        }

    def query(self, run_id: str, name: str) -> bytes:
        """One query of a run: what was asked, what was done, what became of the relevant documents."""
        opened = self._opened(run_id)
        query_id = opened.named.get(name)
        if query_id is None:
            raise NoSuchAnswer(f"{run_id} has no query {_brief(name)}")
        try:
            answer = _trajectory(opened, query_id)
            return plain_json(answer | self._texts(opened.run, answer))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as problem:
            raise DataError(
                f"what {run_id} holds of query {_brief(name)} is damaged ({type(problem).__name__}: {problem}); "
                "remove its line in outcomes.jsonl and give the run's command again"
            ) from None

    def _texts(self, run: scored.Run, answer: Answer) -> Answer:
        """The task's objective and the documents of an answer, or why they are not there."""
        data, why = self._corpora.data(run.config)
        if data is None:
            return {"documents": {}, "no_documents": why, "reading": why == READING}
        asked = data.queries.get(answer["query_id"])
        texts: Answer = {"objective": asked.objective, "text": answer["text"] or asked.text} if asked else {}
        if not self._with_texts:
            return texts | {"documents": {}, "no_documents": "made without the texts of documents"}
        try:
            return texts | {"documents": _documents(data.corpus, answer)}
        except SextantError as problem:  # a document that is damaged on disk
            return texts | {"documents": {}, "no_documents": str(problem)}

    def _opened(self, run_id: str) -> "_Opened":
        """A run as it is on disk now."""
        with self._lock:
            entry = self._known.get(run_id)
            if entry and entry.stamp != _stamp(entry.path):
                entry = self._known[run_id] = self._entry(run_id, entry.path)
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
                for path in _folders(given):
                    run_id = self._id(given, path)
                    entry = self._known.get(run_id)
                    if entry is None or entry.stamp != _stamp(path):
                        entry = self._entry(run_id, path)
                    known.setdefault(run_id, entry)
            self._known = known

    def _entry(self, run_id: str, path: Path) -> "_Entry":
        stamp = _stamp(path)  # before reading: what changes meanwhile is read again
        try:
            run = _read(path)
        except (SextantError, OSError) as problem:
            return _Entry(run_id, path, stamp, None, str(problem))
        return _Entry(run_id, path, stamp, _Opened(run, list(self._chosen(run.query_ids))), "")

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


@dataclass(frozen=True)
class _Entry:
    """A run folder, and what came of reading it."""

    run_id: str
    path: Path
    stamp: tuple[Any, ...]
    opened: "_Opened | None"
    why: str


@dataclass(frozen=True)
class _Opened:
    """A run with the queries of it that there are."""

    run: scored.Run
    query_ids: list[str]

    @cached_property
    def named(self) -> dict[str, str]:
        """What the page calls a query -> its id."""
        return {well_formed(query_id): query_id for query_id in self.query_ids}

    @cached_property
    def outcomes(self) -> run_folder.Rows:
        """query_id -> its line of outcomes.jsonl, without having read the others."""
        return run_folder.read_outcomes(self.run.path, skim=True)

    @cached_property
    def judged(self) -> "_Judged":
        """What attribution.jsonl has."""
        return _judged(self.run)


@dataclass
class _Judged:
    """What attribution.jsonl has for all queries of a run."""

    texts: dict[str, str] = field(default_factory=dict)  # the beginning of each
    fates: dict[str, list[str]] = field(default_factory=dict)  # of the relevant documents, at the headline cutoff
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    why: str = ""  # there are no fates


def _judged(run: scored.Run) -> _Judged:
    """All of it in one pass."""
    path, losses, made = run.path / "attribution.jsonl", run.scores.get("losses"), _Judged()
    mend = f"python -m evals.score {run.path} scores it again"
    starts, start = dict[str, int](), 0
    cutoff = losses["cutoff"] if losses else 0
    try:
        seal.check_file(path, run.scores)
        for line in disk.lines(path):
            row = forms.read(JudgedForm, line)
            query_id = row["query_id"]
            starts[query_id], start = start, start + len(line)
            made.texts[query_id] = row.get("text", "")[:BEGINNING]
            made.fates[query_id] = [fate_at(one, cutoff).value for one in row["relevant"]]
    except (ValueError, OSError) as error:
        return _Judged(why=f"attribution.jsonl is damaged ({error}); {mend}")
    made.rows = run_folder.Rows(path, starts)
    if not losses or any(query_id not in starts for query_id in run.query_ids):
        made.why = f"an earlier version scored this run, and did not say what became of documents; {mend}"
    return made


def _summary(run_id: str, opened: _Opened) -> Answer:
    """What the table of runs has of one."""
    run, scores = opened.run, opened.run.scores
    kept = {key: scores.get(key) for key in ("task", "data", "split", "judgements", "program", "retriever", "lm")}
    metrics = {
        name: {key: value.get(key) for key in ("mean", "low", "high")} for name, value in scores["metrics"].items()
    }
    return {
        "id": run_id,
        **kept,
        "compiled": scores.get("compiled"),
        "pool": scores.get("pool"),
        "metric": run.metric,
        "contract": hashlib.sha256(plain_json(run.contract)).hexdigest()[:8],
        "queries": scores["queries"],
        "failed": scores["failed"],
        "metrics": metrics,
        "usage": scores["usage"],
        "losses": scores.get("losses"),
        "notes": _notes(opened),
        "mini": scores["data"] == "mini",
        "imported": bool(run.config.get("imported")),
    }


def _notes(opened: _Opened) -> list[str]:
    notes = list(opened.run.scores.get("notes") or ())
    here, asked = len(opened.query_ids), len(opened.run.query_ids)
    if here < asked:
        notes.append(f"this file has {here} of the {asked} queries; means and losses are over all of them")
    return notes


def _trajectory(opened: _Opened, query_id: str) -> Answer:
    """All that the run folder has of a query."""
    run, judged, outcome = opened.run, opened.judged, opened.outcomes[query_id]
    row = judged.rows.get(query_id, {})
    cutoff = 0 if judged.why else run.scores["losses"]["cutoff"]
    trace = outcome["trace"]
    return {
        "query_id": query_id,
        "text": row.get("text", ""),
        "objective": "",
        "grades": row.get("grades", {}),
        "relevant": [one | {"fate": fate_at(one, cutoff).value} for one in row.get("relevant", [])] if cutoff else [],
        "units": row.get("units", {}),
        "values": {name: column[query_id] for name, column in run.columns.items()},
        "answer": outcome.get("answer", ""),
        "error": outcome["error"],
        "traceback": outcome.get("traceback", ""),
        "seconds": outcome.get("seconds"),
        "usage": outcome["usage"],
        "ranking": outcome["ranking"][:RANKED],
        "ranked": len(outcome["ranking"]),
        "scores": (outcome.get("scores") or [])[:RANKED],
        "notes": trace.get("notes", []),
        "steps": trace["steps"],
        "invented_ids": trace.get("invented_ids", 0),
        "unusable": trace.get("unusable", {}),
        "followed": trace.get("followed", {}),
    }


def _documents(corpus: "Corpus", answer: Answer) -> Answer:
    """Title and beginning of the documents that a reader wants to see: gold, shown, selected, or near a top."""
    gold = {one["unit"] for one in answer["relevant"]} | answer["grades"].keys()
    named = [*answer["grades"], *(one["doc_id"] for one in answer["relevant"]), *answer["ranking"][:NAMED]]
    for step in answer["steps"]:
        whole = step.get("shown") or step["tool"] in ("select", "drop")
        named += step["doc_ids"] if whole else step["doc_ids"][:NAMED]
    named += [doc_id for doc_id, unit in answer["units"].items() if unit in gold]
    found = {doc_id: corpus[doc_id] for doc_id in dict.fromkeys(named) if doc_id in corpus}
    return {
        doc_id: {"title": document.title, "text": document.text[:TEXT], "length": len(document.text)}
        for doc_id, document in found.items()
    }


@dataclass(frozen=True)
class _Data:
    """What a run was made on."""

    corpus: "Corpus"
    queries: "Mapping[str, Query]"


class _Corpora:
    """The data of runs, each loaded once and one at a time, in a thread so that nobody has to wait for it."""

    def __init__(self, patience: float | None) -> None:
        self._patience = patience  # seconds that an answer waits; None is for as long as it takes
        self._lock = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._loads: dict[str, Future[tuple[_Data | None, str]]] = {}

    def data(self, config: run_folder.Config) -> tuple[_Data | None, str]:
        """(the data, "") or (None, why it is not there)."""
        key = _what_data(config)
        with self._lock:
            if (load := self._loads.get(key)) is None:
                load = self._loads[key] = Future()
                threading.Thread(target=self._load, args=(config, load), daemon=True).start()
        try:
            return load.result(self._patience)
        except TimeoutError:
            return None, READING

    def _load(self, config: run_folder.Config, load: "Future[tuple[_Data | None, str]]") -> None:
        try:
            with self._one_at_a_time:
                from evals.running.configuration import environment_of

                environment = environment_of(config)
            queries = {query.query_id: query for query in environment.queries}
            load.set_result((_Data(environment.documents, queries), ""))
        except Exception as problem:  # noqa: BLE001  # whatever it is, the page works without texts
            load.set_result((None, f"no texts of documents: {problem}"))


def _what_data(config: run_folder.Config) -> str:
    """What an environment is loaded from (evals.running.configuration.environment_of)."""
    keys = ("task", "data", "data_fingerprint", "split", "asked", "instruction")
    provenance = config[run_folder.PROVENANCE]
    return json.dumps([*(config[key] for key in keys), provenance["folder"], provenance["judgements"]])


def _folders(given: Path) -> list[Path]:
    try:
        return scored.folders([given])
    except (DataError, OSError):  # it was there when the page was opened
        return []


_FILES = ("config.json", "scores.json", "scores.csv", "attribution.jsonl", "outcomes.jsonl")


def _stamp(path: Path) -> tuple[Any, ...]:
    """Another one when a file of the run is."""
    return tuple(_file_stamp(path / name) for name in _FILES)


def _file_stamp(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read(path: Path) -> scored.Run:
    """`scored.read`, but without loading the corpus to say what a run without scores owes."""
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


_SURROGATE = re.compile("[\ud800-\udfff]")


def well_formed(text: str) -> str:
    """`text` with lone surrogates, which are in no UTF-8 and no address, written out."""
    return _SURROGATE.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def plain_json(value: Any) -> bytes:
    """JSON that every browser reads: UTF-8 and no NaN, whatever the data holds; TypeError for what is too deep."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_plain(value))


def _plain(value: Any) -> Any:
    """The same with what orjson does not write written otherwise: lone surrogates, numbers beyond 64 bits."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {well_formed(str(key)): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, int) and abs(value) >= 2**63:
        return float(value) if abs(value) < 2**1000 else str(math.inf)
    return value


def every(answers: Answers) -> Iterator[tuple[str, bytes]]:
    """Every answer with its path, one after the other."""
    yield "runs.json", answers.runs()
    for run_id in answers.run_ids:
        yield f"run/{run_id}.json", answers.run(run_id)
        for name in answers.query_ids(run_id):
            yield address(run_id, name), answers.query(run_id, name)
