"""Task descriptions for `sextant tasks`: rows of `list`, cards of `show`, findings of `check`.

Reads data through `environments.load` alone, and prints nothing.
"""

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

from sextant import environments
from sextant.environments.base import LEFT_OUT, EmptySplit, Environment, Suite, TaskInfo
from sextant.environments.opaque_ids import measure_leak
from sextant.tools.errors import DataError
from sextant.tools.platform import files
from sextant.tools.platform.files import sextant_home
from sextant.tools.platform.number_format import count_of, plural
from sextant.tools.records import JsonMapping, JsonObject, Query

SAMPLES = 3
GOLDEN = environments.MINI / "golden.json"


def data_state(task: str) -> str:
    """Return the state of the data: "full", "outdated", "mini" or "none".

    Outdated data was fetched at another revision; "none" has no miniature either.
    """
    try:
        return environments.data_folder(task, None)[0]
    except DataError:
        return "outdated" if environments.fetch_marker(task).exists() else "none"


class _SuiteFacts(NamedTuple):
    suite: Suite
    info: TaskInfo
    documents: int | None  # in the paper; None if the paper has no count


def _read_facts(task: str) -> _SuiteFacts:
    suite_name, name, variant = environments.split_name(task)
    suite = environments.suite(suite_name)
    info = suite.tasks[name]
    documents = info.documents.get(variant or suite.variants[0])
    return _SuiteFacts(suite, info, documents)


def task_row(task: str) -> JsonObject:
    """Return a task's row in the list, with the counts of its data and of the paper."""
    suite_name, name, _ = environments.split_name(task)
    _, facts, documents = _read_facts(task)
    counts: JsonObject = {
        "documents": None,
        "dev": None,
        "test": None,
    }
    data = data_state(task)
    # A fetched release is too large to be read for a list; `show` counts it.
    if data == "mini":
        try:
            dev = environments.load(task, "mini", "dev")
            test = environments.load(task, "mini", "test")
            counts = {
                "documents": len(test.documents),
                "dev": len(dev.queries),
                "test": len(test.queries),
            }
        except DataError:  # which `check` explains; the other tasks are listed all the same
            data = "damaged"
    card = {
        "suite": suite_name,
        "task": name,
        "metric": facts.metric,
        "data": data,
    }
    return card | counts | {"paper_documents": documents, "paper_queries": facts.queries}


def _load_splits(task: str, data: str | None, options: JsonMapping) -> dict[str, Environment]:
    test = environments.load(task, data, "test", **options)
    try:
        dev = environments.load(task, data, "dev", **options)
    except EmptySplit:
        dev = dataclasses.replace(
            test,
            queries=(),
            split="dev",
        )
    return {"dev": dev, "test": test}


def task_card(task: str, data: str | None = None, **options: Any) -> JsonObject:
    """Return the facts that a user needs before running a task; options are those of environments.load."""
    dev, test = _load_splits(task, data, options).values()
    full_name = test.task
    if full_name.startswith("own/"):
        suite = environments.suite("own")
        documents = None
        protocol = "; ".join(note.rstrip(".") for note in (*test.warnings, *test.notes))
        dev_split = "as the data or its benchmark.toml has it"
        facts = TaskInfo(test.queries[0].objective, test.metric, protocol, dev_split, {}, 0, ())
    else:
        suite, facts, documents = _read_facts(full_name)
    judged = test.judgements[test.headline]
    relevant = [len(judged.relevant(query.query_id)) for query in test.queries]
    availability = {
        "data": test.data,
        "source": test.source,
        "documents": len(test.documents),
        "dev": len(dev.queries),
        "test": len(test.queries),
        "relevant_per_query": sum(relevant) / len(relevant),
    }
    is_mini = test.data == "mini"
    licence = "original text, made for this repository" if is_mini else suite.release.licence
    paper = {
        "title": suite.release.paper,
        "documents": documents,
        "queries": facts.queries,
    }
    return {
        "task": full_name,
        "asked": facts.asked,
        "metric": facts.metric,
        "metrics": list(test.metrics),
        "protocol": facts.protocol,
        "judgements": list(test.judgements),
        "level": judged.level,
        "variants": list(suite.variants[1:]),
        "dev_split": facts.dev_split,
        "dev_queries": [query.query_id for query in dev.queries],
        "paper": paper,
        "here": availability,
        "hints": dict(test.hints),
        "licence": licence,
        "release": {
            "of": suite.release.repository,
            "revision": suite.release.revision,
            "by": suite.release.kind,
        },
        "samples": [_sample(test, query) for query in test.queries[:SAMPLES]],
    }


