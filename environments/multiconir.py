"""MultiConIR: queries of one to ten conditions, and documents that meet some of them.

Each of five domains is a search task (find the one document that meets all ten conditions, among
all documents of its domain) and four protocols of the paper (section 3.3), as variants:

- `:complexity`     the query with k conditions, k = 1 to 10, against a document that fails one: Win(k)
- `:monotonicity`   all ten conditions; documents that fail 0, 1, ... 10 of them: Win(k) is the k-1 over the k
- `:format`         the same with the query told as a list and as prose: Flip, how often the two disagree
- `:length512`, `:length1024`   monotonicity with documents padded to that many words

A comparison is won when the better document's score is strictly higher; a tie is a loss. In the
files, HN{i} of Task 1 belongs to Query{i}; elsewhere HN{i} fails i of the ten conditions, so the
right order is Positive, HN1, ... HN10.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from sextant.environments.base import (
    OURS,
    Comparison,
    DevSplit,
    Environment,
    Grades,
    Judgements,
    LoadRequest,
    Release,
    Suite,
    TaskInfo,
)
from sextant.environments.readers import files as tables
from sextant.environments.readers.collections import read_port
from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError
from sextant.tools.records import Document, Query

RELEASE = Release(
    kind="github",
    repository="EIT-NLP/MultiConIR",
    revision="034b19d0ea827a28004f5885f02f0b8ce6af937d",
    licence="Apache-2.0",
    paper="MultiConIR: Towards Multi-Conditional Information Retrieval",
)
SEARCH = "search"
COMPLEXITY = "complexity"
MONOTONICITY = "monotonicity"
FORMAT = "format"
LENGTHS = {"length512": "512", "length1024": "1024"}
SEED = "sextant-multiconir-1"
DEV = DevSplit(SEED, 0.2)
DEV_MINI = DevSplit(SEED, 1 / 3)
Row = dict[str, str]

TENS = tuple(range(1, 11))
HARD = tuple(f"HN{n}" for n in TENS)
COLUMNS = {
    "Task1": (*(f"Query{n}" for n in TENS), "Positive", *HARD, *(f"HN_{n}" for n in TENS)),
    "Task2_&_3": ("Query10", "Natural_Query10", "Positive", *HARD),
    **dict.fromkeys(LENGTHS.values(), ("Query10", "Positive", *HARD)),
}
LADDER = ("Positive", *HARD)  # from all ten conditions met to none


# The instruction of models that take one (appendix A), in our words; the same for all domains.
INSTRUCTION = "Given a query about a domain, find the documents that meet the conditions it states."


class Task(NamedTuple):
    """A row of the benchmark: a domain."""

    name: str  # in the release's file names
    records: int  # Table 7


TASKS = {
    "books": Task("Books", 482),
    "movies": Task("Movies", 500),
    "people": Task("People", 420),
    "medical_case": Task("Medical Case", 479),
    "legal_document": Task("Legal Document", 426),
}


@dataclass(slots=True)
class EnvironmentDraft:
    """The parts of an environment, gathered record by record."""

    objective: str
    prefix: str  # of the ids of padded documents
    documents: dict[str, str] = field(default_factory=dict)  # doc_id -> text
    ids: dict[str, str] = field(
        default_factory=dict
    )  # text -> doc_id of the first document with it
    queries: list[Query] = field(default_factory=list)
    grades: Grades = field(default_factory=dict)
    comparisons: dict[str, tuple[Comparison, ...]] = field(default_factory=dict)
    twins: dict[str, str] = field(default_factory=dict)

    def document(
        self,
        text: str,
        doc_id: str,
        pool: Collection[str] = (),
    ) -> str:
        """Return the id of the document with this text.

        It is `doc_id`, or the id of an earlier document with the same text unless that is in
        `pool`. The same text in two files is one document; in a pool it stays two, as published.
        """
        doc_id_of_text = self.ids.setdefault(text, doc_id)
        chosen = doc_id if doc_id_of_text in pool else doc_id_of_text
        self.documents.setdefault(chosen, text)
        return chosen

    def ask(
        self,
        query_id: str,
        text: str,
        grades: dict[str, float],
        *,
        pooled: bool = True,
    ) -> None:
        """Add a query, over the pool that `grades` names or over all documents."""
        self.queries.append(
            Query(query_id, text, self.objective, candidates=frozenset(grades) if pooled else None)
        )
        self.grades[query_id] = grades

    def ask_ladder(
        self,
        query_id: str,
        text: str,
        ladder: Sequence[str],
    ) -> None:
        """Add a query over documents of which the first meets all conditions, each next one
        fewer, the last none.
        """
        grades = {doc_id: len(ladder) - 1.0 - failed for failed, doc_id in enumerate(ladder)}
        self.ask(query_id, text, grades)
        self.comparisons[query_id] = tuple(
            Comparison(f"Win({k})", *pair) for k, pair in enumerate(pairwise(ladder), start=1)
        )

    def ask_formats(
        self,
        name: str,
        listed: str,
        prose: str,
        ladder: Sequence[str],
    ) -> None:
        """Add a query over a ladder in two styles."""
        self.ask_ladder(f"{name}-list", listed, ladder)
        self.ask_ladder(f"{name}-prose", prose, ladder)
        self.twins[f"{name}-prose"] = f"{name}-list"

    def ask_pair(
        self,
        query_id: str,
        text: str,
        k: int,
        positive: str,
        negative: str,
    ) -> None:
        """Add a query with k conditions over a document that meets all of them, and one that
        fails one.
        """
        self.ask(query_id, text, {negative: 0.0, positive: 1.0})
        self.comparisons[query_id] = (Comparison(f"Win({k})", positive, negative),)


def load(request: LoadRequest) -> Environment:
    """Load a domain in one variant, from the release or a folder with its datasets."""
    task = TASKS[request.name]
    if not any(
        (request.folder / name).is_dir() for name in ("datasets", "Task1", "Task2_&_3", "Task4")
    ):
        return _ported(request, task)
    padded = LENGTHS.get(request.variant, "")
    draft = EnvironmentDraft(request.objective(INSTRUCTION), padded and f"{padded}-")
    single = [] if padded else read_csv(request.folder, task.name, "Task1")
    rows = read_csv(request.folder, task.name, padded or "Task2_&_3")
    _add_documents(draft, single, rows)
    records = single if request.variant == COMPLEXITY else rows
    dev = DEV_MINI if request.data == "mini" else DEV
    numbers = [str(n) for n in range(1, len(records) + 1)]
    for record in map(int, dev.choose(numbers, request.split, request.source(RELEASE))):
        _ask(draft, request.variant, records[record - 1], record)
    positives = {row["Positive"] for row in single}
    apart = not padded and positives.isdisjoint(row["Positive"] for row in rows)
    return request.make(
        RELEASE,
        documents=Corpus(Document(doc_id, text) for doc_id, text in draft.documents.items()),
        queries=tuple(draft.queries),
        judgements={"gold": Judgements(draft.grades)},
        metrics=list_metrics(request.variant, len(TENS)),
        comparisons=draft.comparisons,
        twins=draft.twins,
        notes=(f"Task1 and Task2_&_3 of {task.name} have no positive document in common",) * apart,
        split_note="" if request.split == "all" else OURS,
    )


def _add_documents(draft: EnvironmentDraft, single: Sequence[Row], rows: Sequence[Row]) -> None:
    """Add every document of the domain, so that all variants but the padded variants share a
    corpus.
    """
    for record, row in enumerate(rows, start=1):
        _ladder(draft, row, record)
    for record, row in enumerate(single, start=1):
        positive = draft.document(row["Positive"], f"{record}-T1-Positive")
        for n in TENS:
            draft.document(row[f"HN{n}"], f"{record}-T1-HN{n}", pool=[positive])
            draft.document(row[f"HN_{n}"], f"{record}-T1-HN_{n}")


def _ladder(draft: EnvironmentDraft, row: Row, record: int) -> list[str]:
    """Return the ids of a record's positive and its ten negatives, best first."""
    ladder: list[str] = []
    for name in LADDER:
        ladder.append(draft.document(row[name], f"{record}-{draft.prefix}{name}", pool=ladder))
    return ladder


