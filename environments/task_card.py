"""Task descriptions for `sextant tasks`: rows of `list`, cards of `show`, findings of `check`.

Reads data through `environments.load` alone, and prints nothing.
"""

import dataclasses
import hashlib
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sextant import environments
from sextant.environments.base import LEFT_OUT, EmptySplit, Environment, Suite, TaskInfo
from sextant.environments.opaque_ids import measure_leak
from sextant.tools.errors import DataError
from sextant.tools.platform import files
from sextant.tools.platform.files import sextant_home
from sextant.tools.platform.number_format import plural
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
    """Return the facts that a user needs before running a task; options are those of environments.load.

    Of a user's own task, there is neither a paper nor a release.
    """
    splits = _load_splits(task, data, options)
    test = splits["test"]
    judged = test.judgements[test.headline]
    relevant = [len(judged.relevant(query.query_id)) for query in test.queries]
    card = {
        "task": test.task,
        "metrics": list(test.metrics),
        "judgements": list(test.judgements),
        "level": judged.level,
        "dev_queries": list(splits["dev"].queries_by_id),
        "here": {
            "data": test.data,
            "source": test.source,
            **_count(**splits),
            "relevant_per_query": sum(relevant) / len(relevant),
        },
        "hints": dict(test.hints),
        "samples": [_sample(test, query) for query in test.queries[:SAMPLES]],
    }
    if test.task.startswith("own/"):
        return card | {
            "asked": test.queries[0].objective,
            "metric": test.metric,
            "protocol": "; ".join(note.rstrip(".") for note in (*test.warnings, *test.notes)),
            "dev_split": "as the data or its benchmark.toml has it",
        }
    suite, facts, documents = _read_facts(test.task)
    release = suite.release
    is_mini = test.data == "mini"
    return card | {
        "asked": facts.asked,
        "metric": facts.metric,
        "protocol": facts.protocol,
        "dev_split": facts.dev_split,
        "variants": list(suite.variants[1:]),
        "paper": {"title": release.paper, "documents": documents, "queries": facts.queries},
        "licence": "original text, made for this repository" if is_mini else release.licence,
        "release": {"of": release.repository, "revision": release.revision, "by": release.kind},
    }


def _sample(environment: Environment, query: Query) -> JsonObject:
    """Return a query with a relevant document, and one that is judged not to be, as far as there are."""
    relevant = environment.judgements[environment.headline].relevant(query.query_id)
    best = max(relevant, key=relevant.__getitem__, default=None)
    grades = environment.qrels[query.query_id]
    other = next((unit for unit in grades if unit not in relevant), None)
    return {
        "query_id": query.query_id,
        "query": query.text,
        "relevant": best and {"doc_id": best, "text": _read_unit(environment, best)},
        "irrelevant": other and {"doc_id": other, "text": _read_unit(environment, other)},
    }


def _read_unit(environment: Environment, unit: str) -> str:
    """Return the text of a judged document, or of the first passage of one; "" if there is none."""
    documents = environment.documents
    if not (document := documents.get(unit) or documents.get(f"{unit}:0")):
        passages = environment.list_documents([unit]).get(unit)
        document = documents[passages[0]] if passages else None
    return document.text if document else ""


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
    both = sorted(test.queries_by_id.keys() & dev.queries_by_id.keys())
    yield _report("dev and test", both, "queries are in both")
    for name, judgements in test.judgements.items():
        unit_of = judgements.unit_of if judgements.judged_by_unit else None
        units = unit_of and {unit_of(doc_id) for doc_id in test.documents}
        for split, environment in splits.items():
            # Dev may be over other documents (BIRCO), but never in other units.
            yield from _judgements(environment, split, name, units or environment.documents)
    yield from _masks(test)
    if not test.release_ids:  # others than ours
        leak = measure_leak(test)
        remedy = "; opaque_ids = true in benchmark.toml gives programs others" * leak.tells
        yield CheckResult("ids", not leak.tells, f"{leak}{remedy}")
    repeats = [*test.documents.repeats()]
    said = "documents with the text of an earlier one; judged by id, never merged"
    yield _report("equal texts", repeats, said, harmless=True)
    if test.data == "mini":
        yield _golden(test)


