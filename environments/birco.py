"""BIRCO: five reranking tasks with complex objectives. Every query has a small pool, and only that
is ranked.

Labels are kept as released, fractions included (DORIS-MAE's are means over annotators), and gain is
linear. Queries without a label of 1 or more are left out of mean recall, as in the official script.
The paper's figures are means over 1,000 bootstrap resamples with seed 42; both these and plain
means are given (evals/scoring/statistics.py).

The dev split is the release's: other queries and documents, for which the paper counts triplets
(appendix D): how often the more relevant of two documents is ranked higher. `:corpus` ranks all
documents of the split instead of the pool, without a query's own text if it is a document, too.

A split is one object {"query": {id: text}, "corpus": {id: text}, "qrel": {id: {id: label}}}: in the
release a pickle, which environments/readers/safe_pickle.py converts without running anything in it; in the
miniature reviewable JSON.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, combinations, product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 on

from sextant.environments.base import (
    Comparison,
    Environment,
    Judgements,
    LoadRequest,
    Release,
    Suite,
    TaskInfo,
)
from sextant.environments.readers import files
from sextant.environments.readers.collections import read_port
from sextant.environments.readers.corpora import Collection
from sextant.environments.readers.raw_files import check_data
from sextant.tools import schemas
from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, NotApplicable
from sextant.tools.platform.files import open_input
from sextant.tools.records import Document, Query

RELEASE = Release(
    kind="github",
    repository="BIRCO-benchmark/BIRCO",
    revision="84b2b05c862cff6f6a80c06a6a11e6a7cd12e838",
    licence="CC BY-NC 4.0 (DORIS-MAE), CC BY-SA 4.0 (ArguAna, Clinical-Trial), ODC-BY "
    "(WhatsThatBook), MIT (RELIC)",
    paper="BIRCO: A Benchmark of Information Retrieval Tasks with Complex Objectives",
)
METRICS = ("nDCG@10", "R@5", "R@20")
TRIPLETS = "Triplets"  # the metric of dev triplets; their comparisons have this label
POOL = "pool"
CORPUS = "corpus"

Labels = Mapping[str, float]
Pairs = Iterator[tuple[str, str]]


def label_pairs(labels: Labels) -> Pairs:
    """Yield all pairs of documents with different labels, the higher one first."""
    levels: dict[float, list[str]] = {}
    for doc_id, label in labels.items():
        levels.setdefault(label, []).append(doc_id)
    for better, worse in combinations(sorted(levels, reverse=True), 2):
        yield from product(levels[better], levels[worse])


def doris_mae_pairs(labels: Labels) -> Pairs:
    """Yield DORIS-MAE's pairs: both labels over half of the query's best, and more than 0.25
    apart (appendix D).
    """
    half = max(labels.values()) / 2
    for better, worse in label_pairs(labels):
        if labels[worse] > half and labels[better] - labels[worse] > 0.25:
            yield better, worse


class Task(NamedTuple):
    """A row of the benchmark: everything in which its tasks differ."""

    folder: str  # inside the release
    objective: str  # in our words
    document: str  # what a document is, in words
    target: str  # what is guessed without the corpus (appendix L.5; programs/closed_book.py)
    # Test queries; of clinical trials the paper's text says 100, its Table 1 and the release 50
    queries: int
    pairs: Callable[[Labels], Pairs] = label_pairs


TASKS = {
    "doris_mae": Task(
        folder="doris-mae",
        objective=(
            "The query is a researcher's description of what they need, with several "
            "requirements. Each candidate is "
            "the abstract of a paper. The more of the requirements an abstract meets, the better "
            "it is."
        ),
        document="the abstract of a computer science paper",
        target="text",
        queries=60,
        pairs=doris_mae_pairs,
    ),
    "arguana": Task(
        folder="arguana",
        objective=(
            "The query is an argument in a debate: it takes a side and makes a particular point. "
            "Wanted is the passage "
            "from the other side that answers this very point. Passages on the same side, and "
            "answers to other points "
            "of the same debate, are no finds. References to sources don't matter."
        ),
        document="a passage that argues in a debate",
        target="text",
        queries=100,
    ),
    "whatsthatbook": Task(
        folder="wtb",
        objective=(
            "Somebody is looking for a book whose title they forgot. They remember parts of it, "
            "in their own words, "
            "and some of that may be wrong. Each candidate describes one book. Wanted is the "
            "description of the book "
            "that fits what they remember as a whole."
        ),
        document="the description of a book",
        target="titles",
        queries=100,
    ),
    "clinical_trial": Task(
        folder="clinical-trial",
        objective=(
            "The query is a patient's case report. Each candidate describes a clinical trial. "
            "Wanted are trials for "
            "which this patient could be recruited: the right condition, and no criterion that "
            "shuts the patient out."
        ),
        document="the description of a clinical trial",
        target="text",
        queries=50,
    ),
    "relic": Task(
        folder="relic",
        objective=(
            "The query is a piece of literary analysis from which one quotation has been taken "
            "out; a mask marks its "
            "place. Each candidate is a passage of the work that is discussed. Wanted is the "
            "passage that was quoted: "
            "it bears out what is claimed just before or after the gap, reads naturally there, "
            "and repeats nothing "
            "that the analysis quotes already."
        ),
        document="a few sentences quoted from a work of literature",
        target="quotations",
        queries=100,
    ),
}


def load(request: LoadRequest) -> Environment:
    """Load a task, from the release or the task's own folder."""
    task = TASKS[request.name]
    collections = _parts(request, task)
    qrels = dict(chain(*(collection.qrels.items() for collection in collections.values())))
    triplets = {}
    if request.split == "dev":
        triplets = {
            query_id: tuple(Comparison(TRIPLETS, *pair) for pair in task.pairs(labels))
            for query_id, labels in qrels.items()
        }
    return request.make(
        RELEASE,
        documents=_documents(collections, request),
        queries=tuple(
            Query(
                query_id,
                text,
                request.objective(task.objective),
                *_scope(request.variant, query_id, collection),
            )
            for collection in collections.values()
            for query_id, text in collection.queries.items()
        ),
        judgements={"gold": Judgements(qrels, relevant_from=1)},
        metrics=(*METRICS, TRIPLETS) if request.split == "dev" else METRICS,
        hints={"document": task.document, "target": task.target},
        comparisons=triplets,
        resampled=True,
    )


