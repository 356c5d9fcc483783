"""A run as the page reads it: its scores, the fates of its documents, and the texts of its corpus.

Outcomes are found by the positions at which their lines begin, so that a run of 10,000
trajectories opens at once. Documents have their texts if the corpus is at hand, else only ids.
"""

import json
import re
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from sextant.environments.base import Environment
from sextant.evals import run_folder
from sextant.evals.run_folder import load_environment
from sextant.evals.running.replay import SearchRanks
from sextant.evals.scoring.attribution import fate_at
from sextant.evals.scoring.scored_run import ScoredRun
from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, SextantError
from sextant.tools.models.storage.ledger import NAME as ANSWERS
from sextant.tools.platform.interrupts import start_thread
from sextant.tools.platform.number_format import queries
from sextant.tools.records import Document, JsonMapping, JsonObject

# Characters of a query's text in a list.
BEGINNING = 200
# Characters of a document.
TEXT = 600
# Documents at the head of a ranking or a search whose texts are sent.
NAMED = 20
# Seconds that an answer waits for a corpus; later answers have its texts.
PATIENCE = 0.7
READING = "the corpus is still being read; the texts come in a moment"
WITHOUT_TEXTS = "made without the texts of documents"

_SURROGATE = re.compile("[\ud800-\udfff]")
# The keys of a run's configuration that load_environment reads.
_DATA_KEYS = ("task", "data", "data_fingerprint", "split", "asked", "instruction")

Answer = JsonObject


class Judged(NamedTuple):
    """The fates of the relevant documents of each query.

    `texts` has the beginning of each query, `fates` those of its relevant documents at the headline
    cutoff, `rows` the lines of attribution.jsonl. `why` is the reason if there are no fates, else
    "".
    """

    texts: dict[str, str]
    fates: dict[str, list[str]]
    rows: Mapping[str, JsonMapping]
    why: str


@dataclass(frozen=True)
class LoadedRun:
    """A scored run and the queries that the page shows of it."""

    run: ScoredRun
    query_ids: list[str]
    _texts: "DocumentTexts"

    @cached_property
    def named(self) -> dict[str, str]:
        """Return the id of each query by the name that the page has for it."""
        return {well_formed(query_id): query_id for query_id in self.query_ids}

    @cached_property
    def outcomes(self) -> run_folder.JsonlIndex:
        """Return the outcomes by the query's id; each is read when it is asked for."""
        return run_folder.read_outcomes(self.run.path, skim=True)

    @cached_property
    def judged(self) -> Judged:
        """Return the fates of the relevant documents, from attribution.jsonl."""
        losses = self.run.scores.get("losses")
        try:
            rows = self.run.judged
        except (DataError, OSError) as error:
            return Judged({}, {}, {}, str(error))
        if not losses:
            remedy = f"sextant score {self.run.path} scores it again"
            return Judged({}, {}, {}, f"its scores do not say what became of documents; {remedy}")
        texts = {}
        fates: dict[str, list[str]] = {}
        for row in rows.rows(rows):
            query_id = row["query_id"]
            texts[query_id] = row.get("text", "")[:BEGINNING]
            fates[query_id] = [fate_at(document, losses["cutoff"]) for document in row["relevant"]]
        return Judged(texts, fates, rows, "")

    @property
    def answers(self) -> Path:
        """Return the file of its model calls, which may not exist."""
        return self.run.path.resolve().parent.parent / ANSWERS

    @property
    def notes(self) -> list[str]:
        """Return the notes of its scores, and that this is only part of it if so."""
        notes = list(self.run.scores.get("notes") or [])
        shown = len(self.query_ids)
        total = len(self.run.query_ids)
        if shown < total:
            notes.append(
                f"this file has {shown} of the {queries(total)}; means and losses are over all of "
                "them"
            )
        return notes

    def load_data(self) -> Environment | str:
        """Return the run's queries and documents, or the reason that they cannot be had yet."""
        return self._texts.load(self.run.config)

    def load_corpus(self) -> Mapping[str, Document] | str:
        """Return the run's documents by id, or the reason that there are none."""
        return self._texts.load_corpus(self.run.config)

    @cached_property
    def search_ranks(self) -> SearchRanks:
        """Return what ranks documents under the run's searches.

        DataError while its corpus is still being read, or if it cannot be had.
        """
        environment = self.load_data()
        if isinstance(environment, str):
            raise DataError(environment)
        return SearchRanks(self.run.config, environment)

    def texts_for(self, answer: Answer) -> Answer:
        """Return the texts of the query and the documents that `answer` names."""
        return self._texts.texts_for(self.run.config, answer)


