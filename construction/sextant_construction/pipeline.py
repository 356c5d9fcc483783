"""Carry a build from stage to stage: ask models, note dropped items with their reasons, and offer
items to people.

A recipe goes through its stages in order, and computes deterministic steps again. Answers of a
model are kept: each stage is a run of stages/stage_program.py in stages/NAME-DIGEST,
with a unit of work in the place of a query, named by a digest of its content. So the same command
goes on after a kill, pays for nothing twice, and ends in the same bytes; and if the recipe changes,
only units that follow from the change are asked again.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

from sextant.environments.base import GENERIC
from sextant.evals import run_folder
from sextant.evals.running.evaluate import make_resources
from sextant.evals.running.model_stage import ModelStage, digest
from sextant.evals.running.request import SharedRequest
from sextant.evals.running.runner import QueryHooks
from sextant.tools import code_digest, retrievers
from sextant.tools.corpus import Corpus, indexed_text
from sextant.tools.errors import DataError
from sextant.tools.platform import files
from sextant.tools.platform.cli import Progress, print_stderr
from sextant.tools.records import (
    Document,
    JsonMapping,
    JsonObject,
    Query,
    total,
    usage_from_json,
    usage_json,
)
from sextant.tools.retrievers.base import NullRetriever, Retriever
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox
from sextant.tools.text import TermStatistics
from sextant_construction import human_review as review
from sextant_construction import release
from sextant_construction.human_review import Item
from sextant_construction.stages import STAGES
from sextant_construction.stages.stage_program import StageProgram
from sextant_construction.types import Benchmark, BuildSource, StageInput

K = TypeVar("K")
T = TypeVar("T")
SLICE = 2000  # units that are in memory at a time
USAGE_KEYS = ("calls", "input_tokens", "output_tokens", "list_usd")


class StageReached(Exception):
    """The stage of --until is done."""


class FunnelRow(NamedTuple):
    """A line of the funnel: how many items went into a stage and came out of it."""

    stage: str
    went_in: int
    came_out: int
    dropped: Mapping[str, int]  # by reason
    usage: JsonMapping  # of its calls
    lm: str = ""


class BuildPipeline:
    """A build in its folder. `ahead` sends and writes nothing, and forecasts the cost of each
    stage.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        recipe: Any,
        source: BuildSource,
        requests: Mapping[str, SharedRequest],
        *,
        ahead: bool = False,
    ) -> None:
        """`requests` are by role of stages/stage_program.py, or by stage.

        They share the limits of the first request.
        """
        self.folder = folder
        self.name = name
        self.recipe = recipe
        self.source = source
        self.ahead = ahead
        self.until = ""  # the stage after which the build stops
        self.funnel = dict[str, FunnelRow]()
        self.forecasts = list[JsonObject]()
        possible = len(source.documents) // max(1, recipe.limits.min_positives)
        self.most_queries = min(recipe.limits.queries, possible)
        self.certain = True  # whether a dry run knows the units of a stage
        self._requests = requests
        self._resources = make_resources(next(iter(requests.values())))
        self._stages = dict[str, tuple[StageProgram, ModelStage]]()
        self._held = ExitStack()
        self._asks = dict[str, Any]()
        self._retrievers = dict[str, Retriever]()
        self._dropped = defaultdict[str, Counter[str]](Counter)
        self._dropped_file: TextIO | None = None  # once it is open; a dry run has none
        self._answers: Mapping[str, review.Value] = {} if ahead else review.answers(folder)

    def __enter__(self) -> "BuildPipeline":
        if not self.ahead:
            self._resources.open(self.folder, self.folder)
            dropped = run_folder.writing(self.folder / "dropped.jsonl")
            self._dropped_file = self._held.enter_context(dropped)
        return self

    def __exit__(self, *problem: Any) -> None:
        # Closed first: the items dropped so far are worth reading even if the rest fails.
        self._held.close()
        self._resources.settle()
        if self.ahead:
            return
        rows = []
        for row in self.funnel.values():
            if row.stage in self._asks:
                _, stage = self._stages[row.stage]
                usages = (usage_from_json(outcome["usage"]) for outcome in stage.outcomes.values())
                sums = usage_json(total(usages))
                usage = {key: sums[key] for key in USAGE_KEYS}
                row = row._replace(usage=usage, lm=stage.model.name)
            rows.append(row._asdict())
        run_folder.write(self.folder / "funnel.json", json.dumps(rows, indent=1) + "\n")

    def ask(
        self,
        stage: str,
        units: Iterable[StageInput],
        most: int | None = None,
    ) -> Iterator[tuple[StageInput, Any]]:
        """Yield each unit with its answer, in order: outputs by name, rows of passages as {id: row}.

        A unit whose answer could not be used, twice, is dropped, and its answer is empty. `most` is
        the number of units at most, if that depends on answers that a dry run does not have.
        """
        if self.until and stage != self.until and self.until in self.funnel:
            raise StageReached(self.until)
        program, _ = self._open(stage)
        remaining = iter(units)
        look_ahead = partial(self._look_ahead, stage, most, self.certain)
        while batch := list(islice(remaining, SLICE)):
            queries = []
            for unit in batch:
                content = {"inputs": unit.inputs, "passages": unit.passages}
                text = json.dumps(content, ensure_ascii=False, sort_keys=True)
                numbers = map(str, range(1, len(unit.passages) + 1))
                queries.append(
                    Query(
                        digest(text)[:24],
                        text,
                        candidates=frozenset(numbers),
                    )
                )
            outcomes = look_ahead(queries) if self.ahead else self._send(stage, queries)
            for unit, query in zip(batch, queries, strict=True):
                yield (
                    unit,
                    self._read(
                        stage,
                        program,
                        unit,
                        query,
                        outcomes.get(query.query_id),
                    ),
                )
        if self.ahead and not self.certain:
            # Answers may lead to units that the rehearsal did not.
            look_ahead([])

    def ask_rows(
        self,
        stage: str,
        batches: Iterable[Sequence[tuple[str, str]]],
        inputs: JsonMapping,
        most: int | None = None,
    ) -> Iterator[tuple[str, Any]]:
        """Yield each passage of the batches that an answer has a row for, with this row."""
        units = (StageInput(batch[0][0], inputs, batch) for batch in batches)
        for _, answer in self.ask(stage, units, most):
            yield from answer.get(self._open(stage)[0].question.rows, {}).items()

    def drop(self, stage: str, item_id: str, reason: str, evidence: str = "") -> None:
        """Note that an item is left out, and the reason: a line of dropped.jsonl."""
        self._dropped[stage][reason] += 1
        row = {"stage": stage, "id": item_id, "why": reason}
        if evidence:
            row["evidence"] = evidence
        if self._dropped_file:
            self._dropped_file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def drop_all(self, stage: str, item_ids: Iterable[str], reason: str) -> None:
        """Note that several items are left out for one reason: a line of dropped.jsonl each."""
        for item_id in item_ids:
            self.drop(stage, item_id, reason)

    def count(self, stage: str, went_in: int, came_out: int) -> None:
        """Note how many items went into the stage and came out of it."""
        dropped = dict(sorted(self._dropped[stage].items()))
        self.funnel[stage] = FunnelRow(
            stage,
            went_in,
            came_out,
            dropped,
            {},
        )
        reasons = "".join(f", {count:,} {reason}" for reason, count in dropped.items())
        if not self.ahead:
            print_stderr(f"{stage}: {went_in:,} in, {came_out:,} out{reasons}")

    def review(
        self,
        sheet: str,
        values: dict[K, Any],
        show: Callable[[K], Item],
    ) -> None:
        """Offer every value to people on a sheet, and replace the model's values by their answers."""
        if self.ahead:
            return
        items = (show(key)._replace(model=value) for key, value in values.items())
        review.offer(self.folder, sheet, items)
        if not self._answers:
            return
        for key in values:
            answer = self._answers.get(review.identify(sheet, show(key)))
            if answer is not None:
                values[key] = answer

    def distinct_documents(self) -> list[str]:
        """Return the documents, each text once, in `stable_order`."""
        twins = self.source.twins
        return [doc_id for doc_id in stable_order(self.source.documents) if doc_id not in twins]

    def text(
        self,
        doc_id: str,
        chars: int = 0,
        private: Sequence[str] = (),
    ) -> str:
        """Return the first `chars` characters of a document (0: all), then the named private texts."""
        texts = [indexed_text(self.source.documents[doc_id])[: chars or None]]
        private_texts = self.source.private.get(doc_id, {}) if private else {}
        texts += [f"{name}: {private_texts[name]}" for name in private if name in private_texts]
        return "\n\n".join(texts)

    def passages(
        self,
        doc_ids: Iterable[str],
        chars: int = 0,
        private: Sequence[str] = (),
    ) -> list[tuple[str, str]]:
        """Return documents as a unit has them: each id with its `text`."""
        return [
            (
                doc_id,
                self.text(
                    doc_id,
                    chars,
                    private,
                ),
            )
            for doc_id in doc_ids
        ]

    def choice(
        self,
        label: str,
        text: str,
        doc_ids: Sequence[str],
        chars: int = 0,
    ) -> Item:
        """Return an item that asks people which documents are meant, shown with a text."""
        return Item([(label, text), *self.passages(doc_ids, chars)], values=doc_ids)

    def retriever(self, spec: str) -> Retriever:
        """Return a retriever over the corpus, with the resources of the build."""
        if spec not in self._retrievers:
            documents = self.source.documents
            home = files.sextant_home()
            built = retrievers.build(spec, documents, home, resources=self._resources)
            self._retrievers[spec] = built
        return self._retrievers[spec]

    def limit_queries(self, most: int) -> None:
        """Note how many queries there can be at most, unless that follows from a rehearsal alone."""
        if self.certain:
            self.most_queries = min(self.most_queries, most)

    def demand(
        self,
        remaining: Collection[Any],
        noun: str = "query",
        remedy: str = "dropped.jsonl says why",
    ) -> None:
        """Raise DataError, with the numbers that went through the stages, if nothing is left."""
        if not remaining:
            rows = self.funnel.values()
            stages = (f"{row.stage} ({row.went_in:,} in, {row.came_out:,} out)" for row in rows)
            raise DataError(f"no {noun} is left after {'; '.join(stages)}; {remedy}")

    def finish(
        self,
        queries: Sequence[Query],
        judgements: Mapping[str, Mapping[str, Mapping[str, float]]],
        provenance: Iterable[JsonMapping],
        together: Mapping[str, str] = {},
        **settings: Any,
    ) -> Benchmark:
        """Return the benchmark; a judgement of a text holds for all documents that have it.

        `together` is query_id -> a group: queries of a group are all for dev, or all for test.
        `settings` of benchmark.toml stand in place of the recipe's.
        """
        wanted: Any = self.recipe.release
        source = self.source
        defaults = {
            "name": wanted.name or self.folder.resolve().name,
            "objective": wanted.objective or GENERIC,
            "document": wanted.document,
            "metrics": list(wanted.metrics),
            "metric": wanted.metric,
            "opaque_ids": source.opaque_ids,
        }
        benchmark = Benchmark(
            source.documents,
            queries,
            {
                name: release.copy_labels_to_duplicates(qrels, source.twins)
                for name, qrels in judgements.items()
            },
            {name: value for name, value in (defaults | settings).items() if value},
            provenance=provenance,
            private=source.private,
        )
        share = wanted.dev
        if wanted.dev_most and queries:
            share = min(share, wanted.dev_most / len(queries))
        return release.split_dev(benchmark, share, together) if wanted.dev else benchmark

    @cached_property
    def statistics(self) -> TermStatistics:
        """Statistics of the corpus' words."""
        return BM25(self.source.documents, files.sextant_home()).statistics()

    def _open(self, stage: str) -> tuple[StageProgram, ModelStage]:
        if stage not in self._stages:
            documents = self.source.documents
            program = StageProgram(Toolbox(Corpus(()), NullRetriever()), stage=stage)
            request = self._requests.get(stage) or self._requests[program.question.role]
            config = {
                "task": f"build/{self.name}",
                "parameters": {"stage": stage},
                "data_fingerprint": "",
            }
            # A unit has everything that a model is shown; rules weigh words by the corpus, too.
            if request.lm == "offline":
                rules = code_digest.collect_sources([STAGES[stage].partition(":")[0]]).digest()
                config |= {"data_fingerprint": documents.fingerprint, "code": rules}
            path = self.folder / "stages" / stage
            model_stage = ModelStage(program, documents, path, config, request, self._resources)
            self._stages[stage] = (program, model_stage)
        return self._stages[stage]

    def _send(self, stage: str, queries: list[Query]) -> JsonMapping:
        if stage not in self._asks:
            _, model_stage = self._stages[stage]
            self._asks[stage] = self._held.enter_context(model_stage.open())
        progress = Progress(stage, len(queries), "units")
        hooks = QueryHooks(outcome=lambda outcome: progress.add())
        outcomes: JsonMapping = self._asks[stage](queries, hooks)
        return outcomes

    def _look_ahead(
        self,
        stage: str,
        most: int | None,
        certain: bool,
        queries: list[Query],
    ) -> JsonMapping:
        """Add the forecast of a stage's units, and return the outcomes that are there already."""
        _, model_stage = self._stages[stage]
        forecast = model_stage.forecast(queries)
        certain = certain and bool(queries)
        units = len(queries)
        most = units if most is None or certain else most
        row = {"stage": stage, "units": units, "most": most, "certain": certain}
        self.forecasts.append(row | forecast)
        # Later units follow from answers that are not there.
        self.certain &= not forecast["queries"]
        return model_stage.outcomes

    def _read(
        self, stage: str, program: StageProgram, unit: StageInput, query: Query, outcome: Any
    ) -> JsonObject:
        """Return the answer of an outcome, and drop what it lacks. A dry run has no outcome."""
        if outcome is None:
            return program.guess(json.loads(query.text), self.statistics)
        rows = program.question.rows
        doc_ids = [doc_id for doc_id, _ in unit.passages]
        if outcome["error"]:
            error = run_folder.first_error_line(outcome["error"])
            for item_id in doc_ids if rows else [str(unit.key)]:
                self.drop(stage, item_id, "no usable answer", error)
            return {}
        answer: JsonObject = json.loads(outcome["answer"])
        if rows:
            missing = [doc_id for doc_id in doc_ids if doc_id not in answer[rows]]
            self.drop_all(stage, missing, "left out by the model")
        return answer


def nearest_texts(texts: Mapping[str, str]) -> Callable[[str, int], list[str]]:
    """Return a function that gives the names of up to n texts most like another text, by BM25."""
    index = BM25(Corpus(Document(name, text) for name, text in texts.items()))
    return lambda text, most: index.search(text, most).doc_ids


def stable_order(doc_ids: Iterable[str]) -> list[str]:
    """Return ids by their digests: an order that is the same everywhere, and not the corpus's.

    In the corpus's order, documents that are alike may be together.
    """
    return sorted(doc_ids, key=digest)


def overlapping_slices(items: Sequence[T], size: int, overlap: int = 0) -> list[Sequence[T]]:
    """Cut a sequence into slices of `size`; each begins with the last `overlap` of the slice
    before.
    """
    starts = range(
        0,
        max(1, len(items) - overlap),
        max(1, size - overlap),
    )
    slices = (items[start : start + size] for start in starts)
    return [items_slice for items_slice in slices if items_slice]