def _parts(request: LoadRequest, task: Task) -> dict[str, Collection]:
    splits = ("test", "dev") if request.split == "all" else (request.split,)
    path = request.place(
        [f"datasets/{task.folder}", task.folder],
        [suite_task.folder for suite_task in TASKS.values()],
    )
    if any(path.glob("*_set.*")):
        return {split: _read(path, split) for split in splits}
    # A port in BEIR's form, as MTEB has: test queries only, and DORIS-MAE's labels cut to whole
    # numbers.
    port = read_port(request.folder, request.home)
    if splits != ("test",):
        raise NotApplicable(f"{request.folder} is a port without dev queries; use --split test")
    grades = [grade for labels in port.qrels.values() for grade in labels.values()]
    if request.name == "doris_mae" and all(map(float.is_integer, grades)):
        raise DataError(
            f"{request.folder} has DORIS-MAE's labels cut to whole numbers, which makes other "
            f"figures of them; use the release's test_set.pickle"
        )
    texts = zip(port.documents, port.documents.texts(), strict=True)  # titles are part of the texts
    return {
        "test": Collection(
            Corpus(Document(doc_id, text) for doc_id, text in texts), port.queries, port.qrels
        )
    }


def _documents(collections: Mapping[str, Collection], request: LoadRequest) -> Corpus:
    if len(collections) == 1:
        return next(iter(collections.values())).documents
    test = collections["test"]
    dev = collections["dev"]
    shared = {
        doc_id
        for doc_id, document in dev.documents.items()
        if test.documents.get(doc_id, document) != document
    }
    shared |= dev.queries.keys() & test.queries.keys()
    if shared:
        raise NotApplicable(
            f"dev and test of birco/{request.name} share the id {min(shared)!r}; they are separate "
            f"collections, so use --split test or --split dev"
        )
    return Corpus((dict(test.documents) | dict(dev.documents)).values())


