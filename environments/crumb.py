"""CRUMB: eight complex retrieval tasks in one form, as passages and as whole documents.

`crumb/legal_qa` searches passages, `crumb/legal_qa:document` whole documents; three tasks were
never cut, and have the same text in both. Three others are judged by document when passages are
searched (MaxP, sections 3.1 and 4.3): 2,000 passages are retrieved, and a document takes its
best passage's rank. The official script keeps the passage's id, which no judgement has; here it is
the parent's. Validation queries are the dev split.

The release has <task>/passage_corpus.jsonl, <task>/full_document_corpus.jsonl,
<task>/eval/query_labels.jsonl and <task>/val/query_labels.jsonl, plain or gzipped. A cell of
judgements is a list of {"id", "label"}, or null. Left out: the hub's conversion to Parquet.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 on

from sextant.environments.base import Environment, Judgements, LoadRequest, Release, Suite, TaskInfo
from sextant.environments.readers import files as tables
from sextant.environments.readers.corpora import Placed, open_corpus
from sextant.tools import schemas
from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, NotApplicable
from sextant.tools.platform.number_format import plural
from sextant.tools.records import Document, Query

RELEASE = Release(
    kind="hub",
    repository="jfkback/crumb",
    revision="adc97d85cd0c641d4fc48ff8dc1019d51ebbb88f",
    licence="CC BY-NC 4.0",
    paper="Benchmarking Information Retrieval Models on Complex Retrieval Tasks",
)
METRICS = ("nDCG@10", "R@100", "R@1000", "nDCG@5", "P@10", "R@10", "RR@10")
# what is searched, and what is judged (MaxP where only the latter is whole)
PASSAGE = "passage"
DOCUMENT = "document"
Grades = dict[str, float]
_QRELS = ("passage_qrels", "passage_binary_qrels", "full_document_qrels")
MAX_P_DEPTH = 2000  # passages a query, section 4.3 of the paper


class Task(NamedTuple):
    """A row of the benchmark: everything in which its tasks differ."""

    instruction: str  # Table 3 in our words, for a release row without one
    document: str  # what a document is, in words
    whole: bool = False  # never cut into passages: both variants search the same text
    max_p: bool = False
    binary: bool = False  # labels for recall and the rest are released beside the graded ones


class LabelledQuery(NamedTuple):
    """A row of query_labels."""

    query_id: str
    text: str
    instruction: str  # empty where the row has none
    grades: dict[str, Grades]  # by column: _QRELS


COUNTS = {  # passages, evaluation queries (Table 1 of the paper) and whole documents (Table 2)
    "tip_of_the_tongue": (1_083_337, 135, 231_852),
    "stack_exchange": (40_956, 107, 5_035),
    "paper_retrieval": (363_133, 72, 363_133),
    "set_ops": (651_704, 423, 325_505),
    "clinical_trial": (914_628, 113, 375_580),
    "legal_qa": (1_182_626, 6_753, 296_274),
    "theorem_retrieval": (23_839, 69, 23_839),
    "code_retrieval": (232_444, 3_665, 232_444),
}
FOLDERS = {  # in the release, where that is not the task's own name
    "paper_retrieval": "scientific_paper",
    "set_ops": "set_operation_entity_retrieval",
}
TASKS = {
    "tip_of_the_tongue": Task(
        "Somebody describes a thing whose name escapes them; find the page about that thing.",
        "a page of an encyclopedia about one thing, in Markdown",
        max_p=True,
    ),
    "stack_exchange": Task(
        "Find pages that help to answer the question.", "a web page that helps to answer a question"
    ),
    "paper_retrieval": Task(
        "Find scientific papers that meet the requirements.",
        "a scientific paper: title, fields and abstract, in Markdown",
        binary=True,
        whole=True,
    ),
    "set_ops": Task(
        "Find the pages of all things that satisfy every part of the request.",
        "a page of an encyclopedia about one thing, in Markdown",
        max_p=True,
    ),
    "clinical_trial": Task(
        "Find clinical trials that suit the patient whose history is given.",
        "the record of a clinical trial: title, conditions, interventions, criteria",
        max_p=True,
    ),
    "legal_qa": Task(
        "Find the legal texts that decide the question, of the place that it names.",
        "a section of a law or a decision of a court, in Markdown",
    ),
    "theorem_retrieval": Task(
        "Find theorems that help to solve the problem.", "a theorem with its proof", whole=True
    ),
    "code_retrieval": Task(
        "Find programs that solve the problem.", "a program that solves a problem", whole=True
    ),
}


def load(request: LoadRequest) -> Environment:
    """Load a task in one variant, from the release or the task's own folder."""
    task = TASKS[request.name]
    every = {name: FOLDERS.get(name, name) for name in TASKS}
    folder = request.place([every[request.name]], every.values())
    documents = _read_corpus(request, folder, task)
    rows = read_queries(folder, request.split)
    judgements = _judgements(request, task, rows, documents)
    headline = request.qrels or next(iter(judgements))
    if headline not in judgements:
        raise NotApplicable(
            f"crumb/{request.name}:{request.variant} has no judgements by {headline}; leave out "
            f"--qrels"
        )
    notes = []
    bare = [row.query_id for row in rows if not row.grades["passage_qrels"]]
    if request.variant == DOCUMENT and task.whole:
        notes.append("this task was never cut into passages: :document searches the same text")
    elif request.variant == PASSAGE and bare:
        notes.append(
            f"no passage judgements, and so 0 by these: {plural(len(bare), 'query', 'queries')}, e.g. {bare[0]!r}"
        )
    max_p = judgements[headline].unit_of is not None
    queries = (
        Query(row.query_id, row.text, request.objective(row.instruction or task.instruction))
        for row in rows
    )
    return request.make(
        RELEASE,
        documents=documents,
        queries=tuple(queries),
        judgements=judgements,
        headline=headline,
        metrics=METRICS,
        depth=MAX_P_DEPTH if max_p else 1000,
        max_p=max_p,
        hints={"document": task.document},
        notes=tuple(notes),
    )


