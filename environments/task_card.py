"""Tasks described: the rows of `environments list`, the cards of `show`, and the findings of
`check`.

Reads data through `environments.load` alone, and prints nothing.
"""

import dataclasses
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from typing import Any, NamedTuple

import environments
from environments.base import EmptySplit, Environment, Suite, TaskInfo
from tools import files
from tools.errors import DataError
from tools.files import sextant_home
from tools.records import Query

Columns = Mapping[str, str] | None  # as environments.load takes them
SAMPLES = 3
GOLDEN = environments.MINI / "golden.json"
BLIND_READER_ANSWERS = environments.MINI / "blind_reader_answers.json"
# Where labels are points and nobody says what suffices, readers named the best three documents of a
# query.
_BEST_THREE = ("crumb/paper_retrieval", "birco/doris_mae")


def data_state(task: str) -> str:
    """Return "full" (fetched), "outdated" (fetched at another revision), "mini", or "none"
    (without a miniature).
    """
    try:
        return environments.data_folder(task, None)[0]
    except DataError:
        return "outdated" if environments.fetch_marker(task).exists() else "none"


def _known(task: str) -> tuple[Suite, TaskInfo, int | None]:
    """Return (the suite, the task's facts, the documents in the paper) for a full name."""
    suite_name, name, variant = environments.split_name(task)
    suite = environments.suite(suite_name)
    return suite, suite.tasks[name], suite.tasks[name].documents.get(variant or suite.variants[0])


def task_row(task: str) -> dict[str, Any]:
    """Return a task's line in the list: counts of the data that a run would use now, and of
    the paper.
    """
    suite_name, name, _ = environments.split_name(task)
    _, facts, documents = _known(task)
    counts: dict[str, Any] = {"documents": None, "dev": None, "test": None}
    if (
        data := data_state(task)
    ) == "mini":  # a fetched release is too large to be read for a list; `show` counts it
        try:
            dev, test = (environments.load(task, "mini", split) for split in ("dev", "test"))
            counts = {
                "documents": len(test.documents),
                "dev": len(dev.queries),
                "test": len(test.queries),
            }
        except DataError:  # which `check` explains; the other tasks are listed all the same
            data = "damaged"
    card = {"suite": suite_name, "task": name, "metric": facts.metric, "data": data}
    return card | counts | {"paper_documents": documents, "paper_queries": facts.queries}


def _load_splits(task: str, data: str | None, columns: Columns) -> dict[str, Environment]:
    test = environments.load(task, data, "test", columns=columns)
    try:
        dev = environments.load(task, data, "dev", columns=columns)
    except EmptySplit:
        dev = dataclasses.replace(test, queries=(), split="dev")
    return {"dev": dev, "test": test}


def task_card(task: str, data: str | None = None, columns: Columns = None) -> dict[str, Any]:
    """Return everything that a user should know before running a task."""
    dev, test = _load_splits(task, data, columns).values()
    full_name = test.task
    if full_name.startswith("own/"):
        suite = environments.suite("own")
        documents = None
        protocol = "; ".join((*test.warnings, *test.notes))
        dev_split = "as the data or its benchmark.toml has it"
        facts = TaskInfo(test.queries[0].objective, test.metric, protocol, dev_split, {}, 0, ())
    else:
        suite, facts, documents = _known(full_name)
    relevant = [sum(grade > 0 for grade in grades.values()) for grades in test.qrels.values()]
    here = {
        "data": test.data,
        "source": test.source,
        "documents": len(test.documents),
        "dev": len(dev.queries),
    }
    return {
        "task": full_name,
        "asked": facts.asked,
        "metric": facts.metric,
        "metrics": list(test.metrics),
        "protocol": facts.protocol,
        "judgements": list(test.judgements),
        "variants": list(suite.variants[1:]),
        "dev_split": facts.dev_split,
        "dev_queries": [query.query_id for query in dev.queries],
        "paper": {"title": suite.release.paper, "documents": documents, "queries": facts.queries},
        "here": here
        | {"test": len(test.queries), "relevant_per_query": sum(relevant) / len(relevant)},
        "hints": dict(test.hints),
        "licence": suite.release.licence
        if test.data != "mini"
        else "original text, made for this repository",
        "release": {
            "of": suite.release.repository,
            "revision": suite.release.revision,
            "by": suite.release.kind,
        },
        "samples": [_sample(test, query) for query in test.queries[:SAMPLES]],
    }


