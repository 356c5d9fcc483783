"""Tasks described: the rows of `environments list`, the cards of `show`, and the findings of `check`.

Reads data through `environments.load` alone, and prints nothing.
"""

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import environments
from environments.base import Environment, Facts, Suite
from environments.sources.layouts import forget_digests
from tools import disk
from tools.disk import home
from tools.errors import DataError
from tools.records import Query

SAMPLES = 3


def state(task: str) -> str:
    """The state of a task's data: "full" once it has been fetched, else "mini", or "none" where the suite has none.

    "outdated" is a release at another revision.
    """
    try:
        return environments.folder_of(task, None)[0]
    except DataError:
        return "outdated" if environments.marker_of(task).exists() else "none"


def _known(task: str) -> tuple[Suite, Facts, int | None]:
    """(the suite, what is known of the task, the documents in the paper) for a full name."""
    suite_name, name, variant = environments.parts(task)
    suite = environments.suite(suite_name)
    return suite, suite.tasks[name], suite.tasks[name].documents.get(variant or suite.variants[0])


def row(task: str) -> dict[str, Any]:
    """A task's line in the list: counts of the data that a run would use now, and of the paper."""
    suite_name, name, _ = environments.parts(task)
    _, facts, documents = _known(task)
    counts: dict[str, Any] = {"documents": None, "dev": None, "test": None}
    if (data := state(task)) == "mini":  # a fetched release is too large to be read for a list; `show` counts it
        try:
            dev, test = (environments.load(task, "mini", split) for split in ("dev", "test"))
            counts = {"documents": len(test.documents), "dev": len(dev.queries), "test": len(test.queries)}
        except DataError:  # which `check` explains; the other tasks are listed all the same
            data = "damaged"
    known = {"suite": suite_name, "task": name, "metric": facts.metric, "data": data}
    return known | counts | {"paper_documents": documents, "paper_queries": facts.queries}


def card(task: str, data: str | None = None) -> dict[str, Any]:
    """Everything that a user should know before running a task."""
    full_name = environments.resolve(task)
    suite, facts, documents = _known(full_name)
    dev, test = (environments.load(full_name, data, split) for split in ("dev", "test"))
    relevant = [sum(grade > 0 for grade in grades.values()) for grades in test.qrels.values()]
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
        "here": {
            "data": test.data,
            "source": test.source,
            "documents": len(test.documents),
            "dev": len(dev.queries),
            "test": len(test.queries),
            "relevant_per_query": sum(relevant) / len(relevant),
        },
        "licence": suite.release.licence if test.data != "mini" else "original text, made for this repository",
        "release": {"of": suite.release.repository, "revision": suite.release.revision, "by": suite.release.kind},
        "samples": [_sample(test, query) for query in test.queries[:SAMPLES]],
    }


def _sample(environment: Environment, query: Query) -> dict[str, Any]:
    """A query with a relevant document and one that is not: judged so if there is any, else from its pool or corpus."""
    judgements = environment.judgements[environment.headline]
    grades = judgements.qrels.get(query.query_id, {})
    best = max(grades, key=grades.__getitem__)
    other = next((doc_id for doc_id, grade in grades.items() if grade <= 0), _unjudged(environment, query))
    return {
        "query_id": query.query_id,
        "query": query.text,
        "relevant": _show(environment, best),
        "irrelevant": None if other is None else _show(environment, other),
    }


def _unjudged(environment: Environment, query: Query) -> str | None:
    """A document that the query may be shown, and that nobody has judged; None where there is none."""
    judgements = environment.judgements[environment.headline]
    judged, unit = judgements.qrels[query.query_id], judgements.unit_of or str
    doc_ids = sorted(query.candidates) if query.candidates else environment.documents.doc_ids
    # Another one for every query: in MultiConIR, what stands next to a document differs from it in a sentence.
    start = zlib.crc32(query.query_id.encode("utf-8", "surrogatepass"))
    turned = (doc_ids[(start + step) % len(doc_ids)] for step in range(len(doc_ids)))
    return next((doc_id for doc_id in turned if unit(doc_id) not in judged and doc_id not in query.excluded), None)


def _show(environment: Environment, identifier: str) -> dict[str, str]:
    """A document; of a parent of passages (MaxP), the first passage stands for it."""
    documents, unit = environment.documents, environment.judgements[environment.headline].unit_of or str
    found = documents.get(identifier) or documents.get(f"{identifier}:0")
    found = found or next((one for one in documents.stream() if unit(one.doc_id) == identifier), None)
    return {"doc_id": identifier, "text": found.text if found else ""}