def _ask(
    draft: EnvironmentDraft,
    variant: str,
    row: Row,
    record: int,
) -> None:
    if variant == COMPLEXITY:
        positive = draft.document(row["Positive"], f"{record}-T1-Positive")
        for k in TENS:
            draft.ask_pair(
                f"{record}-q{k}",
                row[f"Query{k}"],
                k,
                positive,
                draft.document(row[f"HN{k}"], f"{record}-T1-HN{k}", pool=[positive]),
            )
        return
    ladder = _ladder(draft, row, record)
    if variant == SEARCH:
        draft.ask(str(record), row["Query10"], {ladder[0]: 1.0}, pooled=False)
    elif variant == FORMAT:
        draft.ask_formats(str(record), row["Query10"], row["Natural_Query10"], ladder)
    else:
        draft.ask_ladder(f"{record}-q10", row["Query10"], ladder)


def list_metrics(variant: str, conditions: int) -> tuple[str, ...]:
    """Return a variant's metrics by its queries' number of conditions, headline first."""
    wins = ("Win", *(f"Win({k})" for k in range(1, conditions + 1)))
    searched = ("nDCG@10", "R@1", "R@10", "R@100", "R@1000", "RR@10")
    return {SEARCH: searched, FORMAT: ("Flip", *wins), COMPLEXITY: wins}.get(
        variant, (*wins, "nDCG@10")
    )


