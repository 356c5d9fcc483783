"""Values that the stages of a build hand to each other: a corpus, units of work for a model, and the
finished benchmark.

Writes nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sextant.environments.base import Comparison, Qrels
from sextant.tools.corpus import Corpus
from sextant.tools.platform import files
from sextant.tools.records import JsonMapping, Query


class BuildSource(NamedTuple):
    """The start of a build: documents, and facts about them."""

    documents: Corpus
    group: Mapping[
        str, str
    ] = {}  # doc_id -> the post, debate or author that it is of, where the data say so
    private: Mapping[
        str, Mapping[str, str]
    ] = {}  # doc_id -> field -> a text that is never released
    twins: Mapping[
        str, str
    ] = {}  # doc_id -> the first document with the same text, or nearly the same
    counts: Mapping[str, int] = {}  # documents left out, by reason
    warnings: Sequence[str] = ()  # what a person should know before anything is sent
    dropped: Path | None = (
        None  # a line [id, reason, evidence] for each of those that `counts` counts
    )
    separator: str = ":"  # what stands between the parent and the rest in the id of a piece
    opaque_ids: bool = False  # whether it is of a task whose ids programs do not see


def read_dropped(source: BuildSource) -> Iterator[tuple[str, str, str]]:
    """Yield (name, reason, evidence) of all that was left out on the way to the documents."""
    for line in files.iter_lines(source.dropped) if source.dropped else ():
        name, reason, evidence = files.loads(line)
        yield name, reason, evidence


class StageInput(NamedTuple):
    """A call of a stage."""

    key: Any  # the caller's own handle
    inputs: JsonMapping  # fields of the signature, as JSON has them
    # (id, text) of what the answer has to name; a model sees them under ids of the call's own.
    passages: Sequence[tuple[str, str]] = ()


class Benchmark(NamedTuple):
    """A benchmark that a recipe makes and release.py writes."""

    documents: Corpus
    queries: Sequence[Query]
    judgements: Mapping[str, Qrels]  # "gold" first; grades of 0 are kept
    settings: JsonMapping  # of benchmark.toml: name, objective, document, metrics, lens, ...
    comparisons: Mapping[str, Sequence[Comparison]] = {}
    dev: Collection[str] = ()  # query ids
    provenance: Iterable[JsonMapping] = ()  # a row a query: what it was made of
    private: Mapping[
        str, Mapping[str, str]
    ] = {}  # doc_id -> field -> text, written beside the release
    twins: Mapping[str, str] = {}  # query id -> the query that asks for the same in another style
    counts: Mapping[str, float] = {}  # what else its card says of it