def _scope(
    variant: str, query_id: str, collection: Collection
) -> tuple[frozenset[str], frozenset[str] | None]:
    """Return (the documents that a query excludes, its pool)."""
    own_documents = frozenset({query_id} & collection.documents.keys())
    pool = frozenset(collection.qrels[query_id])
    return (own_documents - pool, None) if variant == CORPUS else (frozenset(), pool)


def _read(folder: Path, split: str) -> Collection:
    for ending, read in _READERS.items():
        if (path := folder / f"{split}_set{ending}").is_file():
            return _check(read(path), path)
    other = next(folder.glob("*_set.*")).name
    raise DataError(
        f"{folder} holds no {split}_set.pickle (nor a {split}_set.json); it has {other}, which "
        f"--split {other.partition('_')[0]} reads alone"
    )


def unpickle(path: Path) -> Any:
    """Return the content of a pickle, read in a process of its own: a hostile pickle can bring
    Python down.
    """
    check_data(path)
    try:
        with open_input(path) as file:
            reader = Path(__file__).with_name("readers") / "safe_pickle.py"
            process = subprocess.run(
                [sys.executable, "-I", str(reader)], stdin=file, capture_output=True
            )
        answer = json.loads(process.stdout)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError:  # it died, or gave up
        raise DataError(f"{path} is damaged and cannot be unpickled; fetch it again") from None
    if "refused" in answer:
        raise DataError(f"{path} is refused: {answer['refused']}")
    return answer["content"]


_READERS: dict[str, Callable[[Path], Any]] = {
    ".pickle": unpickle,
    ".pkl": unpickle,
    ".json": files.read_json,
}


class SplitFile(TypedDict):
    """A file of a split."""

    query: Annotated[dict[str, str], Field(min_length=1)]
    corpus: dict[str, str]
    qrel: dict[str, Annotated[dict[str, float], Field(min_length=1)]]


def _check(content: Any, path: Path) -> Collection:
    try:
        checked = schemas.validate(SplitFile, content)
    except ValueError as error:
        raise DataError(
            f'{path} is not an object of "query", "corpus" and "qrel": {error}'
        ) from None
    documents, queries = (
        {
            files.read_id(key, f"{path}, {name}"): files.check_text(text, f"{path}, {name} {key!r}")
            for key, text in checked[name].items()
        }
        for name in ("corpus", "query")
    )
    if not any(map(str.isalnum, chain(*documents.values()))):
        raise DataError(f"{path} has no words in it; nothing can be searched")
    qrels = {}
    for query_id, pool in checked["qrel"].items():
        location = f"{path}, qrel of {query_id!r}"
        qrels[query_id] = {
            files.read_id(key, location): files.check_grade(label, f"{location}, document {key!r}")
            for key, label in pool.items()
        }
    if different := qrels.keys() ^ queries.keys():
        raise DataError(f"{path}: {min(different)!r} is in query alone, or in qrel alone")
    return Collection(
        Corpus(Document(doc_id, text) for doc_id, text in documents.items()), queries, qrels
    )


def _facts(task: Task) -> TaskInfo:
    return TaskInfo(
        asked=task.objective,
        metric="nDCG@10",
        protocol=(
            "Each query's pool is ranked; gain is the label, linear; labels from 1 on count for "
            "recall, and queries "
            "without any are left out of it. The paper's figures are means over 1,000 bootstrap "
            "resamples."
        ),
        dev_split="the release's: other queries over other documents; triplets of appendix D are "
        "counted on it",
        documents={},
        queries=task.queries,
        files=tuple(f"datasets/{task.folder}/{split}_set.pickle" for split in ("test", "dev")),
    )


SUITE = Suite(
    RELEASE,
    {name: _facts(task) for name, task in TASKS.items()},
    load,
    variants=(POOL, CORPUS),
    # Pairs of ArguAna share a name, and the order of RELIC's corpus tells (`environments check`).
    opaque_ids=TASKS,
)