def _judgements(
    request: LoadRequest,
    task: Task,
    rows: list[LabelledQuery],
    documents: Corpus,
) -> dict[str, Judgements]:
    by_passage, binary, by_document = (
        {row.query_id: row.grades[column] for row in rows} for column in _QRELS
    )
    if request.variant == DOCUMENT and not task.whole:
        return {DOCUMENT: Judgements(by_document, relevant_from=1)}
    for column in ["passage_binary_qrels"] * task.binary + ["full_document_qrels"] * task.max_p:
        if bare := [row.query_id for row in rows if not row.grades[column]]:
            raise DataError(
                f"{request.folder}: query {bare[0]!r} has no {column}, which {request.task} needs"
            )
    passages = {PASSAGE: Judgements(by_passage, binary if task.binary else None, relevant_from=1)}
    if not task.max_p:
        return passages

    def parent(doc_id: str) -> str:
        # The official script cuts the chunk number off; the release also says the parent outright.
        return documents[doc_id].parent or doc_id.partition(":")[0]

    # Unjudged parents would score 0 without a word.
    for query_id, labels in list(by_passage.items())[:5]:
        parents = [
            parent(passage)
            for passage, label in labels.items()
            if label > 0 and passage in documents
        ]
        if parents and by_document[query_id].keys().isdisjoint(parents):
            raise DataError(
                f"{request.folder}: the documents judged for query {query_id!r} are not those that "
                f"its passages were cut from, e.g. {parents[0]!r}; are all files from the same "
                f"release?"
            )
    return {DOCUMENT: Judgements(by_document, unit_of=parent, relevant_from=1), **passages}


