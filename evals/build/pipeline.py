"""What carries a build from stage to stage: what asks a model, what was dropped and why, what
people are to judge.

A recipe goes through its stages in order, and computes again what is deterministic. What asks a
model is kept: each stage is a run of programs/build_stages/stage_program.py in stages/NAME-DIGEST, with a unit
of work in the place of a query, named by a digest of what it holds. So the same command goes on
after a kill, pays for nothing twice, and ends in the same bytes; and a change of the recipe asks
again what follows from it alone.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

from environments.base import GENERIC
from evals import run_folder
from evals.build import human_review as review
from evals.build import release
from evals.build.human_review import Item
from evals.build.types import Benchmark, BuildSource, StageInput
from evals.running.evaluate import make_resources
from evals.running.model_stage import ModelStage, digest
from evals.running.request import SharedRequest
from programs.build_stages import STAGES
from programs.build_stages.stage_program import StageProgram
from tools import code_digest, files, retrievers
from tools.cli import Progress, print_stderr
from tools.corpus import Corpus, indexed_text
from tools.errors import DataError
from tools.models.run_resources import Cassette
from tools.records import Document, Query, total, usage_from_json, usage_json
from tools.retrievers.base import NullRetriever, Retriever
from tools.retrievers.lexical.bm25 import BM25
from tools.session import Toolbox
from tools.text import TermStatistics

K = TypeVar("K")
T = TypeVar("T")
SLICE = 2000  # units that are in memory at a time
USED = ("calls", "input_tokens", "output_tokens", "list_usd")


class StageReached(Exception):
    """The stage of --until is done."""


class FunnelRow(NamedTuple):
    """One line of the funnel: what went into a stage and came out of it."""

    stage: str
    went_in: int
    came_out: int
    dropped: Mapping[str, int]  # by reason
    usage: Mapping[str, Any]  # of its calls
    lm: str = ""


class BuildPipeline:
    """One build in its folder. `ahead` sends and writes nothing, and forecasts what each stage would take."""

    def __init__(
        self,
        folder: Path,
        name: str,
        recipe: Any,
        source: BuildSource,
        requests: Mapping[str, SharedRequest],
        *,
        ahead: bool = False,
        cassette: Path | None = None,
    ) -> None:
        """`requests` are by role of programs/build_stages/stage_program.py, or by stage.

        They share the limits of the first request.
        """
        self.folder = folder
        self.name = name
        self.recipe = recipe
        self.source = source
        self.ahead = ahead
        self.until = ""  # the stage after which the build stops
        self.funnel = dict[str, FunnelRow]()
        self.forecasts = list[dict[str, Any]]()
        self._requests = requests
        self._file = cassette
        self._cassette: Cassette | None = None
        self.most_queries = min(
            recipe.limits.queries, len(source.documents) // max(1, recipe.limits.min_positives)
        )
        self.certain = True  # whether a dry run knows what a stage is asked
        self._terms = make_resources(next(iter(requests.values())))
        self._stages = dict[str, tuple[StageProgram, ModelStage]]()
        self._held = ExitStack()
        self._asks = dict[str, Any]()
        self._retrievers = dict[str, Retriever]()
        self._dropped = defaultdict[str, Counter[str]](Counter)
        self._why = list[TextIO]()
        self._answers: Mapping[str, review.Value] = {} if ahead else review.answers(folder)

    def __enter__(self) -> "BuildPipeline":
        if not self.ahead:
            sends = any(request.lm != "offline" for request in self._requests.values())
            self._cassette = Cassette(self._file, self._terms, sends=sends) if self._file else None
            self._terms.open(self.folder, self.folder)
            self._why.append(
                self._held.enter_context(run_folder.writing(self.folder / "dropped.jsonl"))
            )
        return self

    def __exit__(self, *problem: Any) -> None:
        self._held.close()  # what was dropped so far is worth reading in any case
        self._terms.settle()
        if not self.ahead:
            if self._cassette:
                self._cassette.record(complete=problem[0] is None and not self.until)
            rows = [self._count_calls(row)._asdict() for row in self.funnel.values()]
            run_folder.write(self.folder / "funnel.json", json.dumps(rows, indent=1) + "\n")

    def ask(
        self, stage: str, units: Iterable[StageInput], most: int | None = None
    ) -> Iterator[tuple[StageInput, Any]]:
        """Yield each unit with its answer, in order: outputs by name, those of passages as {id: row}.

        An answer that could not be used, twice, has none; such a unit is dropped. `most` is how many units there may be
        at most, where that depends on answers that a dry run does not have.
        """
        if self.until and stage != self.until and self.until in self.funnel:
            raise StageReached(self.until)
        program, _ = self._open(stage)
        left = iter(units)
        ahead = partial(self._look_ahead, stage, most, self.certain)
        while some := list(islice(left, SLICE)):
            queries = [_query(unit) for unit in some]
            outcomes = ahead(queries) if self.ahead else self._send(stage, queries)
            for unit, query in zip(some, queries, strict=True):
                yield unit, self._read(stage, program, unit, query, outcomes.get(query.query_id))
        if self.ahead and not self.certain:
            ahead([])  # answers may lead to units that the rehearsal did not

    def drop(self, stage: str, one: str, why: str, evidence: str = "") -> None:
        """Note that something is left out, and why: a line of dropped.jsonl."""
        self._dropped[stage][why] += 1
        for file in self._why:
            row = {"stage": stage, "id": one, "why": why} | (
                {"evidence": evidence} if evidence else {}
            )
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def count(self, stage: str, went_in: int, came_out: int) -> None:
        """Note how many of whatever the stage is about went in and came out."""
        dropped = dict(sorted(self._dropped[stage].items()))
        self.funnel[stage] = FunnelRow(stage, went_in, came_out, dropped, {})
        why = "".join(f", {many:,} {reason}" for reason, many in dropped.items())
        if not self.ahead:
            print_stderr(f"{stage}: {went_in:,} in, {came_out:,} out{why}")

    def drop_all(self, stage: str, names: Iterable[str], why: str) -> None:
        """Note that several are left out for one reason: a line of dropped.jsonl each."""
        for name in names:
            self.drop(stage, name, why)

    def review(self, sheet: str, values: dict[K, Any], show: Callable[[K], Item]) -> None:
        """Offer every value to people on a sheet, and put what they said in place of what the model did."""
        if self.ahead:
            return
        review.offer(
            self.folder, sheet, (show(one)._replace(model=value) for one, value in values.items())
        )
        for one in values if self._answers else ():
            if (said := self._answers.get(review.identify(sheet, show(one)))) is not None:
                values[one] = said

    def text(self, doc_id: str, chars: int = 0, private: Sequence[str] = ()) -> str:
        """Return the first `chars` characters of a document (0 all), then those of its private texts that are named."""
        own = indexed_text(self.source.documents[doc_id])[: chars or None]
        kept = self.source.private.get(doc_id, {}) if private else {}
        return "\n\n".join([own, *(f"{name}: {kept[name]}" for name in private if name in kept)])

    def passages(
        self, doc_ids: Iterable[str], chars: int = 0, private: Sequence[str] = ()
    ) -> list[tuple[str, str]]:
        """Return documents as a unit has them: each id with its `text`."""
        return [(doc_id, self.text(doc_id, chars, private)) for doc_id in doc_ids]

    def choice(self, label: str, text: str, doc_ids: Sequence[str], chars: int = 0) -> Item:
        """Return an item that asks people which of some documents are meant, shown with a text."""
        return Item([(label, text), *self.passages(doc_ids, chars)], values=doc_ids)

    def retriever(self, spec: str) -> Retriever:
        """Return a retriever over the corpus, on the terms of the build."""
        if spec not in self._retrievers:
            documents = self.source.documents
            home = files.sextant_home()
            self._retrievers[spec] = retrievers.build(spec, documents, home, terms=self._terms)
        return self._retrievers[spec]

    def limit_queries(self, most: int) -> None:
        """Note how many queries there can be at most, unless what says so is a rehearsal's."""
        if self.certain:
            self.most_queries = min(self.most_queries, most)

    def describe(self) -> str:
        """Say in a line what went through the stages so far."""
        return "; ".join(
            f"{row.stage} ({row.went_in:,} in, {row.came_out:,} out)"
            for row in self.funnel.values()
        )

    def demand(
        self, left: Collection[Any], what: str = "query", remedy: str = "dropped.jsonl says why"
    ) -> None:
        """Raise DataError, with what went through the stages, where nothing is left."""
        if not left:
            raise DataError(f"no {what} is left after {self.describe()}; {remedy}")

    def finish(
        self,
        queries: Sequence[Query],
        judgements: Mapping[str, Mapping[str, Mapping[str, float]]],
        provenance: Iterable[Mapping[str, Any]],
        together: Mapping[str, str] = {},
        **settings: Any,
    ) -> Benchmark:
        """Return the benchmark; what is judged of a text holds for all documents that have it.

        `together` is query_id -> what is all for dev, or all for test.
        """
        said = self.recipe.release
        source = self.source
        told = {
            "name": said.name or self.folder.resolve().name,
            "objective": said.objective or GENERIC,
        }
        told |= {
            "document": said.document,
            "metrics": list(said.metrics),
            "metric": said.metric,
            **settings,
        }
        settings = {name: value for name, value in told.items() if value}
        spread = {
            name: release.copy_labels_to_duplicates(judgement, source.twins)
            for name, judgement in judgements.items()
        }
        made = Benchmark(
            source.documents,
            queries,
            spread,
            settings,
            provenance=provenance,
            private=source.private,
        )
        return release.split_dev(made, said.dev, together) if said.dev else made

    @cached_property
    def statistics(self) -> TermStatistics:
        """Statistics of the corpus' words."""
        return BM25(self.source.documents, files.sextant_home()).statistics()

    def _open(self, stage: str) -> tuple[StageProgram, ModelStage]:
        if stage not in self._stages:
            program = StageProgram(Toolbox(Corpus(()), NullRetriever()), stage=stage)
            request = self._requests.get(stage) or self._requests[program.asked.role]
            config = {
                "task": f"build/{self.name}",
                "parameters": {"stage": stage},
                "data_fingerprint": "",
            }
            if (
                request.lm == "offline"
            ):  # a unit has all that a model is shown; rules weigh words by the corpus
                rules = code_digest.collect_sources([STAGES[stage].partition(":")[0]]).digest()
                config |= {"data_fingerprint": self.source.documents.fingerprint, "code": rules}
            where = self.folder / "stages" / stage
            self._stages[stage] = (
                program,
                ModelStage(program, self.source.documents, where, config, request, self._terms),
            )
        return self._stages[stage]

    def _send(self, stage: str, queries: list[Query]) -> Mapping[str, Any]:
        if stage not in self._asks:
            self._asks[stage] = self._held.enter_context(self._stages[stage][1].open())
        progress = Progress(stage, len(queries), "units")
        outcomes: Mapping[str, Any] = self._asks[stage](
            queries, on_outcome=lambda outcome: progress.add()
        )
        return outcomes

    def _look_ahead(
        self, stage: str, most: int | None, certain: bool, queries: list[Query]
    ) -> Mapping[str, Any]:
        opened = self._stages[stage][1]
        found = opened.forecast(queries)
        certain = certain and bool(queries)
        most = len(queries) if most is None or certain else most
        self.forecasts.append(
            {"stage": stage, "units": len(queries), "most": most, "certain": certain, **found}
        )
        self.certain &= not found[
            "queries"
        ]  # what comes after follows from answers that nobody has
        return opened.outcomes

    def _read(
        self, stage: str, program: StageProgram, unit: StageInput, query: Query, outcome: Any
    ) -> dict[str, Any]:
        if outcome is None:  # of a dry run
            return program.guess(json.loads(query.text), self.statistics)
        rows = program.asked.rows
        if outcome["error"]:
            error = run_folder.first_error_line(outcome["error"])
            for name in [doc_id for doc_id, _ in unit.passages] if rows else [str(unit.key)]:
                self.drop(stage, name, "no usable answer", error)
            return {}
        answer: dict[str, Any] = json.loads(outcome["answer"])
        if rows:
            for one in (one for one, _ in unit.passages if one not in answer[rows]):
                self.drop(stage, one, "left out by the model")
        return answer

    def _count_calls(self, row: FunnelRow) -> FunnelRow:
        if row.stage not in self._asks:
            return row
        opened = self._stages[row.stage][1]
        used = usage_json(
            total(usage_from_json(outcome["usage"]) for outcome in opened.outcomes.values())
        )
        return row._replace(usage={name: used[name] for name in USED}, lm=opened.model.name)


def nearest_texts(texts: Mapping[str, str]) -> Callable[[str, int], list[str]]:
    """Return what gives the names of the texts that are most like another one, at most so many, by BM25."""
    index = BM25(Corpus(Document(name, text) for name, text in texts.items()))
    return lambda text, most: [hit.doc_id for hit in index.search(text, most)]


def stable_order(doc_ids: Iterable[str]) -> list[str]:
    """Return ids in an order that is the same everywhere, and not the corpus's, in which alike ones may be together."""
    return sorted(doc_ids, key=digest)


def overlapping_slices(some: Sequence[T], size: int, overlap: int = 0) -> list[Sequence[T]]:
    """Cut a sequence into parts of `size`, each of which begins with the last `overlap` of the one before."""
    starts = range(0, max(1, len(some) - overlap), max(1, size - overlap))
    return [some[start : start + size] for start in starts if some[start : start + size]]


def _query(unit: StageInput) -> Query:
    """Return a unit as a query; its id is a digest of what it holds."""
    text = json.dumps(
        {"inputs": unit.inputs, "passages": unit.passages}, ensure_ascii=False, sort_keys=True
    )
    return Query(
        digest(text)[:24], text, candidates=frozenset(map(str, range(1, len(unit.passages) + 1)))
    )