def _sample(environment: Environment, query: Query) -> dict[str, Any]:
    """Return a query with a relevant document and one that is not: judged so, else unjudged
    in its pool or corpus.
    """
    grades = environment.qrels[query.query_id]
    unit = environment.judgements[environment.headline].unit_of or str
    documents = environment.documents
    doc_ids = sorted(query.candidates) if query.candidates else documents.doc_ids
    # The start differs by query: in MultiConIR, a document and its neighbours differ in a sentence.
    start = zlib.crc32(query.query_id.encode("utf-8", "surrogatepass"))
    turned = (doc_ids[(start + step) % len(doc_ids)] for step in range(len(doc_ids)))
    unjudged = (
        doc_id for doc_id in turned if unit(doc_id) not in grades and doc_id not in query.excluded
    )
    irrelevant = next((doc_id for doc_id, grade in grades.items() if grade <= 0), None) or next(
        unjudged, None
    )

    def show(identifier: str) -> dict[str, str]:
        passages = (
            document for document in documents.stream() if unit(document.doc_id) == identifier
        )  # of a parent (MaxP)
        document = (
            documents.get(identifier) or documents.get(f"{identifier}:0") or next(passages, None)
        )
        return {"doc_id": identifier, "text": document.text if document else ""}

    return {
        "query_id": query.query_id,
        "query": query.text,
        "relevant": show(max(grades, key=grades.__getitem__)),
        "irrelevant": None if irrelevant is None else show(irrelevant),
    }


class CheckResult(NamedTuple):
    """The result of one check."""

    what: str
    fine: bool
    said: str


def run_checks(
    task: str, data: str | None = None, columns: Columns = None
) -> Iterator[CheckResult]:
    """Yield the findings of `check` on a task's data; the first is whether it loads."""
    for digests in (sextant_home() / "corpora").glob(
        "*/.digests.json"
    ):  # of layouts.py: so that every byte is read
        digests.unlink(missing_ok=True)
    try:
        environments_by_split = _load_splits(task, data, columns)
    except DataError as error:
        yield CheckResult("loading", False, str(error))
        return
    dev, test = environments_by_split.values()
    yield CheckResult("loading", True, f"{test.source}, fingerprint {test.fingerprint}")
    if test.data == "full":
        yield check_files(test.task)
    yield _counts(dev, test)
    for warning in dict.fromkeys((*test.warnings, *dev.warnings)):
        yield CheckResult("data", False, warning)
    yield from (CheckResult("note", True, note) for note in test.notes)
    both = {query.query_id for query in dev.queries} & {query.query_id for query in test.queries}
    repeated = (
        len(dev.queries)
        + len(test.queries)
        - len({query.text for query in (*dev.queries, *test.queries)})
    )
    text = (
        f"{min(both)!r} is in both"
        if both
        else f"no query in both; {repeated} query texts that come again"
    )
    yield CheckResult("dev and test", not both, text)
    for name, judgements in test.judgements.items():
        unit_of = judgements.unit_of if judgements.judged_by_unit else None
        units = unit_of and {unit_of(doc_id) for doc_id in test.documents}
        for split, environment in environments_by_split.items():
            # Dev may be over other documents (BIRCO), but never in other units.
            yield from _judgements(environment, split, name, units or environment.documents)
    yield _masks(test)
    repeats = len(test.documents.repeats())
    yield CheckResult(
        "equal texts",
        True,
        f"{repeats} documents repeat an earlier one's text; judged by id, never merged",
    )
    yield _golden(test)
    if test.data == "mini":
        for name, read in json.loads(BLIND_READER_ANSWERS.read_text(encoding="utf-8")).items():
            if environments.split_name(name)[:2] == environments.split_name(test.task)[:2]:
                agreed, answers, queries = count_agreement(name, read)
                yield CheckResult(
                    "blind reading", True, f"{queries}, {agreed} of {answers} as judged"
                )


def check_files(task: str) -> CheckResult:
    """Return whether all files of a fetched task are there, as they were fetched."""
    marker = environments.fetch_marker(task)
    try:
        marked = json.loads(marker.read_text(encoding="utf-8"))["files"]
        places = {marker.parent / path: marked[path]["sha256"] for path in _known(task)[1].files}
        if changed := next(
            (path for path, digest in places.items() if files.sha256(path) != digest), None
        ):
            return CheckResult(
                "files", False, f"{changed} has changed since it was fetched; fetch it again"
            )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return CheckResult(
            "files", False, f"they cannot be compared with the marker ({error}); fetch them again"
        )
    return CheckResult(
        "files", True, f"{len(places)} files, each with the SHA-256 that it was fetched with"
    )


def _counts(dev: Environment, test: Environment) -> CheckResult:
    finding = (
        f"{len(test.documents)} documents, {len(dev.queries)} dev and {len(test.queries)} test "
        f"queries"
    )
    if test.data != "full":
        return CheckResult("counts", True, finding)
    _, facts, documents = _known(test.task)
    queries = len(test.queries) + (len(dev.queries) if test.split_note else 0)
    if test.comparisons:  # a record has several queries
        queries = len({query.query_id.partition("-")[0] for query in (*dev.queries, *test.queries)})
    fine = queries == facts.queries and documents in (None, len(test.documents))
    paper = f"the paper has {documents or 'no count of'} documents and {facts.queries} queries"
    return CheckResult("counts", fine, f"{finding}; {paper}")