class Finding(NamedTuple):
    """One thing that `check` looked at."""

    what: str
    fine: bool
    said: str


def findings(task: str, data: str | None = None) -> Iterator[Finding]:
    """Yield the findings of `check` on a task's data; the first is whether it loads."""
    full_name = environments.resolve(task)
    forget_digests(home())  # so that every byte is read
    try:
        parts = {split: environments.load(full_name, data, split) for split in ("dev", "test")}
    except DataError as error:
        yield Finding("loading", False, str(error))
        return
    test = parts["test"]
    yield Finding("loading", True, f"{test.source}, fingerprint {test.fingerprint}")
    if test.data == "full":
        yield _files(full_name)
    yield _counts(parts, full_name)
    yield from (Finding("note", True, note) for note in test.notes)
    yield _overlap(parts)
    for named in test.judgements:
        units = _units(test, named)
        for split, part in parts.items():
            # Dev may be over other documents (BIRCO), but never in other units.
            yield from _judgements(part, split, named, part.documents if units is None else units)
    yield _masks(test)
    repeats = len(test.documents.repeats())
    said = f"{repeats} documents repeat an earlier one's text; judged by id, never merged"
    yield Finding("equal texts", True, said)
    yield _golden(test)
    if test.data == "mini":
        yield from _readings(full_name)


def _files(task: str) -> Finding:
    """Whether the fetched files are still what they were when they were checked."""
    marker = environments.marker_of(task)
    folder = marker.parent
    try:
        marked = json.loads(marker.read_text(encoding="utf-8"))["files"]
        for path, known in marked.items():
            if disk.sha256(folder / path) != known["sha256"]:
                return Finding("files", False, f"{folder / path} has changed since it was fetched; fetch it again")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return Finding("files", False, f"they cannot be compared with the marker ({error}); fetch them again")
    return Finding("files", True, f"{len(marked)} files, each with the SHA-256 that it was fetched with")


def _counts(parts: dict[str, Environment], task: str) -> Finding:
    dev, test = parts["dev"], parts["test"]
    said = f"{len(test.documents)} documents, {len(dev.queries)} dev and {len(test.queries)} test queries"
    if test.data != "full":
        return Finding("counts", True, said)
    _, facts, documents = _known(task)
    asked = len(test.queries) if not test.split_note else len(test.queries) + len(dev.queries)
    if test.comparisons:  # a record asks several queries
        asked = len({query.query_id.partition("-")[0] for part in parts.values() for query in part.queries})
    fine = asked == facts.queries and documents in (None, len(test.documents))
    paper = f"the paper has {documents or 'no count of'} documents and {facts.queries} queries"
    return Finding("counts", fine, f"{said}; {paper}")


def _overlap(parts: dict[str, Environment]) -> Finding:
    dev, test = ({query.query_id for query in part.queries} for part in parts.values())
    both = sorted(dev & test)
    texts = Counter(query.text for part in parts.values() for query in part.queries)
    repeated = sum(count - 1 for count in texts.values())
    said = f"no query in both; {repeated} query texts that come again" if not both else f"{both[0]!r} is in both"
    return Finding("dev and test", not both, said)


def _units(environment: Environment, named: str) -> set[str] | None:
    """What judgements name in place of documents, e.g. the parents of all passages; None where they name documents."""
    judgements = environment.judgements[named]
    if judgements.unit_of is None or not judgements.judged_by_unit:
        return None
    return {judgements.unit_of(doc_id) for doc_id in environment.documents}


def _judgements(part: Environment, split: str, named: str, known: Container[str]) -> Iterator[Finding]:
    judgements = part.judgements[named]
    lost = missing = pairs = 0
    example = ""
    for query in part.queries:
        grades = judgements.qrels.get(query.query_id, {})
        pairs += len(grades)
        missing += not any(grade > 0 for grade in grades.values())
        binary = (judgements.binary or {}).get(query.query_id, {})
        for identifier in dict.fromkeys([*grades, *binary]):
            if identifier not in known:
                lost += 1
                example = example or f", e.g. {identifier!r} of query {query.query_id!r}"
    where = f"{named} judgements, {split}"
    scale = _scale([grade for grades in judgements.qrels.values() for grade in grades.values()])
    yield Finding(where, not lost, f"{pairs} of them ({scale}); {lost} name no document{example}")
    yield Finding(f"queries without {where}", not missing, f"{missing} have nothing relevant")


