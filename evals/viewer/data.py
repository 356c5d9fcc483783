"""The page's data as JSON, made from run folders on request: runs, a run, a query of it, a call, a
search, behaviour.

Outcomes are found by where their lines begin, so that a run of 10,000 trajectories opens at once.
Documents have their texts where the corpus is at hand, else only ids.
"""

import hashlib
import json
import re
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson

from environments.base import Environment
from evals import run_folder
from evals.run_folder import load_environment
from evals.run_schemas import FATE_LABELS, JudgedSchema
from evals.scoring import reference_runs, scored_run
from evals.scoring.attribution import fate_at
from evals.scoring.behaviour import COSTS, FIGURES, KINDS, observe_run, read_causes, summarize
from evals.viewer.text_search import find_words
from tools import files, schemas
from tools.corpus import Corpus
from tools.errors import DataError, SextantError
from tools.interrupts import start_thread
from tools.models.storage.request_store import read_call
from tools.models.storage.response_cache import NAME as ANSWERS

BEGINNING = 200  # characters of a query's text in a list
TEXT = 600  # characters of a document
RANKED = 100  # documents of a ranking
NAMED = 20  # of a ranking or a search: those whose texts are sent
PATIENCE = 0.7  # seconds that an answer waits for a corpus; later ones have its texts
READING = "the corpus is still being read; the texts come in a moment"
_IN_LINKS = ("q", "s", "query", "call", "search", "behaviour")
_SURROGATE = re.compile("[\ud800-\udfff]")

Answer = dict[str, Any]


class NotFound(DataError):
    """There is no such run, query or answer."""


class _Judged(NamedTuple):
    texts: dict[str, str]  # the beginning of each
    fates: dict[str, list[str]]  # of the relevant documents, at the headline cutoff
    rows: Mapping[str, Mapping[str, Any]]
    why: str  # there are no fates


@dataclass(frozen=True)
class _LoadedRun:
    run: scored_run.ScoredRun
    query_ids: list[str]

    @cached_property
    def named(self) -> dict[str, str]:  # what the page calls a query -> its id
        return {_well_formed(query_id): query_id for query_id in self.query_ids}

    @cached_property
    def outcomes(self) -> run_folder.JsonlIndex:
        return run_folder.read_outcomes(self.run.path, skim=True)

    @cached_property
    def judged(self) -> _Judged:
        run = self.run
        texts = dict[str, str]()
        fates = dict[str, list[str]]()
        start = 0
        path = run.path / "attribution.jsonl"
        losses = run.scores.get("losses")
        rows = run_folder.JsonlIndex(path, {})
        mend = f"python -m evals.score {run.path} scores it again"
        try:
            run_folder.check_file(path, run.scores)
            for line in files.iter_lines(path):
                row = schemas.parse_json(JudgedSchema, line)
                query_id = row["query_id"]
                rows.starts[query_id], rows.checksums[start] = start, zlib.crc32(line)
                start += len(line)
                texts[query_id] = row.get("text", "")[:BEGINNING]
                fates[query_id] = (
                    [fate_at(one, losses["cutoff"]) for one in row["relevant"]] if losses else []
                )
        except (ValueError, OSError) as error:
            return _Judged({}, {}, {}, f"attribution.jsonl is damaged ({error}); {mend}")
        known = losses and all(query_id in rows for query_id in run.query_ids)
        why = (
            f"an earlier version scored this run, and did not say what became of documents; {mend}"
        )
        return _Judged(texts, fates, rows, "" if known else why)

    @property
    def answers(self) -> Path:  # where its model calls are, if they were kept
        return self.run.path.resolve().parent.parent / ANSWERS

    @property
    def notes(self) -> list[str]:
        here = len(self.query_ids)
        of = len(self.run.query_ids)
        part = [f"this file has {here} of the {of} queries; means and losses are over all of them"]
        return (self.run.scores.get("notes") or []) + part * (here < of)


class _RunEntry(NamedTuple):
    path: Path
    stamp: dict[str, tuple[int, ...]]
    opened: _LoadedRun | None
    why: str = ""


