"""What a suite declares, and what a loaded task is. Reads no files: that is `environments/sources`."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.corpus import Corpus
from tools.errors import DataError, UnknownName, UsageError
from tools.records import Query

# query_id -> doc_id -> grade. Grades are the release's own; 0 is "judged, not relevant" and absence is "not
# judged", and the two are kept apart because some metrics tell them apart.
Qrels = Mapping[str, Mapping[str, int]]


SPLITS = ("dev", "test", "all")


@dataclass(frozen=True, slots=True)
class DevSplit:
    """A dev split for a release that has none: the first `share` of the queries in the order of a hash.

    The order is that of SHA-256 over "<seed>:<query_id>", so it is the same on every machine and does
    not depend on the release's order; round(share x queries) of them are dev, the others test.
    """

    seed: str
    share: float

    def choose(self, query_ids: Sequence[str], split: str) -> list[str]:
        """The ids of `split` ("dev", "test" or "all"), in the order given."""

        def key(query_id: str) -> bytes:
            return hashlib.sha256(f"{self.seed}:{query_id}".encode()).digest()

        dev = set(sorted(query_ids, key=key)[: round(self.share * len(query_ids))])
        wanted = {"dev": dev, "test": set(query_ids) - dev, "all": set(query_ids)}[split]
        return [query_id for query_id in query_ids if query_id in wanted]


@dataclass(frozen=True, slots=True)
class Environment:
    """One task, loaded: what is asked, what can be found, and what counts as found."""

    task: str  # "<suite>/<name>", e.g. "obliq/congress"
    data: str  # "mini", "full", or the folder that it was read from
    split: str  # "dev", "test" or "all"
    source: str  # where the data came from, in words
    documents: Corpus
    queries: tuple[Query, ...]  # those of the split, in the release's order
    qrels: Qrels  # of those queries
    metric: str  # the headline metric of the task's own paper, e.g. "nDCG@10"

    def __post_init__(self) -> None:
        """Refuse a world in which a perfect searcher could not score full marks."""
        for query in self.queries:
            _check(self, query)

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits over everything that numbers depend on: texts, queries, judgements, exclusions, pools."""
        content = {
            "corpus": self.documents.fingerprint,
            "queries": [
                [q.query_id, q.text, q.objective, sorted(q.excluded), q.candidates and sorted(q.candidates)]
                for q in self.queries
            ],
            "qrels": {query_id: dict(grades) for query_id, grades in self.qrels.items()},
        }
        text = json.dumps(content, sort_keys=True)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def asking(self, *, limit: int | None = None, query_ids: Sequence[str] = ()) -> "Environment":
        """The environment with only the queries named, if any are, and of those only the first `limit`."""
        known = {query.query_id: query for query in self.queries}
        if strange := [query_id for query_id in query_ids if query_id not in known]:
            raise UnknownName(f"query of {self.task}, {self.split} split,", strange[0], known)
        queries = tuple(known[query_id] for query_id in dict.fromkeys(query_ids)) if query_ids else self.queries
        return self._with(queries[:limit], self.split)

    def narrow(self, dev: DevSplit, split: str) -> "Environment":
        """The environment with the queries of `split` alone; the corpus stays whole."""
        chosen = set(dev.choose([query.query_id for query in self.queries], split))
        if not chosen:
            raise UsageError(f"the {split} split of {self.source} has no queries; use --split all")
        return self._with(tuple(query for query in self.queries if query.query_id in chosen), split)

    def _with(self, queries: tuple[Query, ...], split: str) -> "Environment":
        qrels = {query.query_id: self.qrels[query.query_id] for query in queries}
        return dataclasses.replace(self, queries=queries, qrels=qrels, split=split)


def _check(environment: Environment, query: Query) -> None:
    where = f"{environment.task} in {environment.source}: query {query.query_id!r}"
    grades = environment.qrels.get(query.query_id, {})
    relevant = {doc_id for doc_id, grade in grades.items() if grade > 0}
    if not relevant:
        raise DataError(f"{where} has no judgement above 0, so nothing can be found for it")
    if missing := sorted(grades.keys() - environment.documents.keys()):
        raise DataError(
            f"{where} judges {len(missing)} documents that are not in the corpus, e.g. {missing[0]!r}; "
            "are both from the same release?"
        )
    if leaked := relevant & query.excluded:
        raise DataError(f"{where} excludes its own answer {min(leaked)!r}")
    if query.candidates is not None and (unknown := sorted(query.candidates - environment.documents.keys())):
        raise DataError(f"{where} has {unknown[0]!r} in its pool, which is not in the corpus")
    if query.candidates is not None and (outside := relevant - query.candidates):
        raise DataError(f"{where} has the relevant document {min(outside)!r} outside its pool")


@dataclass(frozen=True, slots=True)
class Suite:
    """What a benchmark's file declares. Cheap to import: nothing is read until `load` is called."""

    tasks: tuple[str, ...]
    # (task name, data: "mini", "full" or a folder's name as given, that folder, split) -> environment
    load: Callable[[str, str, Path, str], Environment]