def check_files(task: str) -> CheckResult:
    """Return whether all files of a fetched task are there, as they were fetched."""
    marker = environments.fetch_marker(task)
    paths = _read_facts(task).info.files
    try:
        marked = json.loads(marker.read_text(encoding="utf-8"))["files"]
        changed = [
            path for path in paths if files.sha256(marker.parent / path) != marked[path]["sha256"]
        ]
    except (OSError, ValueError, LookupError, TypeError) as error:
        finding = f"they cannot be compared with the marker ({error}); fetch them again"
        return CheckResult("files", False, finding)
    if changed:
        finding = f"{changed[0]} has changed since it was fetched; fetch it again"
        return CheckResult("files", False, finding)
    finding = f"{plural(len(paths), 'file')}, each with the SHA-256 that it was fetched with"
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


def _report(
    what: str, found: Sequence[object], said: str, *, harmless: bool = False
) -> CheckResult:
    """Return a finding with the number of things that were found, and the first of them."""
    example = f", e.g. {found[0]!r}" if found else ""
    return CheckResult(what, harmless or not found, f"{len(found)} {said}{example}")


def _judgements(
    environment: Environment,
    split: str,
    name: str,
    doc_ids: Container[str],
) -> Iterator[CheckResult]:
    """Yield whether all judged documents are in `doc_ids`, and all queries have a relevant one."""
    judgements = environment.judgements[name]
    labels = {
        query_id: {
            **judgements.qrels.get(query_id, {}),
            **(judgements.binary or {}).get(query_id, {}),
        }
        for query_id in environment.queries_by_id
    }
    lost = [
        (doc_id, query_id)
        for query_id, judged in labels.items()
        for doc_id in judged
        if doc_id not in doc_ids
    ]
    # Quirks of a user's data are counted, not refused. DORIS-MAE has queries without a label of 1,
    # which is a fact of the release.
    is_custom = environment.task.startswith("own/")
    judged = set[str]().union(*labels.values())
    is_usable = is_custom and len(dict(lost)) * 2 <= len(judged)
    count = sum(map(len, labels.values()))
    said = f"of {count} judgements are of no document of the corpus"
    yield _report(f"{name} judgements, {split}", lost, said, harmless=is_usable)
    without = [query_id for query_id in labels if not judgements.relevant(query_id)]
    said = f"queries without a document that is {judgements.level}"
    harmless = is_custom or bool(judgements.relevant_from)
    yield _report(f"queries by {name}, {split}", without, said, harmless=harmless)


def _masks(environment: Environment) -> Iterator[CheckResult]:
    """Yield whether the excluded documents are there, and none of them is relevant."""
    masked = [doc_id for query in environment.queries for doc_id in query.excluded]
    unknown = [doc_id for doc_id in masked if doc_id not in environment.documents]
    # A missing document cannot be shown. Ids that are only spelled differently are refused before
    # (environments/custom.py).
    is_custom = environment.task.startswith("own/")
    said = f"of {len(masked)} are not in the corpus"
    yield _report("masked documents", unknown, said, harmless=is_custom)
    relevant = [
        (doc_id, query.query_id)
        for query in environment.queries
        for judgements in environment.judgements.values()
        for doc_id in query.excluded & judgements.relevant(query.query_id).keys()
    ]
    yield _report("masked and relevant", relevant, "documents are both")


def _golden(test: Environment) -> CheckResult:
    """Return whether records of a miniature are those that were recorded."""
    recorded = json.loads(GOLDEN.read_text(encoding="utf-8")).get(test.task, {})
    digests = digest_records(test.released or test)
    for subject, digest in recorded.items():
        if digests.get(subject) != digest:
            return CheckResult("golden records", False, f"the {subject} is another one")
    return CheckResult("golden records", True, f"{len(recorded)} are as recorded")


def digest_records(environment: Environment) -> dict[str, str]:
    """Return digests of the first, tenth and last document and query.

    They change if the order or the form of the data is wrong.
    """
    documents = environment.documents
    queries = environment.queries
    digests = {}
    for name, at in (("first", 0), ("tenth", 9), ("last", -1)):
        if at < len(documents):
            document = documents[documents.doc_ids[at]]
            digests[f"{name} document"] = _digest(document.doc_id, document.title, document.text)
        if at < len(queries):
            digests[f"{name} query"] = _digest(queries[at].query_id, queries[at].text)
    return digests


def _digest(*record: str) -> str:
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()[:16]