def _scale(grades: list[float]) -> str:
    """How often each grade is given; of many, e.g. means of several people's, how many are on either side of 1."""
    counted = Counter(grades)
    if len(counted) <= 8:
        return ", ".join(f"{grade:g}: {count}" for grade, count in sorted(counted.items()))
    sides = {"0 or less": lambda g: g <= 0, "between 0 and 1": lambda g: 0 < g < 1, "1 or more": lambda g: g >= 1}
    return ", ".join(f"{name}: {sum(map(side, grades))}" for name, side in sides.items())


def _masks(environment: Environment) -> Finding:
    """Documents that a query must not be shown have to exist, and nothing that counts may be among them."""
    unknown = sum(doc_id not in environment.documents for query in environment.queries for doc_id in query.excluded)
    positive = sum(
        judgements.qrels.get(query.query_id, {}).get(doc_id, 0) > 0
        for judgements in environment.judgements.values()
        for query in environment.queries
        for doc_id in query.excluded
    )
    masked = sum(len(query.excluded) for query in environment.queries)
    said = f"{masked} of them; {unknown} name no document, {positive} are judged relevant"
    return Finding("masked documents", not unknown and not positive, said)


READINGS = environments.MINI / "readings.json"
# Where labels are points and nobody says what suffices, readers named the best three documents of a query.
_BEST_THREE = ("crumb/paper_retrieval", "birco/doris_mae")


def _readings(task: str) -> Iterator[Finding]:
    """How far readers who did not see the judgements agree with them (docs/decisions/miniatures.md)."""
    for name, read in json.loads(READINGS.read_text(encoding="utf-8")).items():
        if environments.parts(name)[:2] == environments.parts(task)[:2]:
            agreed, named, queries = count_agreement(name, read)
            yield Finding("blind reading", True, f"{queries}, {agreed} of {named} as judged")


def count_agreement(task: str, read: dict[str, Any]) -> tuple[int, int, str]:
    """(answers of readers that agree with the judgements, all their answers, how many queries they read).

    `read` has for each query the documents that were found relevant, or a grade for each; what is not in a list
    of grades was read as 0.
    """
    environment = environments.load(task, "mini", "all")
    agreed = named = 0
    for query_id, found in read.items():
        grades = environment.qrels[query_id]
        if isinstance(found, dict):
            named += len(grades)
            agreed += sum(found.get(doc_id, 0) == grade for doc_id, grade in grades.items())
        else:
            enough = sorted(grades.values())[-3] if task in _BEST_THREE else 1
            named += len(found)
            agreed += sum(grades.get(doc_id, 0) >= enough for doc_id in found)
    return agreed, named, f"{len(read)} of {len(environment.queries)} queries"


GOLDEN = environments.MINI / "golden.json"


def digest_records(environment: Environment) -> dict[str, str]:
    """A digest of the first, the tenth and the last document and query: enough to see that order and form are right."""
    documents = environment.documents
    ids = documents.doc_ids
    chosen: dict[str, tuple[str, ...]] = {}
    for place, at in (("first", 0), ("tenth", 9), ("last", -1)):
        if at < len(ids):
            document = documents[ids[at]]
            chosen[f"{place} document"] = (document.doc_id, document.title, document.text)
        if at < len(environment.queries):
            chosen[f"{place} query"] = (environment.queries[at].query_id, environment.queries[at].text)
    return {what: hashlib.sha256(json.dumps(record).encode()).hexdigest()[:16] for what, record in chosen.items()}


def _golden(test: Environment) -> Finding:
    digests = digest_records(test)
    listed = ", ".join(f"{what} {digest}" for what, digest in digests.items())
    recorded = json.loads(GOLDEN.read_text(encoding="utf-8")) if test.data == "mini" and GOLDEN.exists() else {}
    if test.task not in recorded:
        return Finding("golden records", True, f"none on record for this data; {listed}")
    wrong = [what for what, digest in recorded[test.task].items() if digests.get(what) != digest]
    said = f"first, tenth and last are as recorded ({listed})" if not wrong else f"the {wrong[0]} is another one"
    return Finding("golden records", not wrong, said)