class DocumentTexts:
    """The texts of queries and documents; a thread loads the data of each run once.

    `wait` for a corpus as long as it takes; `documents` whether the texts of documents are given.
    """

    def __init__(self, *, wait: bool, documents: bool) -> None:
        self._wait = wait
        self._documents = documents
        self._lock = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._loads: dict[str, Future[Environment | str]] = {}

    def load(self, config: run_folder.Config) -> Environment | str:
        """Return the data of a run, or the reason that it cannot be had yet."""
        provenance = config[run_folder.PROVENANCE]
        key = json.dumps(
            [
                *(config[key] for key in _DATA_KEYS),
                provenance["folder"],
                provenance["judgements"],
                provenance.get("relevant_from"),
            ]
        )
        with self._lock:
            load = self._loads.get(key)
            if load is None:
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

    def load_corpus(self, config: run_folder.Config) -> Mapping[str, Document] | str:
        """Return the documents of a run's data, or the reason that there are none."""
        if not self._documents:
            return WITHOUT_TEXTS
        data = self.load(config)
        return data if isinstance(data, str) else data.documents

    def texts_for(self, config: run_folder.Config, answer: Answer) -> Answer:
        """Return the texts of the query and the documents that `answer` names."""
        data = self.load(config)
        if isinstance(data, str):
            return {"documents": {}, "no_documents": data, "reading": data == READING}
        texts = {}
        for query in data.queries:
            if query.query_id == answer["query_id"]:
                texts = {"objective": query.objective, "text": answer["text"] or query.text}
        problem = WITHOUT_TEXTS
        if self._documents:
            try:
                return texts | {"documents": _describe_documents(data.documents, answer)}
            except SextantError as damage:  # of a document on disk
                problem = str(damage)
        return texts | {"documents": {}, "no_documents": problem}


def _describe_documents(corpus: Corpus, answer: Answer) -> Answer:
    documents = {}
    for doc_id in dict.fromkeys(_list_documents(answer)):
        if doc_id in corpus:
            document = corpus[doc_id]
            documents[document.doc_id] = {
                "title": document.title,
                "text": document.text[:TEXT],
                "length": len(document.text),
            }
    return documents


def _list_documents(answer: Answer) -> list[str]:
    doc_ids = [*answer["grades"]]
    doc_ids += [document["doc_id"] for document in answer["relevant"]]
    doc_ids += answer["ranking"][:NAMED]
    for step in answer["steps"]:
        is_whole = step.get("shown") or step["tool"] in ("select", "drop")
        doc_ids += step["doc_ids"][: None if is_whole else NAMED]
    gold = {document["unit"] for document in answer["relevant"]} | answer["grades"].keys()
    doc_ids += [doc_id for doc_id, unit in answer["units"].items() if unit in gold]
    return doc_ids


def well_formed(text: str) -> str:
    """Return the text with lone surrogates, which UTF-8 cannot hold, written as ⟨U+D800⟩."""
    return _SURROGATE.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def plain_json(value: Any) -> bytes:
    """Return JSON that every browser reads: UTF-8, no NaN, whatever the data holds.

    TypeError for a value that is nested too deep.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        # It has lone surrogates, or numbers beyond 64 bits, which are floats to every browser.
        return orjson.dumps(
            json.loads(
                well_formed(json.dumps(value, ensure_ascii=False)),
                parse_int=lambda digits: int(digits) if len(digits) < 19 else float(digits),
            )
        )