def _ported(request: LoadRequest, task: Task) -> Environment:
    if request.variant != SEARCH:
        raise DataError(
            f"{request.folder} holds no datasets/ of the release, and :{request.variant} needs them"
        )
    folder = request.place([task.name], [suite_task.name for suite_task in TASKS.values()])
    port = read_port(folder, request.home)
    return request.make(
        RELEASE,
        split="all",
        documents=port.documents,
        queries=tuple(
            Query(query_id, text, request.objective(INSTRUCTION))
            for query_id, text in port.queries.items()
        ),
        judgements={"gold": Judgements(port.qrels)},
        metrics=list_metrics(request.variant, len(TENS)),
    ).narrow(DEV, request.split)


def read_csv(folder: Path, domain: str, file: str) -> list[Row]:
    """Read the rows of `file` (a key of COLUMNS) of `domain` ("Legal Document").

    DataError names row and column.
    """
    name = f"{'Task4' if file in LENGTHS.values() else file}/{domain}_{file}.csv"
    path = folder / "datasets" / name
    if not path.is_file() and not (path := folder / name).is_file():
        raise DataError(
            f"{folder} holds no datasets/{name}; a data folder has the release's layout"
        )
    rows = []
    for location, row in tables.read_headed(path):
        for column in COLUMNS[file]:
            if not row.get(column, "").strip():
                raise DataError(f"{location}: column {column!r} is empty or not there")
        rows.append({column: row[column] for column in COLUMNS[file]})
    if not rows:
        raise DataError(f"{path} has no rows in it")
    return rows


def _facts(task: Task) -> TaskInfo:
    files = [f"Task1/{task.name}_Task1.csv", f"Task2_&_3/{task.name}_Task2_&_3.csv"]
    files += [f"Task4/{task.name}_{words}.csv" for words in LENGTHS.values()]
    return TaskInfo(
        asked=INSTRUCTION,
        metric="Win, Flip",
        protocol=(
            "Win(k): share of comparisons in which the document that meets more conditions is "
            "scored strictly higher. "
            "Flip: share of comparisons whose outcome changes with the query's style. A tie is a "
            "loss. "
            "As a search task: rank all documents of the domain."
        ),
        dev_split=f"{DEV}, by record; a third in the miniature",
        documents={},
        queries=task.records,
        files=tuple(f"datasets/{name}" for name in files),
    )


VARIANTS = (SEARCH, COMPLEXITY, MONOTONICITY, FORMAT, *LENGTHS)
SUITE = Suite(
    RELEASE, {name: _facts(task) for name, task in TASKS.items()}, load, VARIANTS, opaque_ids=TASKS
)
