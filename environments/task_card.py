"""Task descriptions for `sextant tasks`: rows of `list`, cards of `show`, findings of `check`.

Reads data through `environments.load` alone, and prints nothing.
"""

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Container, Iterator, Mapping
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
    return _SuiteFacts(suite, info, info.documents.get(variant or suite.variants[0]))


def task_row(task: str) -> JsonObject:
    """Return a task's row in the list, with the counts of its data and of the paper."""
    suite_name, name, _ = environments.split_name(task)
    _, facts, documents = _read_facts(task)
    sizes: JsonMapping = dict.fromkeys(("documents", "dev", "test"))
    data = data_state(task)
    # A fetched release is too large to be read for a list; `show` counts it.
    if data == "mini":
        try:
            sizes = _count(**_load_splits(task, "mini", {}))
        except DataError:  # which `check` explains; the other tasks are listed all the same
            data = "damaged"
    return {
        "suite": suite_name,
        "task": name,
        "metric": facts.metric,
        "data": data,
        **sizes,
        "paper_documents": documents,
        "paper_queries": facts.queries,
    }


def _load_splits(task: str, data: str | None, options: JsonMapping) -> dict[str, Environment]:
    test = environments.load(task, data, "test", **options)
    try:
        dev = environments.load(task, data, "dev", **options)
    except EmptySplit:
        dev = dataclasses.replace(test, queries=(), split="dev")
    return {"dev": dev, "test": test}


def _count(dev: Environment, test: Environment) -> dict[str, int]:
    return {
        "documents": len(test.documents),
        "dev": len(dev.queries),
        "test": len(test.queries),
    }


def describe_sizes(sizes: Mapping[str, int]) -> str:
    """Return the number of documents, and of queries of each split, in words."""
    return (
        f"{plural(sizes['documents'], 'document')}, {sizes['dev']} dev and "
        f"{plural(sizes['test'], 'test query', 'test queries')}"
    )


def task_card(task: str, data: str | None = None, **options: Any) -> JsonObject:
    """Return the facts that a user needs before running a task; options are those of environments.load."""
    splits = _load_splits(task, data, options)
    dev, test = splits.values()
    full_name = test.task
    if full_name.startswith("own/"):
        suite = environments.suite("own")
        documents = None
        facts = TaskInfo(
            test.queries[0].objective,
            test.metric,
            "; ".join(note.rstrip(".") for note in (*test.warnings, *test.notes)),
            "as the data or its benchmark.toml has it",
            {},
            0,
            (),
        )
    else:
        suite, facts, documents = _read_facts(full_name)
    judged = test.judgements[test.headline]
    relevant = [len(judged.relevant(query.query_id)) for query in test.queries]
    licence = suite.release.licence
    if test.data == "mini":
        licence = "original text, made for this repository"
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
        "paper": {
            "title": suite.release.paper,
            "documents": documents,
            "queries": facts.queries,
        },
        "here": {
            "data": test.data,
            "source": test.source,
            **_count(**splits),
            "relevant_per_query": sum(relevant) / len(relevant),
        },
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
    judged = environment.judgements[environment.headline]
    documents = environment.documents
    relevant = judged.relevant(query.query_id)
    sample: JsonObject = {
        "query_id": query.query_id,
        "query": query.text,
        "relevant": max(relevant, key=relevant.__getitem__, default=None),
        "irrelevant": next(
            (each for each in environment.qrels[query.query_id] if each not in relevant), None
        ),
    }
    for kind in ("relevant", "irrelevant"):
        if (unit := sample[kind]) is not None:
            document = documents.get(unit) or documents.get(f"{unit}:0")
            if not document and judged.unit_of:  # a parent, whose passages are judged (MaxP)
                ids = (doc_id for doc_id in documents if judged.unit_of(doc_id) == unit)
                document = documents.get(next(ids, ""))
            sample[kind] = {"doc_id": unit, "text": document.text if document else ""}
    return sample


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
        splits = _load_splits(task, data, options)
    except DataError as error:
        yield CheckResult("loading", False, str(error))
        return
    dev, test = splits.values()
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
        for split, environment in splits.items():
            # Dev may be over other documents (BIRCO), but never in other units.
            yield from _judgements(environment, split, name, units or environment.documents)
    yield _masks(test)
    if not test.release_ids:  # others than ours
        leak = measure_leak(test)
        remedy = "; opaque_ids = true in benchmark.toml gives programs others" * leak.tells
        yield CheckResult("ids", not leak.tells, f"{leak}{remedy}")
    repeats = count_of(len(test.documents.repeats()), "document")
    finding = f"{repeats} with the text of an earlier one; judged by id, never merged"
    yield CheckResult("equal texts", True, finding)
    yield _golden(test)


def _check_splits(dev: Environment, test: Environment) -> CheckResult:
    both = {query.query_id for query in dev.queries} & {query.query_id for query in test.queries}
    if both:
        return CheckResult("dev and test", False, f"{min(both)!r} is in both")
    texts = [query.text for query in (*dev.queries, *test.queries)]
    repeated = len(texts) - len(set(texts))
    return CheckResult(
        "dev and test", True, f"no query in both; {count_of(repeated, 'repeated query text')}"
    )


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
    finding = describe_sizes(_count(dev, test))
    if test.data != "full":
        return CheckResult("counts", True, finding)
    _, facts, documents = _read_facts(test.task)
    every = [*test.queries, *dev.queries]
    queries = len(every if test.split_note else test.queries)
    if test.comparisons:
        # A record has several queries.
        queries = len({query.query_id.partition("-")[0] for query in every})
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
    lost = list[tuple[str, str]]()  # judgements of documents that are not there
    without = 0  # queries without a relevant document
    for query in environment.queries:
        grades = judgements.qrels.get(query.query_id, {})
        labelled = {**grades, **(judgements.binary or {}).get(query.query_id, {})}
        grade_counts.update(grades.values())
        judged.update(labelled)
        lost += [(doc_id, query.query_id) for doc_id in labelled if doc_id not in doc_ids]
        without += not judgements.relevant(query.query_id)
    check = f"{name} judgements, {split}"
    scale = f" ({_describe_scale(grade_counts)})" if grade_counts else ""
    example = ", e.g. {!r} of query {!r}".format(*lost[0]) if lost else ""
    finding = (
        f"{grade_counts.total() or 'none'} of them{scale}, {judgements.level}; "
        f"{len(lost) or 'none'} without a document{example}"
    )
    # Quirks of a user's data are counted, not refused.
    is_custom = environment.task.startswith("own/")
    is_usable = is_custom and len({doc_id for doc_id, _ in lost}) * 2 <= len(judged)
    yield CheckResult(check, is_usable or not lost, finding)
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
        masked += len(query.excluded)
        unknown += sum(doc_id not in environment.documents for doc_id in query.excluded)
        for judgements in environment.judgements.values():
            positive += len(query.excluded & judgements.relevant(query.query_id).keys())
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
    digests = {}

    def add(subject: str, *record: str) -> None:
        digests[subject] = hashlib.sha256(json.dumps(record).encode()).hexdigest()[:16]

    for name, at in (("first", 0), ("tenth", 9), ("last", -1)):
        if at < len(documents):
            document = documents[documents.doc_ids[at]]
            add(f"{name} document", document.doc_id, document.title, document.text)
        if at < len(queries):
            add(f"{name} query", queries[at].query_id, queries[at].text)
    return digests
