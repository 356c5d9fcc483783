"""One query on the page, as JSON: its text, its trajectory, and the outcome of its relevant documents.

Outcomes are found by where their lines begin, so that a run of 10,000 trajectories opens at once. Texts of documents
are there where the corpus is; without it there are their ids. Also here: JSON that every browser reads.
"""

import json
import math
import re
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from evals import folder as run_folder
from evals.forms import JudgedForm
from evals.measuring.attribution import fate_at
from evals.measuring.scored import Run
from evals.running.configuration import load_environment
from tools import disk, forms
from tools.errors import SextantError

if TYPE_CHECKING:
    from tools.corpus import Corpus
    from tools.records import Query

BEGINNING = 200  # characters of a query's text in a list
TEXT = 600  # characters of a document
RANKED = 100  # documents of a ranking
NAMED = 20  # of a ranking or a search: those whose texts are sent
PATIENCE = 0.7  # seconds that an answer waits for a corpus; later ones have its texts

READING = "the corpus is still being read; the texts come in a moment"

Answer = dict[str, Any]


@dataclass(frozen=True)
class Opened:
    """A run, and those of its queries that the page shows."""

    run: Run
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
    def judged(self) -> "Judged":
        """What attribution.jsonl has."""
        return _read_judged(self.run)


@dataclass
class Judged:
    """What attribution.jsonl has for all queries of a run."""

    texts: dict[str, str] = field(default_factory=dict)  # the beginning of each
    fates: dict[str, list[str]] = field(default_factory=dict)  # of the relevant documents, at the headline cutoff
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    why: str = ""  # there are no fates


def _read_judged(run: Run) -> Judged:
    path, losses, made = run.path / "attribution.jsonl", run.scores.get("losses"), Judged()
    mend = f"python -m evals.score {run.path} scores it again"
    starts, start = dict[str, int](), 0
    cutoff = losses["cutoff"] if losses else 0
    try:
        run_folder.check_file(path, run.scores)
        for line in disk.lines(path):
            row = forms.read(JudgedForm, line)
            query_id = row["query_id"]
            starts[query_id], start = start, start + len(line)
            made.texts[query_id] = row.get("text", "")[:BEGINNING]
            made.fates[query_id] = [fate_at(one, cutoff).value for one in row["relevant"]]
    except (ValueError, OSError) as error:
        return Judged(why=f"attribution.jsonl is damaged ({error}); {mend}")
    made.rows = run_folder.Rows(path, starts)
    if not losses or any(query_id not in starts for query_id in run.query_ids):
        made.why = f"an earlier version scored this run, and did not say what became of documents; {mend}"
    return made


def describe_query(opened: Opened, query_id: str) -> Answer:
    """Everything that the run folder has of a query."""
    run, judged, outcome = opened.run, opened.judged, opened.outcomes[query_id]
    row, trace = judged.rows.get(query_id, {}), outcome["trace"]
    cutoff = 0 if judged.why else run.scores["losses"]["cutoff"]
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


class Data(NamedTuple):
    """The corpus and the queries of a run."""

    documents: "Corpus"
    queries: "Mapping[str, Query]"  # by id


class Texts:
    """Texts of queries and documents: the data of each run is loaded once, in a thread that nobody has to wait for."""

    def __init__(self, *, wait: bool, documents: bool) -> None:
        """`wait` for a corpus, however long it takes; without `documents` there are no texts of these."""
        self._wait, self._documents = wait, documents
        self._lock, self._one_at_a_time = threading.Lock(), threading.Lock()
        self._loads: dict[str, Future[Data | str]] = {}

    def load(self, config: run_folder.Config) -> "Data | str":
        """What the run of `config` was made on, or why it is not there."""
        keys = ("task", "data", "data_fingerprint", "split", "asked", "instruction")  # what load_environment reads
        provenance = config[run_folder.PROVENANCE]
        key = json.dumps([*(config[key] for key in keys), provenance["folder"], provenance["judgements"]])
        with self._lock:
            if (load := self._loads.get(key)) is None:
                load = self._loads[key] = Future()
                threading.Thread(target=self._load, args=(config, load), daemon=True).start()
        try:
            return load.result(None if self._wait else PATIENCE)
        except TimeoutError:
            return READING

    def _load(self, config: run_folder.Config, load: "Future[Data | str]") -> None:
        try:
            with self._one_at_a_time:
                environment = load_environment(config)
            load.set_result(Data(environment.documents, {query.query_id: query for query in environment.queries}))
        except Exception as problem:  # noqa: BLE001  # whatever it is, the page works without texts
            load.set_result(f"no texts of documents: {problem}")

    def of(self, config: run_folder.Config, answer: Answer) -> Answer:
        """The task's objective and the documents of an answer, or why they are not there."""
        data = self.load(config)
        if isinstance(data, str):
            return {"documents": {}, "no_documents": data, "reading": data == READING}
        query = data.queries.get(answer["query_id"])
        texts: Answer = {"objective": query.objective, "text": answer["text"] or query.text} if query else {}
        if not self._documents:
            return texts | {"documents": {}, "no_documents": "made without the texts of documents"}
        try:
            return texts | {"documents": _documents(data.documents, answer)}
        except SextantError as problem:  # a document that is damaged on disk
            return texts | {"documents": {}, "no_documents": str(problem)}


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
    """Rewrite what orjson does not take: lone surrogates, numbers beyond 64 bits."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {well_formed(str(key)): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, int) and abs(value) >= 2**63:
        return float(value) if abs(value) < 2**1000 else str(math.inf)
    return value