class ViewerApi:
    """The answers to the page's requests, by path: runs.json, run/ID.json, run/ID/query/QUERY.json and so on."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        exported: bool = False,  # whether an answer waits for the corpus
        texts: bool = True,  # whether there are any of documents
        prompts: bool = True,  # whether there are model calls
        chosen: Callable[[Sequence[str]], Sequence[str]] = lambda query_ids: (
            query_ids
        ),  # of the queries of a run
    ) -> None:
        self._paths = list(paths)
        self._exported = exported
        self._chosen = chosen
        self.prompts = prompts
        self._texts = _DocumentTexts(wait=exported, documents=texts)
        self._lock = threading.Lock()
        self._ids: dict[Path, str] = {}  # once given, the id of a folder stays
        self._known: dict[str, _RunEntry] = {}  # by id
        scored_run.find_folders(self._paths)  # DataError for a path without a run
        self._scan()

    def __call__(self, path: str) -> bytes:
        """Return the answer at `path`, as the browser wrote it.

        NoSuchAnswer where there is none.
        """
        if path == "runs.json":
            return self._runs()
        if found := re.fullmatch(
            r"run/(.*?)(?:/(query|call|search|behaviour)/(.*))?\.json", path, re.DOTALL
        ):
            run_id, kind, rest = found.groups()
            if kind is None:
                return self._run(run_id)
            made = {
                "query": self._query,
                "call": self._call,
                "search": self._search,
                "behaviour": self._behaviour,
            }
            return made[kind](run_id, unquote(rest))
        raise NotFound(f"there is no {path[:200]!r}")

    @property
    def _readable(self) -> dict[str, _LoadedRun]:
        return {run_id: entry.opened for run_id, entry in self._known.items() if entry.opened}

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
        named = {str(opened.run.path): run_id for run_id, opened in self._readable.items()}
        folders = [
            opened.run.config[run_folder.PROVENANCE]["folder"] for opened in self._readable.values()
        ]
        named |= {folder: Path(folder).name for folder in folders if folder}
        return {place: name for place, name in named.items() if Path(place).is_absolute()}

    def query_ids(self, run_id: str) -> list[str]:
        """The queries of a run, as the page names them."""
        return list(self._open(run_id).named)

    def _runs(self) -> bytes:
        self._scan()
        unreadable = [] if self._exported else self.unreadable
        answer = {
            "title": ", ".join(
                dict.fromkeys(path.resolve().name or "runs" for path in self._paths)
            ),
            "exported": self._exported,
            "runs": [_summarize(run_id, opened) for run_id, opened in self._readable.items()],
            "unreadable": [{"path": str(path), "why": why} for path, why in unreadable],
            "fates": {fate.value: words for fate, words in FATE_LABELS.items()},
        }
        return plain_json(answer)

    def _run(self, run_id: str) -> bytes:
        opened = self._open(run_id)
        run = opened.run
        query_ids = opened.query_ids
        judged = opened.judged
        others = {name: one.run for name, one in self._readable.items() if name != run_id}
        bounds = reference_runs.list_bounds(
            reference_runs.references_among(run, others.values(), run.metric).json()
        )
        answer = {
            "id": run_id,
            "config": run.config,
            "scores": run.scores | {"notes": opened.notes},
            "query_ids": query_ids,
            "texts": [judged.texts.get(query_id, "") for query_id in query_ids],
            "values": {
                name: [column[query_id] for query_id in query_ids]
                for name, column in run.columns.items()
            },
            "errors": {
                query_id: run.errors[query_id] for query_id in query_ids if query_id in run.errors
            },
            "fates": None if judged.why else [judged.fates[query_id] for query_id in query_ids],
            "why_no_fates": judged.why,
            "bounds": [
                {"label": label, "mean": one["mean"], "what": one["what"]} for label, one in bounds
            ],
            "siblings": [name for name, other in others.items() if other.contract == run.contract],
        }
        if not self._exported:
            threading.Thread(target=self._prepare, args=(opened,), daemon=True).start()
        return plain_json(answer)

    def _prepare(self, opened: _LoadedRun) -> None:  # its queries are what is looked at next
        self._texts.load(opened.run.config)
        with suppress(SextantError, OSError):  # said when a query is asked for
            len(opened.outcomes)

    def _query(self, run_id: str, name: str) -> bytes:
        opened = self._open(run_id)
        query_id = opened.named.get(name)
        if query_id is None:
            raise NotFound(f"{run_id} has no query {name[:200]!r}")
        try:
            answer = _describe_query(opened, query_id)
            return plain_json(answer | self._texts.of(opened.run.config, answer))
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            IndexError,
            RecursionError,
        ) as problem:
            what = (
                f"what {run_id} holds of query {name[:200]!r} is damaged "
                f"({type(problem).__name__}: {problem})"
            )
            raise DataError(
                f"{what}; remove its line in outcomes.jsonl and give the run's command again"
            ) from None

    def _call(self, run_id: str, key: str) -> bytes:
        path = self._open(run_id).answers
        call = read_call(path, key) if self.prompts else None
        if call is None:
            raise NotFound(
                f"{path} has no call {key[:16]!r}; was it cleared, or the run moved, or replayed?"
            )
        return plain_json(call)

    def _search(self, run_id: str, words: str) -> bytes:
        opened = self._open(run_id)
        data = self._texts.load(opened.run.config)
        documents, unread = ({}, [data]) if isinstance(data, str) else (data.documents, [])
        return plain_json(
            find_words(opened.outcomes, words, documents, opened.answers) | {"unread": unread}
        )

    def _behaviour(self, run_id: str, rest: str) -> bytes:
        opened = self._open(run_id)
        found = summarize(opened.run, observe_run(opened.run, opened.query_ids))
        words = {
            "words": FIGURES,
            "kinds": KINDS,
            "measured": COSTS,
            "named": read_causes(opened.run),
        }
        return plain_json(found | {"run": run_id, **words})

    def _open(self, run_id: str) -> _LoadedRun:
        with self._lock:
            if entry := self._known.get(run_id):
                entry = self._known[run_id] = self._read(entry.path, entry)
        if entry is None:
            raise NotFound(f"there is no run {run_id[:200]!r}")
        if entry.opened is None:
            raise DataError(entry.why)
        return entry.opened

    def _scan(self) -> None:  # for runs that are new, changed or gone
        with self._lock:
            known: dict[str, _RunEntry] = {}
            for given in self._paths:
                folders = list[Path]()
                with suppress(DataError, OSError):  # it was there when the page was opened
                    folders = scored_run.find_folders([given])
                for path in folders:
                    run_id = self._id(given, path)
                    known.setdefault(run_id, self._read(path, self._known.get(run_id)))
            self._known = known

    def _read(self, path: Path, before: _RunEntry | None) -> _RunEntry:
        stamp = _stamp(path)  # before reading: what changes meanwhile is read again
        if before and before.stamp == stamp:
            return before
        try:
            if not (path / "scores.json").is_file() or not (path / "scores.csv").is_file():
                # `scored.read` would load the corpus to count the queries that are unanswered.
                answered = len(run_folder.read_outcomes(path, skim=True))
                why = (
                    f"{answered} queries are answered, and there are no scores: it is unfinished, "
                    f"or was not scored"
                )
                raise DataError(f"{why}; give its command again, or python -m evals.score {path}")
            run = scored_run.read_scored_run(path)
        except (SextantError, OSError) as problem:
            return _RunEntry(path, stamp, None, str(problem))
        return _RunEntry(path, stamp, _LoadedRun(run, list(self._chosen(run.query_ids))))

    def _id(
        self, given: Path, path: Path
    ) -> str:  # in links: its place below `given`, in letters that need no escape
        place = path.resolve()
        if place not in self._ids:
            below = path.relative_to(given).parts or place.parts[-2:]
            parts = [
                re.sub(r"[^A-Za-z0-9._~-]+", "-", part) for part in below if part != place.anchor
            ]
            name = "/".join(f"{part}-" if part in _IN_LINKS else part for part in parts)
            free = chain([name], (f"{name}~{number}" for number in count(2)))
            self._ids[place] = next(one for one in free if one not in self._ids.values())
        return self._ids[place]


def _summarize(run_id: str, opened: _LoadedRun) -> Answer:
    run = opened.run
    scores = opened.run.scores
    kept = ("task", "data", "split", "judgements", "program", "retriever", "lm", "compiled", "pool")
    return {
        "id": run_id,
        **{key: scores.get(key) for key in (*kept, "queries", "failed", "usage", "losses")},
        "metric": run.metric,
        "contract": hashlib.sha256(plain_json(run.contract)).hexdigest()[:8],
        "metrics": {
            name: {key: value.get(key) for key in ("mean", "low", "high")}
            for name, value in scores["metrics"].items()
        },
        "notes": opened.notes,
        "mini": scores["data"] == "mini",
        "imported": bool(run.config.get("imported")),
    }


def _describe_query(opened: _LoadedRun, query_id: str) -> Answer:
    run = opened.run
    judged = opened.judged
    outcome = opened.outcomes[query_id]
    row = judged.rows.get(query_id, {})
    trace = outcome["trace"]
    cutoff = 0 if judged.why else run.scores["losses"]["cutoff"]
    return {
        "query_id": query_id,
        "text": row.get("text", ""),
        "objective": "",
        **{key: row.get(key, {}) for key in ("grades", "units")},
        "relevant": [one | {"fate": fate_at(one, cutoff)} for one in row.get("relevant", [])]
        if cutoff
        else [],
        "values": {name: column[query_id] for name, column in run.columns.items()},
        **{key: outcome.get(key, "") for key in ("answer", "traceback")},
        **{key: outcome[key] for key in ("error", "usage")},
        "seconds": outcome.get("seconds"),
        "ranking": outcome["ranking"][:RANKED],
        "ranked": len(outcome["ranking"]),
        "scores": (outcome.get("scores") or [])[:RANKED],
        "steps": trace["steps"],
        **{
            key: trace.get(key, []) for key in ("notes", "calls")
        },  # these calls are after the last step
        "invented_ids": trace.get("invented_ids", 0),
        **{key: trace.get(key, {}) for key in ("unusable", "followed")},
    }


class _DocumentTexts:  # of queries and documents; the data of each run is loaded once, in a thread
    def __init__(
        self, *, wait: bool, documents: bool
    ) -> None:  # wait for a corpus; have the texts of documents
        self._wait = wait
        self._documents = documents
        self._lock = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._loads: dict[str, Future[Environment | str]] = {}

    def load(self, config: run_folder.Config) -> Environment | str:
        keys = (
            "task",
            "data",
            "data_fingerprint",
            "split",
            "asked",
            "instruction",
        )  # what load_environment reads
        provenance = config[run_folder.PROVENANCE]
        key = json.dumps(
            [*(config[key] for key in keys), provenance["folder"], provenance["judgements"]]
        )
        with self._lock:
            if (load := self._loads.get(key)) is None:
                load = self._loads[key] = start_thread(partial(self._load, config))
        try:
            return load.result(None if self._wait else PATIENCE)
        except TimeoutError:
            return READING

    def _load(self, config: run_folder.Config) -> Environment | str:
        try:
            with self._one_at_a_time:
                return load_environment(config)
        except Exception as problem:  # noqa: BLE001  # whatever it is, the page works without texts
            return f"no texts of documents: {problem}"

    def of(self, config: run_folder.Config, answer: Answer) -> Answer:
        data = self.load(config)
        if isinstance(data, str):
            return {"documents": {}, "no_documents": data, "reading": data == READING}
        query = next(
            (query for query in data.queries if query.query_id == answer["query_id"]), None
        )
        texts: Answer = (
            {"objective": query.objective, "text": answer["text"] or query.text} if query else {}
        )
        if not self._documents:
            return texts | {"documents": {}, "no_documents": "made without the texts of documents"}
        try:
            return texts | {"documents": _documents(data.documents, answer)}
        except SextantError as problem:  # a document that is damaged on disk
            return texts | {"documents": {}, "no_documents": str(problem)}


def _documents(corpus: Corpus, answer: Answer) -> Answer:
    gold = {one["unit"] for one in answer["relevant"]} | answer["grades"].keys()
    named = [
        *answer["grades"],
        *(one["doc_id"] for one in answer["relevant"]),
        *answer["ranking"][:NAMED],
    ]
    for step in answer["steps"]:
        whole = step.get("shown") or step["tool"] in ("select", "drop")
        named += step["doc_ids"] if whole else step["doc_ids"][:NAMED]
    named += [doc_id for doc_id, unit in answer["units"].items() if unit in gold]
    return {
        document.doc_id: {
            "title": document.title,
            "text": document.text[:TEXT],
            "length": len(document.text),
        }
        for document in (corpus[doc_id] for doc_id in dict.fromkeys(named) if doc_id in corpus)
    }


def _stamp(path: Path) -> dict[str, tuple[int, ...]]:
    states: dict[str, tuple[int, ...]] = {}
    for name in ("config.json", "scores.json", "scores.csv", "attribution.jsonl", "outcomes.jsonl"):
        with suppress(OSError):
            status = (path / name).stat()
            states[name] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return states


def _well_formed(text: str) -> str:  # with lone surrogates written out, which are in no UTF-8
    return _SURROGATE.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def plain_json(value: Any) -> bytes:
    """Return JSON that every browser reads: UTF-8, no NaN, whatever the data holds.

    TypeError for what is too deep.
    """
    try:
        return orjson.dumps(value)
    except (
        TypeError
    ):  # lone surrogates, or numbers beyond 64 bits, which are floats to every browser
        text = _well_formed(json.dumps(value, ensure_ascii=False))
        return orjson.dumps(
            json.loads(text, parse_int=lambda digits: (int if len(digits) < 19 else float)(digits))
        )
