"""The declarations of a suite, and a loaded task. Reads no files.

The table of suites and `load` are in __init__.py, metrics in ranking_metrics.py, readers in readers/.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, UnknownName, UsageError
from sextant.tools.records import Query
from sextant.tools.text import is_blank

# query_id -> doc_id -> grade. Grades are the release's own, fractions included; 0 is "judged, not
# relevant" and absence is "not judged", and the two are kept apart because some metrics tell them
# apart.
Qrels = Mapping[str, Mapping[str, float]]
Grades = dict[str, dict[str, float]]  # the same, while they are gathered
_Value = TypeVar("_Value")

SPLITS = ("dev", "test", "all")
# Judgements of this name are of what several systems brought, so that a new one brings unjudged
# ones
POOLED = "pooled"
OURS = "the split is ours; the paper's figures are over all queries (--split all)"
# Columns of a user's own data, as --column names them.
COLUMNS = ("id", "text", "title", "query_id", "query", "doc_id", "grade")

# What begins the note on columns and files of a user's own data that are not read.
LEFT_OUT = "Left out: "

# What a query's objective says: the task in our words, or the release's where it has some; the
# paper's text (paper_instructions.toml); words that fit any task (CRUMB's section 5.6); or nothing
# (BIRCO's systems without +O).
INSTRUCTIONS = ("ours", "paper", "generic", "none")
GENERIC = "Find the documents that are relevant to the query."


class EmptySplit(UsageError):
    """A split that Sextant makes has no queries, because the data has too few."""

    def __init__(
        self,
        split: str,
        source: str,
        queries: int,
        remedy: str = "",
    ) -> None:
        super().__init__(
            f"the {split} split of {source} has no queries; {remedy or 'use --split all'}"
        )
        # queries of all splits
        self.source = source
        self.remedy = remedy
        self.queries = queries


class DevSplit(NamedTuple):
    """A dev split for a release that has none: the first round(`share` x queries) in the order of a hash.

    That is SHA-256 over "<seed>:<query_id>", the same on every machine and for every order of the release.
    """

    seed: str
    share: float

    def choose(
        self,
        query_ids: Sequence[str],
        split: str,
        source: str = "the data",
    ) -> list[str]:
        """Return the ids of `split` ("dev", "test" or "all"), in the order given.

        EmptySplit if there are none.
        """
        hashed = sorted(
            query_ids,
            key=lambda query_id: hashlib.sha256(f"{self.seed}:{query_id}".encode()).digest(),
        )
        dev = set(hashed[: round(self.share * len(query_ids))])
        chosen = [
            query_id
            for query_id in query_ids
            if split == "all" or (query_id in dev) == (split == "dev")
        ]
        if not chosen:
            raise EmptySplit(split, source, len(query_ids))
        return chosen

    def __str__(self) -> str:
        return (
            f"ours, not the paper's: {self.share:.0%} of the queries are dev, by SHA-256 of "
            f"'{self.seed}:<query id>'"
        )


class Judgements(NamedTuple):
    """One way in which a task's rankings are judged."""

    qrels: Qrels  # what nDCG gains
    binary: Qrels | None = None  # what counts as relevant, where the release says that apart
    # Maps a document to what is scored in its place: the parent of a passage (MaxP), or the first
    # of equal texts. The best placed document of a unit counts.
    unit_of: Callable[[str], str] | None = None
    judged_by_unit: bool = (
        True  # `qrels` names units; where it names documents, they are mapped like a ranking's
    )
    # R and AP are 0, as trec_eval has it, and not undefined for a query with nothing relevant
    zero: bool = False
    relevant_from: float = 0.0  # the lowest grade of a relevant document; 0 is every grade above 0

    @property
    def level(self) -> str:
        """The grades that make a document relevant, in words."""
        return f"relevant {f'from grade {self.relevant_from:g}' if self.relevant_from else 'above grade 0'}"

    def is_relevant(self, grade: float) -> bool:
        """Return whether a document of this grade is relevant: to metrics, attribution, curves, all."""
        return grade > 0 and grade >= self.relevant_from

    def relevant(self, query_id: str) -> dict[str, float]:
        """Return the relevant documents or units of a query, as judged, with their grades.

        Labels are those of `binary`, of `qrels` if that is None.
        """
        grades = self.qrels.get(query_id, {})
        labels = grades if self.binary is None else self.binary.get(query_id, {})
        return {
            judged: grades.get(judged, 0.0)
            for judged, label in labels.items()
            if self.is_relevant(label)
        }

    def gains(self, query_id: str) -> dict[str, float]:
        """Return the gains of nDCG for a query: the grades above 0, relevant or not, by scored unit."""
        grades = self.by_unit(self.qrels.get(query_id, {}))
        return {unit: grade for unit, grade in grades.items() if grade > 0}

    def recalled(self, query_id: str) -> Mapping[str, float]:
        """Return the units that recall counts for a query, with the grades that nDCG gains."""
        return self.by_unit(self.relevant(query_id))

    def list_units(self, doc_ids: Collection[str]) -> set[str]:
        """Return documents, and the units that they are scored as, if these are others."""
        return {*doc_ids, *map(self.unit_of or str, doc_ids)}

    def changed(self, change: Callable[[Qrels], Qrels]) -> "Judgements":
        """Return the judgements with another table of queries, each changed by `change`."""
        return self._replace(qrels=change(self.qrels), binary=self.binary and change(self.binary))

    def by_unit(self, grades: Mapping[str, float]) -> Mapping[str, float]:
        """Return the highest of the judged `grades` of each scored unit."""
        if self.unit_of is None or self.judged_by_unit:
            return grades
        merged: dict[str, float] = {}
        for doc_id, grade in grades.items():
            unit = self.unit_of(doc_id)
            merged[unit] = max(grade, merged.get(unit, grade))
        return merged