def _sample(environment: Environment, query: Query) -> JsonObject:
    """Return a query with a relevant document, and one that is judged not to be, as far as there are."""
    grades = environment.qrels[query.query_id]
    judged = environment.judgements[environment.headline]
    unit = judged.unit_of or str
    documents = environment.documents
    relevant = judged.relevant(query.query_id)
    irrelevant = next((doc_id for doc_id in grades if doc_id not in relevant), None)

    def show(identifier: str) -> dict[str, str]:
        document = documents.get(identifier) or documents.get(f"{identifier}:0")
        if not document:
            # It is a parent, whose passages are judged (MaxP).
            stream = documents.stream()
            passages = (passage for passage in stream if unit(passage.doc_id) == identifier)
            document = next(passages, None)
        return {"doc_id": identifier, "text": document.text if document else ""}

    return {
        "query_id": query.query_id,
        "query": query.text,
        "relevant": show(max(relevant, key=relevant.__getitem__)) if relevant else None,
        "irrelevant": None if irrelevant is None else show(irrelevant),
    }


class CheckResult(NamedTuple):
    """The result of one check."""

    what: str
    fine: bool
    said: str


def run_checks(task: str, data: str | None = None, **options: Any) -> Iterator[CheckResult]:
    """Yield the findings of `check` on a task's data; the first is whether it loads.

    `options` are those of environments.load.
    """
    # Without the digests of earlier readings, every byte is read.
    for digests in (sextant_home() / "corpora").glob("*/.digests.json"):
        digests.unlink(missing_ok=True)
    try:
        environments_by_split = _load_splits(task, data, options)
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
    for note in test.notes:
        is_left_out = note.startswith(LEFT_OUT)
        yield CheckResult("left out" if is_left_out else "note", True, note.removeprefix(LEFT_OUT))
    yield _check_splits(dev, test)
    for name, judgements in test.judgements.items():
        unit_of = judgements.unit_of if judgements.judged_by_unit else None
        units = unit_of and {unit_of(doc_id) for doc_id in test.documents}
        for split, environment in environments_by_split.items():
            # Dev may be over other documents (BIRCO), but never in other units.
            yield from _judgements(environment, split, name, units or environment.documents)
    yield _masks(test)
    if not test.release_ids:  # others than ours
        yield _measure_ids(test)
    repeats = len(test.documents.repeats())
    yield CheckResult(
        "equal texts",
        True,
        f"{count_of(repeats, 'document')} with the text of an earlier one; judged by id, never merged",
    )
    yield _golden(test)


def _measure_ids(environment: Environment) -> CheckResult:
    leak = measure_leak(environment)
    remedy = "; opaque_ids = true in benchmark.toml gives programs others" if leak.tells else ""
    return CheckResult("ids", not leak.tells, f"{leak}{remedy}")


def _check_splits(dev: Environment, test: Environment) -> CheckResult:
    both = {query.query_id for query in dev.queries} & {query.query_id for query in test.queries}
    if both:
        return CheckResult("dev and test", False, f"{min(both)!r} is in both")
    texts = [query.text for query in (*dev.queries, *test.queries)]
    repeated = len(texts) - len(set(texts))
    finding = f"no query in both; {count_of(repeated, 'repeated query text')}"
    return CheckResult("dev and test", True, finding)


def check_files(task: str) -> CheckResult:
    """Return whether all files of a fetched task are there, as they were fetched."""
    marker = environments.fetch_marker(task)
    try:
        marked = json.loads(marker.read_text(encoding="utf-8"))["files"]
        digests = {
            marker.parent / path: marked[path]["sha256"] for path in _read_facts(task).info.files
        }
        for path, digest in digests.items():
            if files.sha256(path) != digest:
                finding = f"{path} has changed since it was fetched; fetch it again"
                return CheckResult("files", False, finding)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        finding = f"they cannot be compared with the marker ({error}); fetch them again"
        return CheckResult("files", False, finding)
    finding = f"{plural(len(digests), 'file')}, each with the SHA-256 that it was fetched with"
    return CheckResult("files", True, finding)


def _counts(dev: Environment, test: Environment) -> CheckResult:
    finding = (
        f"{plural(len(test.documents), 'document')}, {len(dev.queries)} dev and "
        f"{plural(len(test.queries), 'test query', 'test queries')}"
    )
    if test.data != "full":
        return CheckResult("counts", True, finding)
    _, facts, documents = _read_facts(test.task)
    queries = len(test.queries)
    if test.split_note:
        queries += len(dev.queries)
    if test.comparisons:
        # A record has several queries.
        records = {query.query_id.partition("-")[0] for query in (*dev.queries, *test.queries)}
        queries = len(records)
    fine = queries == facts.queries and documents in (None, len(test.documents))
    paper = f"the paper has {documents or 'no count of'} documents and {plural(facts.queries, 'query', 'queries')}"
    return CheckResult("counts", fine, f"{finding}; {paper}")