def _judgements(
    environment: Environment, split: str, name: str, doc_ids: Container[str]
) -> Iterator[CheckResult]:
    """Yield whether all judged documents are `known`, and whether every query has a relevant
    one.
    """
    judgements = environment.judgements[name]
    lost = list[str]()
    without = 0
    grade_counts = Counter[float]()
    everything = set[str]()
    missing = set[str]()
    for query in environment.queries:
        grades = judgements.qrels.get(query.query_id, {})
        grade_counts.update(grades.values())
        without += not any(grade > 0 for grade in grades.values())
        judged = {**grades, **(judgements.binary or {}).get(query.query_id, {})}
        lost += [
            f", e.g. {doc_id!r} of query {query.query_id!r}"
            for doc_id in judged
            if doc_id not in doc_ids
        ]
        everything |= judged.keys()
        missing |= {doc_id for doc_id in judged if doc_id not in doc_ids}
    if len(grade_counts) <= 8:
        scale = ", ".join(f"{grade:g}: {count}" for grade, count in sorted(grade_counts.items()))
    else:  # e.g. means of several people's grades
        low = sum(count for grade, count in grade_counts.items() if grade <= 0)
        high = sum(count for grade, count in grade_counts.items() if grade >= 1)
        scale = f"0 or less: {low}, between 0 and 1: {grade_counts.total() - low - high}, 1 or more: {high}"
    check = f"{name} judgements, {split}"
    finding = f"{grade_counts.total()} of them ({scale}); {len(lost)} name no document{lost[0] if lost else ''}"
    is_custom = environment.task.startswith("own/")  # whose quirks are counted
    yield CheckResult(
        check, not lost or (is_custom and len(missing) * 2 <= len(everything)), finding
    )
    yield CheckResult(
        f"queries without {check}", is_custom or not without, f"{without} have nothing relevant"
    )


def _masks(environment: Environment) -> CheckResult:
    masked = [
        (query.query_id, doc_id) for query in environment.queries for doc_id in query.excluded
    ]
    unknown = sum(doc_id not in environment.documents for _, doc_id in masked)
    every = [judgements.qrels for judgements in environment.judgements.values()]
    positive = sum(
        qrels.get(query_id, {}).get(doc_id, 0) > 0 for qrels in every for query_id, doc_id in masked
    )
    finding = f"{len(masked)} of them; {unknown} name no document, {positive} are judged relevant"
    # What is not there cannot be shown; own.py refuses ids that are only spelled differently.
    absence = environment.task.startswith("own/") or not unknown
    return CheckResult("masked documents", absence and not positive, finding)


def _golden(test: Environment) -> CheckResult:
    digests = digest_records(test)
    listed = ", ".join(f"{subject} {digest}" for subject, digest in digests.items())
    recorded = json.loads(GOLDEN.read_text(encoding="utf-8")) if test.data == "mini" else {}
    if test.task not in recorded:
        return CheckResult("golden records", True, f"none on record for this data; {listed}")
    wrong = [
        subject for subject, digest in recorded[test.task].items() if digests.get(subject) != digest
    ]
    finding = (
        f"first, tenth and last are as recorded ({listed})"
        if not wrong
        else f"the {wrong[0]} is another one"
    )
    return CheckResult("golden records", not wrong, finding)


def digest_records(environment: Environment) -> dict[str, str]:
    """Return digests of the first, tenth and last document and query, which show a wrong
    order or form.
    """
    documents = environment.documents
    queries = environment.queries
    chosen: dict[str, tuple[str, ...]] = {}
    for name, at in (("first", 0), ("tenth", 9), ("last", -1)):
        if at < len(documents):
            document = documents[documents.doc_ids[at]]
            chosen[f"{name} document"] = (document.doc_id, document.title, document.text)
        if at < len(queries):
            chosen[f"{name} query"] = (queries[at].query_id, queries[at].text)
    return {
        subject: hashlib.sha256(json.dumps(record).encode()).hexdigest()[:16]
        for subject, record in chosen.items()
    }


def count_agreement(task: str, read: dict[str, Any]) -> tuple[int, int, str]:
    """Return (blind readers' answers that agree with the judgements, all their answers, how many
    queries they read).

    `read` has each query's relevant documents, or grades, where a missing one is 0
    (environments/mini/README.md).
    """
    environment = environments.load(task, "mini", "all")
    agreed = answers = 0
    for query_id, reading in read.items():
        grades = environment.qrels[query_id]
        if isinstance(reading, dict):
            answers += len(grades)
            agreed += sum(reading.get(doc_id, 0) == grade for doc_id, grade in grades.items())
        else:
            enough = sorted(grades.values())[-3] if task in _BEST_THREE else 1
            answers += len(reading)
            agreed += sum(grades.get(doc_id, 0) >= enough for doc_id in reading)
    return agreed, answers, f"{len(read)} of {len(environment.queries)} queries"