class Comparison(NamedTuple):
    """Two documents of a query of which the first should be scored strictly higher; a tie is a
    loss.
    """

    label: str  # the metric that comparisons of this label make, e.g. "Win(1)"
    better: str
    worse: str


@dataclass(frozen=True, slots=True)
class Environment:
    """A loaded task: its queries, its documents, and the judgements."""

    task: str  # "<suite>/<name>", e.g. "obliq/congress", or "<suite>/<name>:<variant>"
    data: str  # "mini", "full", or the folder that it was read from
    split: str  # "dev", "test" or "all"
    source: str  # where the data came from, in words
    documents: Corpus
    queries: tuple[Query, ...]  # those of the split, in the release's order
    judgements: Mapping[str, Judgements]  # by name, e.g. "gold" and "pooled"; of those queries
    headline: str  # the judgements that metrics are named after; others are reported beside them
    metrics: tuple[str, ...]  # names as evals/scoring/metrics.py reads them, in the order of tables
    metric: str  # the headline metric of the task's own paper, e.g. "nDCG@10"
    comparisons: Mapping[str, tuple[Comparison, ...]] = field(default_factory=dict)  # by query id
    # Query id -> the same need in other words, for Flip.
    twins: Mapping[str, str] = field(default_factory=dict)
    depth: int = 1000  # documents in a ranking, where the paper's protocol has no other number
    max_p: bool = False  # documents are passages, and the headline judges their parents
    separator: str = (
        ":"  # where max_p: what stands between the parent and the rest in a passage's id
    )
    resampled: bool = (
        False  # the paper's figures are means over bootstrap resamples, so both means are reported
    )
    # Ids of dev and test, of all of one's own task.
    splits: Mapping[str, Collection[str]] = field(default_factory=dict)
    # Ids of the data's queries that have no judgement, and which run files may answer all the same.
    unjudged: Collection[str] = frozenset()
    columns: Mapping[str, str] = field(default_factory=dict)  # as Request.columns
    relevant_from: float | None = None  # as `load` was asked; None: the task's own
    split_note: str = ""  # whose split it is, where that limits what it can be compared with
    notes: tuple[str, ...] = ()  # what else a reader of its scores should know
    # Probable errors in the data, because of which its scores say little.
    warnings: tuple[str, ...] = ()
    # Whether ids of the release tell which documents are relevant, so that programs see others
    opaque_ids: bool = False
    # If programs see other ids (environments/opaque_ids.py): the release's id of each document and
    # judged unit, and the task as released
    release_ids: Mapping[str, str] = field(default_factory=dict)
    released: "Environment | None" = None
    # Values for parameters of programs by their names: "lens" (tools/lenses.py) is what
    # makes a document relevant, "attribute" what an index writes down of it where the lens is in
    # words, "document" what one is, "target" what a model guesses of one by heart.
    hints: Mapping[str, str] = field(default_factory=dict)

    @property
    def qrels(self) -> Qrels:
        """The headline judgements' grades."""
        return self.judgements[self.headline].qrels

    @property
    def folder(self) -> str | None:
        """The location of its data: a whole path, or the name of a user's task for `load`;
        None if bundled.
        """
        if self.data in ("mini", "full"):
            return None
        return self.data if self.task.startswith("own/") else str(Path(self.data).resolve())

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits over everything that figures depend on: texts, queries,
        judgements, exclusions, pools.
        """
        digest = hashlib.blake2b(self.documents.fingerprint.encode(), digest_size=8)
        encoder = json.JSONEncoder(sort_keys=True, default=dict)

        def add(*content: object) -> None:
            digest.update(encoder.encode(content).encode("utf-8", "surrogatepass") + b"\n")

        # Query by query: the judgements of some tasks make a text of hundreds of megabytes.
        for query in self.queries:
            pool = query.candidates and sorted(query.candidates)
            add(query.query_id, query.text, query.objective, sorted(query.excluded), pool)
            for name, judgements in sorted(self.judgements.items()):
                add(
                    name,
                    judgements.qrels.get(query.query_id),
                    (judgements.binary or {}).get(query.query_id),
                    judgements.unit_of is not None,
                )
            add([[c.label, c.better, c.worse] for c in self.comparisons.get(query.query_id, ())])
            add(self.twins.get(query.query_id))
        return digest.hexdigest()

    @property
    def queries_by_id(self) -> dict[str, Query]:
        """The queries by their ids, in their order."""
        return {query.query_id: query for query in self.queries}

    def asking(self, *, limit: int | None = None, query_ids: Sequence[str] = ()) -> "Environment":
        """Return the environment with only the queries named, if any are, and of those only
        the first `limit`.
        """
        query_of = self.queries_by_id
        if strange := [query_id for query_id in query_ids if query_id not in query_of]:
            raise UnknownName(f"query of {self.task}, {self.split} split,", strange[0], query_of)
        chosen = dict.fromkeys([*dict.fromkeys(query_ids or query_of)][:limit])

        def cut(table: Mapping[str, _Value]) -> dict[str, _Value]:
            return {query_id: table[query_id] for query_id in chosen if query_id in table}

        return dataclasses.replace(
            self,
            queries=tuple(query_of[query_id] for query_id in chosen),
            judgements={
                name: judgement.changed(cut) for name, judgement in self.judgements.items()
            },
            comparisons=cut(self.comparisons),
            twins={query_id: twin for query_id, twin in cut(self.twins).items() if twin in chosen},
        )

    def list_documents(self, units: Iterable[str]) -> dict[str, list[str]]:
        """Return the documents of each unit that the headline judges, in the order of the corpus; a
        unit may have none.
        """
        judgements = self.judgements[self.headline]
        if judgements.unit_of is None or not judgements.judged_by_unit:
            return {unit: [unit] for unit in units if unit in self.documents}
        documents: dict[str, list[str]] = {unit: [] for unit in units}
        for doc_id in self.documents:
            if (unit := judgements.unit_of(doc_id)) in documents:
                documents[unit].append(doc_id)
        return documents

    def count_from(self, grade: float) -> "Environment":
        """Return the environment with documents relevant from `grade` on, 0 for all above 0.

        It is a grade of `qrels`, also where the release has binary labels.
        """
        judgements = {
            name: judged._replace(binary=None, relevant_from=grade)
            for name, judged in self.judgements.items()
        }
        return dataclasses.replace(self, judgements=judgements, relevant_from=grade)

    def narrow(self, dev: DevSplit, split: str) -> "Environment":
        """Return the environment with the queries of `split` alone; the corpus stays whole."""
        chosen = self.asking(
            query_ids=dev.choose([query.query_id for query in self.queries], split, self.source)
        )
        return dataclasses.replace(
            chosen,
            split=split,
            split_note="" if split == "all" else OURS,
        )


def validate_environment(environment: Environment) -> None:
    """Raise DataError if a perfect searcher could not score full marks by the headline
    judgements.
    """
    documents = environment.documents
    judgements = environment.judgements[environment.headline]
    pooled = [query.candidates or frozenset() for query in environment.queries]
    judged = () if judgements.unit_of else environment.qrels.values()
    # Each once: a corpus may be on disk.
    missing = {doc_id for doc_id in set().union(*pooled, *judged) if doc_id not in documents}
    for query, pool in zip(environment.queries, pooled, strict=True):
        grades = environment.qrels.get(query.query_id, {})
        relevant = {doc_id for doc_id, grade in grades.items() if grade > 0}  # to nDCG at least
        location = f"{environment.task} in {environment.source}: query {query.query_id!r}"
        if is_blank(query.text) or not relevant:
            raise DataError(
                f"{location} has no text or no judgement above 0, so nothing can be found for it"
            )
        # A judged document that is not relevant may be missing: no metric sees it, and
        # `environments check` names it.
        faults = {
            "judges documents that are not in the corpus": missing & relevant,
            "excludes its own answers": relevant & query.excluded,
            "has documents in its pool that are not in the corpus": missing & pool,
            "has relevant documents outside its pool": relevant - judgements.list_units(pool),
        }
        if query.candidates is None:
            faults.popitem()
        for fault, doc_ids in faults.items():
            if doc_ids:
                raise DataError(f"{location} {fault}, e.g. {min(doc_ids)!r}")


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """The arguments of a suite's `load`; every name in it has been checked against the suite's tables."""

    task: str  # the full name, e.g. "obliq/congress" or "crumb/legal_qa:document"
    name: str  # of the task, without suite and variant
    variant: str  # one of the suite's
    data: str  # "mini", "full" or a folder's name as given
    folder: Path
    split: str  # one of SPLITS
    home: Path  # where a large corpus may be kept in a form that opens at once
    qrels: str = ""  # which judgements lead; "" leaves it to the task
    instruction: str = "ours"  # one of INSTRUCTIONS, or a text
    # Of a user's own data: name of a column -> its name in the files.
    columns: Mapping[str, str] = field(default_factory=dict)

    def place(self, names: Sequence[str], other_names: Collection[str]) -> Path:
        """Return the task's own folder: the first of `own` inside the given one, else the given one
        itself.

        UsageError when that has the name of another task's folder.
        """
        for name in names:
            if (self.folder / name).is_dir():
                return self.folder / name
        if self.folder.name in {Path(name).name for name in other_names} - {
            Path(name).name for name in names
        }:
            raise UsageError(
                f"{self.folder} is the folder of another task than {self.task}; give the right one"
            )
        return self.folder

    def source(self, release: "Release") -> str:
        """Return the origin of the data, in words."""
        return {"mini": "the bundled miniature", "full": str(release)}.get(
            self.data, str(self.folder)
        )

    def make(self, release: "Release", **fields: Any) -> Environment:
        """Make the requested environment, by gold judgements and the first metric unless
        `fields` say otherwise.
        """
        defaults = {
            "task": self.task,
            "data": self.data,
            "split": self.split,
            "source": self.source(release),
            "headline": "gold",
            "metric": fields["metrics"][0],
        }
        return Environment(**defaults | fields)

    def objective(self, of_task: str) -> str:
        """Return the objective of a task's queries; `of_task` is the task's own."""
        return {
            "ours": of_task,
            "generic": GENERIC,
            "none": "",
        }.get(self.instruction, self.instruction)


class Release(NamedTuple):
    """The public release of a suite, pinned."""

    kind: str  # "hub" (Hugging Face datasets) or "github"
    repository: str  # "owner/name"
    revision: str  # commit
    licence: str
    paper: str

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision[:8]}"


class TaskInfo(NamedTuple):
    """The facts of a task without its data: the first half of its card."""

    asked: str  # what a searcher is asked, in a sentence
    metric: str  # the paper's headline
    protocol: str  # how it is scored, in a sentence or two
    dev_split: str
    documents: Mapping[str, int]  # by variant, in the paper; none where it does not say
    queries: int  # test queries in the paper
    files: tuple[str, ...]  # of the release, all needed


class Suite(NamedTuple):
    """The declaration of a benchmark's file. Cheap to import: nothing is read until `load` is called."""

    release: Release
    tasks: Mapping[str, TaskInfo]
    load: Callable[[LoadRequest], Environment]
    variants: tuple[str, ...] = ("",)  # the first is the default, and is not part of a task's name
    judgements: tuple[str, ...] = ("gold",)  # what --qrels may say
    # Tasks whose ids tell which documents are relevant, so that programs see others
    opaque_ids: Collection[str] = ()


# Their names in Sextant 0.1, which guides documented; they go with the next release.
Facts = TaskInfo
Request = LoadRequest