def _read_corpus(request: LoadRequest, folder: Path, task: Task) -> Corpus:
    # In the release, the document corpus of a task that was never cut is its passage file.
    is_whole = request.variant == DOCUMENT and not task.whole
    path = _find(folder, "full_document_corpus" if is_whole else "passage_corpus")

    def read() -> Iterator[Placed]:
        for location, row in tables.read_objects(path):
            doc_id = tables.read_id(tables.pick_column(location, row, "document_id"), location)
            text = tables.check_text(row.get("document_content"), location, "document_content")
            parent = row.get("parent_id")
            parent_id = "" if parent is None else tables.read_id(parent, location)
            yield location, Document(doc_id, text, parent=parent_id)

    return open_corpus(request.home, [path], read)


def read_queries(folder: Path, split: str) -> list[LabelledQuery]:
    """Read the queries of "dev", "test" or "all" of the task in a folder, in the release's order."""
    queries: dict[str, LabelledQuery] = {}
    for part, name in (("test", "eval"), ("dev", "val")):
        if split not in (part, "all"):
            continue
        path = _find(folder, f"{name}/query_labels")
        count = len(queries)
        for location, row in tables.read_objects(path):
            query_id = tables.read_id(tables.pick_column(location, row, "query_id"), location)
            if query_id in queries:
                raise DataError(f"{location}: the id {query_id!r} was there before")
            text = tables.check_text(row.get("query_content"), location, "query_content")
            instruction = tables.check_text(
                row.get("instruction"), location, "instruction", optional=True
            ).strip()
            row.setdefault("passage_binary_qrels")  # few tasks have it
            grades = {
                name: _read_grades(tables.pick_column(location, row, name), f"{location}, {name}")
                for name in _QRELS
            }
            queries[query_id] = LabelledQuery(query_id, text, instruction, grades)
        if len(queries) == count:
            raise DataError(f"{path} has no queries in it")
    return list(queries.values())


def _find(folder: Path, name: str) -> Path:
    if path := tables.find_file(folder / f"{name}.jsonl"):
        return path
    raise DataError(f"{folder} holds no {name}.jsonl (nor the same as .gz)")


class Label(TypedDict):
    """A judgement in a cell."""

    id: str | int
    label: float


def _read_grades(cell: Any, location: str) -> Grades:
    try:
        labels = schemas.validate(list[Label], cell or [])
    except ValueError as error:
        raise DataError(f'{location}: not a list of {{"id", "label"}}: {error}') from None
    grades: Grades = {}
    for label in labels:
        doc_id = tables.read_id(label["id"], location)
        grade = tables.check_grade(label["label"], location)
        if (before := grades.setdefault(doc_id, grade)) != grade:
            raise DataError(f"{location}: {doc_id!r} is judged twice, {before} and {grade}")
    return grades


def _facts(name: str, task: Task) -> TaskInfo:
    passages, queries, documents = COUNTS[name]
    protocol = (
        "All passages are ranked; nDCG gains the label, linear; recall and the rest take labels "
        "from 1 on."
        + f" MaxP: {MAX_P_DEPTH} passages a query, of which the best of each document counts."
        * task.max_p
        + " Not cut into passages." * task.whole
        + " Recall and the rest take the binary labels that are released beside the graded ones."
        * task.binary
    )
    files = ["passage_corpus.jsonl", "eval/query_labels.jsonl", "val/query_labels.jsonl"]
    files[1:1] = ["full_document_corpus.jsonl"] * (not task.whole)
    return TaskInfo(
        asked=task.instruction,
        metric="nDCG@10",
        protocol=protocol,
        dev_split="the release's: validation queries, 10 % of all or 100, whichever is fewer",
        documents={PASSAGE: passages, DOCUMENT: documents},
        queries=queries,
        files=tuple(f"{FOLDERS.get(name, name)}/{file}" for file in files),
    )


FACTS = {name: _facts(name, task) for name, task in TASKS.items()}
SUITE = Suite(
    RELEASE,
    FACTS,
    load,
    variants=(PASSAGE, DOCUMENT),
    judgements=(DOCUMENT, PASSAGE),
    opaque_ids=("stack_exchange",),  # named after sites, as queries are
)