def _judgements(
    environment: Environment,
    split: str,
    name: str,
    doc_ids: Container[str],
) -> Iterator[CheckResult]:
    """Yield whether all judged documents are in `doc_ids`, and all queries have a relevant one."""
    judgements = environment.judgements[name]
    grade_counts = Counter[float]()
    judged = set[str]()
    lost = 0  # judgements of documents that are not there
    example = ""
    without = 0  # queries without a relevant document
    for query in environment.queries:
        grades = judgements.qrels.get(query.query_id, {})
        grade_counts.update(grades.values())
        without += not judgements.relevant(query.query_id)
        for doc_id in {**grades, **(judgements.binary or {}).get(query.query_id, {})}:
            judged.add(doc_id)
            if doc_id not in doc_ids:
                lost += 1
                example = example or f", e.g. {doc_id!r} of query {query.query_id!r}"
    check = f"{name} judgements, {split}"
    scale = f" ({_describe_scale(grade_counts)})" if grade_counts else ""
    finding = (
        f"{grade_counts.total() or 'none'} of them{scale}, {judgements.level}; "
        f"{lost or 'none'} without a document{example}"
    )
    # Quirks of a user's data are counted, not refused.
    is_custom = environment.task.startswith("own/")
    missing = sum(doc_id not in doc_ids for doc_id in judged)
    yield CheckResult(check, not lost or (is_custom and missing * 2 <= len(judged)), finding)
    # DORIS-MAE has queries without a label of 1, which is a fact of the release.
    fine = is_custom or bool(judgements.relevant_from) or not without
    finding = f"{without or 'none'} without a relevant document"
    yield CheckResult(f"queries without {check}", fine, finding)


def _describe_scale(grade_counts: Counter[float]) -> str:
    if len(grade_counts) <= 8:
        return ", ".join(f"{grade:g}: {count}" for grade, count in sorted(grade_counts.items()))
    # E.g. means of the grades of several people.
    return f"{min(grade_counts):g} to {max(grade_counts):g}"


def _masks(environment: Environment) -> CheckResult:
    masked = 0
    unknown = 0
    positive = 0
    for query in environment.queries:
        for doc_id in query.excluded:
            masked += 1
            unknown += doc_id not in environment.documents
            for judgements in environment.judgements.values():
                positive += doc_id in judgements.relevant(query.query_id)
    finding = f"{masked} of them; {unknown} name no document, {positive} are judged relevant"
    # A missing document cannot be shown. Ids that are only spelled differently are refused before
    # (environments/custom.py).
    harmless = environment.task.startswith("own/") or not unknown
    return CheckResult("masked documents", harmless and not positive, finding)


def _golden(test: Environment) -> CheckResult:
    digests = digest_records(test.released or test)
    listed = ", ".join(f"{subject} {digest}" for subject, digest in digests.items())
    recorded = json.loads(GOLDEN.read_text(encoding="utf-8")) if test.data == "mini" else {}
    if test.task not in recorded:
        return CheckResult("golden records", True, f"none on record for this data; {listed}")
    wrong = [
        subject for subject, digest in recorded[test.task].items() if digests.get(subject) != digest
    ]
    if wrong:
        return CheckResult("golden records", False, f"the {wrong[0]} is another one")
    return CheckResult("golden records", True, f"first, tenth and last are as recorded ({listed})")


def digest_records(environment: Environment) -> dict[str, str]:
    """Return digests of the first, tenth and last document and query.

    They change if the order or the form of the data is wrong.
    """
    documents = environment.documents
    queries = environment.queries
    chosen: dict[str, tuple[str, ...]] = {}
    for name, at in (("first", 0), ("tenth", 9), ("last", -1)):
        if at < len(documents):
            doc_id = documents.doc_ids[at]
            document = documents[doc_id]
            chosen[f"{name} document"] = (document.doc_id, document.title, document.text)
        if at < len(queries):
            query = queries[at]
            chosen[f"{name} query"] = (query.query_id, query.text)
    digests = {}
    for subject, record in chosen.items():
        encoded = json.dumps(record).encode()
        digests[subject] = hashlib.sha256(encoded).hexdigest()[:16]
    return digests
