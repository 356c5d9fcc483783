"""Tasks of a user's own: a folder with data (collections.py says in which forms), or what `of`
makes in Python.

    my_data                       a folder; runs call the task own/my_data, or as its benchmark.toml says
    ir_datasets:beir/scifact/test a data set of that package
    my_task.py:NAME               what `of` returned, the path of a folder, or a function that returns either

The file benchmark.toml in the folder has the facts that data lacks (`Settings`); without it the
objective is neutral and no query is kept for dev. Imperfect data is counted in the notes of a run,
and no reason to refuse it. A query for which nothing is relevant scores 0, as trec_eval has it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal, NotRequired, cast

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 on

from sextant.environments.base import (
    GENERIC,
    Comparison,
    DevSplit,
    EmptySplit,
    Environment,
    Judgements,
    LoadRequest,
    Qrels,
    Release,
    Suite,
)
from sextant.environments.opaque_ids import hide_ids
from sextant.environments.ranking_metrics import METRIC_NAME, PAIRWISE, translate_metric
from sextant.environments.readers import document_ids
from sextant.environments.readers import files as tables
from sextant.environments.readers.collections import (
    Queries,
    list_counts,
    match_judgements,
    read_collection,
    read_id_lists,
)
from sextant.environments.readers.corpora import Collection
from sextant.environments.readers.files import check_grade, check_text, read_id
from sextant.tools import plugins as names
from sextant.tools import schemas
from sextant.tools.corpus import Corpus
from sextant.tools.errors import (
    DataError,
    OwnCodeFailed,
    SextantError,
    UnknownForTask,
    UnknownName,
    UsageError,
)
from sextant.tools.platform import files as disk
from sextant.tools.platform.cli import strip_control_characters
from sextant.tools.records import Document, Query

# Texts by id, or documents, or (id, text).
Documents = Mapping[str, str] | Iterable[Document | tuple[str, str]]

FILE = "benchmark.toml"
METRICS = ("nDCG@10", "R@10", "R@100", "R@1000", "RR@10")
SEED = "sextant-own-1"
REMEDY = (
    f"a line `split = {{ share = 0.3 }}` in its {FILE} makes one of 30 % of the queries "
    "(`sextant tasks init FOLDER` writes that file)"
)


class DevShare(TypedDict):
    """A dev split that Sextant makes: base.DevSplit."""

    share: Annotated[float, Field(gt=0, lt=1)]
    seed: NotRequired[str]


class LensWording(TypedDict):
    """A lens of the task's own, in words; tools/lenses.py says who reads them."""

    search: str
    recognise: str
    # It stands in names of retrievers, in "...".
    annotate: Annotated[str, Field(pattern=r'^[^"]*\S\s+\S[^"]*$')]
    solved: NotRequired[str]


MetricName = Annotated[str, BeforeValidator(translate_metric), Field(pattern=METRIC_NAME)]


class Settings(TypedDict, total=False):
    """The keys of benchmark.toml, which are also the keywords of `of`."""

    name: str  # own/NAME in runs and tables
    objective: str  # what counts as a find, in a sentence
    # What queries say of the task to models and retrievers, where that is not the objective
    instruction: str
    document: str  # what a document is, in a few words
    target: Literal["titles", "title", "text", "quotations"]  # of guesses: programs/closed_book.py
    metrics: Annotated[list[MetricName], Field(min_length=1)]
    metric: MetricName  # the headline; the first of `metrics` without it
    # The lowest grade of a relevant document; every grade above 0 without it
    relevant_from: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    opaque_ids: bool  # programs see other ids than those of the data: environments/opaque_ids.py
    # Files, or folders of them, by their names in tables; the first leads.
    judgements: dict[str, str | list[str]]
    split: DevShare  # in place of the dev split that the data has, if any
    depth: Annotated[int, Field(ge=1, le=schemas.LARGEST)]  # documents in a ranking
    lens: LensWording | str  # tools/lenses.py: what makes a document relevant
    attribute: (
        str  # what an index writes down of documents for it; of a lens in words, its `annotate`
    )
    max_p: str  # the separator in passages' ids, "PARENT:PASSAGE", where judgements name parents
    columns: dict[str, str]  # as --column
    # Files or folders, if several could be meant.
    files: dict[Literal["documents", "queries"], str | list[str]]
    # A file, {query: [documents that it must not see]}, or "self": the document of the query's id
    excluded: str
    pools: str  # a file, {query: [documents, which alone it ranks]}
    comparisons: (
        str  # a table with the header query-id, label ("Win(...)" or "Triplets"), better, worse
    )
    twins: str  # a file, {query: the query that asks for the same in another style}, for Flip
    made: dict[str, Any]  # how it was built: construction/sextant_construction/release.py


_TABLES_BESIDE = ("excluded", "pools", "comparisons", "twins")
# Keys that only a folder can have.
FILES = ("judgements", "files", "columns", *_TABLES_BESIDE)


def locate_custom_task(name: str) -> tuple[str, str] | None:
    """Return (full name, place of the data) of a task that is in no table; None if it is none of a
    user's either.

    The place leads back to the data from any working folder: a path, an ir_datasets id, or a
    reference.
    """
    if name in names.list_names({}, names.TASKS):
        return f"own/{name_slug(name)}", names.resolve("task", name, {}, names.TASKS)
    if name.startswith("ir_datasets:"):
        return f"own/{name_slug(name.partition(':')[2])}", name
    if names.is_reference(name):
        source, _, attribute = name.rpartition(":")
        resolved = str(names.resolve_file(source)) if source.endswith(".py") else source
        return f"own/{name_slug(attribute)}", f"{resolved}:{attribute}"
    if (folder := disk.expand_user_path(name).resolve()).is_dir():
        return f"own/{name_slug(read_settings(folder).get('name') or folder.name)}", str(folder)
    if name.startswith((".", "/", "~")):
        raise DataError(
            f"there is no folder {name}; --task takes a folder with data of yours, or a task's name"
        )
    return None


def name_slug(text: str) -> str:
    """Return `text` as a part of a task's name, without separators of parts."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "task"


def read_settings(folder: Path) -> Settings:
    """Return the settings of the folder's benchmark.toml; nothing if there is none.

    DataError for impossible values.
    """
    path = folder / FILE
    return check_settings(disk.load_toml(path), str(path)) if path.exists() else {}


def check_settings(content: dict[str, Any], source: str) -> Settings:
    """Return `content` if every key is one of `Settings`, with a value of its type.

    DataError else.
    """
    if unknown := content.keys() - Settings.__annotations__.keys():
        raise DataError(f"{source}: {UnknownName('key', min(unknown), Settings.__annotations__)}")
    return cast(Settings, _check(Settings, content, source))


def load(request: LoadRequest) -> Environment:
    """Load the requested split of a task of the user's own."""
    every = _open(request)
    task = every.task if re.fullmatch("own/.+", every.task) else request.task
    headline = request.qrels or every.headline
    if headline not in every.judgements:
        raise UnknownForTask(f"judgements of {request.task}", headline, every.judgements)
    query_ids = [query.query_id for query in every.queries]
    dev = set(every.splits.get("dev", ()))
    test = set(every.splits.get("test", {*query_ids} - dev))
    chosen = {"all": {*query_ids}, "dev": dev, "test": test}[request.split]
    asked = [query_id for query_id in query_ids if query_id in chosen]
    if not asked:
        raise EmptySplit(request.split, task, len(query_ids), REMEDY)
    environment = every.asking(query_ids=asked)
    judged = environment.judgements[headline]
    warnings = environment.warnings
    if hidden := _count_hidden(environment.queries, judged):
        warnings += (
            f"{task}: relevant documents that are excluded, or outside of the query's pool: {hidden}",
        )
    return replace(
        environment,
        task=task,
        data=request.data,
        source=request.data,
        split=request.split,
        columns=request.columns,
        headline=headline,
        max_p=judged.unit_of is not None,
        queries=tuple(
            replace(query, objective=request.objective(query.objective))
            for query in environment.queries
        ),
        # Triplets are of dev alone.
        metrics=tuple(
            name for name in every.metrics if name != "Triplets" or environment.comparisons
        ),
        warnings=warnings,
    )


def _count_hidden(queries: Iterable[Query], judged: Judgements) -> int:
    """Return how many relevant documents are excluded, or outside of their query's pool."""
    hidden = 0
    for query in queries:
        relevant = judged.relevant(query.query_id).keys()
        pool = relevant if query.candidates is None else judged.list_units(query.candidates)
        hidden += len(relevant - (pool - query.excluded))
    return hidden


def _open(request: LoadRequest) -> Environment:
    """Return all queries of the task; its name is "own/" if the request names it."""
    location = request.data
    is_package = location.startswith("ir_datasets:")
    if names.is_reference(location) and not is_package:
        made = _make_from_python(location)
        if isinstance(made, Environment):
            return made
        location = made
    elif not is_package and not Path(location).is_dir():
        raise DataError(
            f"the folder {location} of {request.task} is not there; --data says where it is now"
        )
    folder = Path(location)
    settings = read_settings(folder)
    reads = _read_folder(folder, settings, request)
    read = _limit(next(iter(reads.values())), folder, settings)
    notes = list(read.said)
    if not settings:
        dev_rule = "the dev queries are the data's" if read.splits else "no query is kept for dev"
        notes.append(f"There is no {FILE}: the objective is neutral, and {dev_rule}.")
    if recipe := settings.get("made"):
        notes.append(f"This benchmark was built: README.md. {recipe.get('human', '')}".rstrip())
    warnings = dict.fromkeys(chain(*(each.warnings for each in reads.values())))
    judged = {name: each.qrels for name, each in reads.items()}
    task = _make(read._replace(said=tuple(notes), warnings=tuple(warnings)), judged, settings)
    return _compare(task, folder, settings)


def _make_from_python(reference: str) -> Environment | str:
    """Return the task, or the path of a folder, that a user's object is or makes."""
    try:
        recipe = names.load_object("task", reference, {}, names.TASKS)
        with names.contained():
            recipe = recipe() if callable(recipe) else recipe
    except SextantError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise OwnCodeFailed(
            f"{names.display_name(reference)}: {names.describe_exception(error)}"
        ) from error
    if isinstance(recipe, Environment):
        return recipe
    if isinstance(recipe, str | Path):
        return str(recipe)
    raise UsageError(
        f"{names.display_name(reference)} makes a {type(recipe).__name__}; a task is what "
        f"environments.of returns, the path of a folder, or a function that returns either"
    )


def _read_folder(folder: Path, settings: Settings, request: LoadRequest) -> dict[str, Collection]:
    """Return the collection of a folder with each of its judgements."""

    def list_paths(files: str | Sequence[str]) -> list[Path]:
        return [folder / file for file in ([files] if isinstance(files, str) else files)]

    files = {table: list_paths(named) for table, named in settings.get("files", {}).items()}
    judged = {name: list_paths(named) for name, named in settings.get("judgements", {}).items()}
    beside = [str(setting) for key, setting in settings.items() if key in _TABLES_BESIDE]
    return {
        name: read_collection(
            folder,
            request.home,
            settings.get("columns", {}) | dict(request.columns),
            files | ({"judgements": paths} if paths else {}),
            settings.get("max_p", ""),
            request.split,
            [*chain(*judged.values()), *list_paths(beside)],
            settings.get("relevant_from", 0.0),
        )
        for name, paths in (judged or {"gold": []}).items()
    }


_MUST_NOT_SHOW = "a search would show what it must not"


def _limit(read: Collection, folder: Path, settings: Settings) -> Collection:
    """Return the collection with the documents that each query excludes, and the pool that it ranks."""
    documents = read.documents
    hidden: Mapping[str, frozenset[str]] = {}
    if (file := settings.get("excluded", "")) == "self":
        hidden = {query_id: frozenset({query_id} & documents.keys()) for query_id in read.queries}
    elif file:
        hidden = read_id_lists(folder / file, read.queries, _MUST_NOT_SHOW)
    pools = read.pools
    if "pools" in settings:
        pools = read_id_lists(folder / settings["pools"], read.queries, "it would rank nothing")
    if empty := [query_id for query_id in read.queries if pools and not pools.get(query_id)]:
        raise DataError(f"{folder}: query {empty[0]!r} has no pool to rank")
    if absent := _list_absent(pools, read):
        mismatch = document_ids.compare(absent, "pools", documents, "corpus")
        raise DataError(f"{folder}: pools have documents that the corpus lacks: {mismatch}")
    excluded = {
        query_id: frozenset(chain(read.excluded.get(query_id, ()), hidden.get(query_id, ())))
        for query_id in read.queries
    }
    notes = list(read.said)
    if absent := _list_absent(excluded, read):
        mismatch = document_ids.compare(absent, "exclusions", documents, "corpus")
        if mismatch.is_spelling:
            raise DataError(f"{folder}: {_MUST_NOT_SHOW}: {mismatch}")
        notes.append(f"Excluded documents that are not in the corpus: {len(absent):,}.")
    itself = [
        query_id
        for query_id, text in read.queries.items()
        if query_id not in excluded[query_id]
        and query_id in documents
        and _is_same(text, documents[query_id].text)
    ]
    if itself:
        notes.append(
            f"Queries that are documents of the corpus, with the same id and text: {len(itself):,}; BEIR "
            f'leaves these out of their results, as `excluded = "self"` in {FILE} does.'
        )
    return read._replace(excluded=excluded, pools=pools, said=tuple(notes))


def _list_absent(lists: Mapping[str, Iterable[str]], read: Collection) -> list[str]:
    """Return the documents in the lists of its queries that a collection lacks, each once."""
    listed = dict.fromkeys(chain(*(lists.get(query_id, ()) for query_id in read.queries)))
    return [doc_id for doc_id in listed if doc_id not in read.documents]


def _is_same(query: str, document: str) -> bool:
    return bool(document.strip()) and (query in document or document in query)


ComparisonRow = TypedDict(
    "ComparisonRow",
    {
        "query-id": str,
        "label": Annotated[str, Field(pattern=r"^(Win\(\w+\)|Triplets)$")],
        "better": str,
        "worse": str,
    },
)


def _compare(task: Environment, folder: Path, settings: Settings) -> Environment:
    """Return the task with its comparisons and twins.

    DataError for queries and documents that they name and the data lacks.
    """
    pairs = dict[str, tuple[Comparison, ...]]()
    known_queries = task.queries_by_id.keys()
    comparisons = settings.get("comparisons")
    for location, cells in tables.read_headed(folder / comparisons) if comparisons else ():
        row = _check(ComparisonRow, cells, location)
        query_id, label, better, worse = (row[name] for name in ComparisonRow.__annotations__)
        if unknown := {query_id} - known_queries or {better, worse} - task.documents.keys():
            raise DataError(f"{location}: {min(unknown)!r} is no judged query or document")
        pairs[query_id] = (*pairs.get(query_id, ()), Comparison(label, better, worse))
    labels = {query_id: [pair.label for pair in every] for query_id, every in pairs.items()}
    twins: dict[str, str] = {}
    if "twins" in settings:
        path = folder / settings["twins"]
        twins = _check(dict[str, str], tables.read_json(path), str(path))
        for query_id, twin in twins.items():
            if query_id not in labels or labels[query_id] != labels.get(twin):
                raise DataError(
                    f"{path}: query {query_id!r} and its twin are no two queries with the same "
                    f"comparisons"
                )
    known = {*chain(*labels.values()), *["Win"] * bool(pairs), *["Flip"] * bool(twins)}
    for name in task.metrics:
        if name.startswith(tuple(PAIRWISE)) and name not in known:
            raise DataError(f"{folder / FILE}: there are no comparisons for the metric {name}")
    return replace(task, comparisons=pairs, twins=twins)


def _check(form: Any, value: Any, source: str) -> Any:
    """Return the value if it is of the form. DataError else."""
    try:
        return schemas.validate(form, value)
    except ValueError as error:
        raise DataError(f"{source}: {error}") from None


def of(
    documents: Documents, queries: Mapping[str, str], qrels: Qrels, *, name: str, **settings: Any
) -> Environment:
    """Return a task made in Python: documents and queries by id, and grades by query and document.

    `settings` are keys of benchmark.toml. A file of yours with `TASK = environments.of(...)`, or
    with a function that returns one, is run as `--task FILE.py:TASK`.
    """
    source = "environments.of"
    checked_settings = check_settings({"name": name, **settings}, source)
    if files := [key for key in FILES if key in checked_settings]:
        raise DataError(
            f"{source}: {files[0]!r} is of files; write a folder, or make the Environment yourself"
        )
    texts = {
        read_id(query_id, source): check_text(text, source)
        for query_id, text in _check(Mapping[Any, Any], queries, f"{source}, queries").items()
    }
    graded = _check(Mapping[Any, Mapping[Any, Any]], qrels, f"{source}, qrels")
    judged = {
        read_id(query_id, source): {
            read_id(doc_id, source): check_grade(grade, source) for doc_id, grade in grades.items()
        }
        for query_id, grades in graded.items()
    }
    counts = Counter[str]()
    read = match_judgements(
        source,
        Corpus(
            Document(read_id(doc_id, source), check_text(text, source), title)
            for doc_id, text, title in _list_documents(documents, source)
        ),
        Queries(texts),
        {"": judged},
        counts,
        checked_settings.get("max_p", ""),
        checked_settings.get("relevant_from", 0.0),
    )
    read = read._replace(said=(*read.said, *list_counts(counts)))
    task = _make(read, {"gold": read.qrels}, checked_settings)
    task = replace(task, task=f"own/{name_slug(name)}")
    return hide_ids(task) if task.opaque_ids else task


def _list_documents(documents: Documents, source: str) -> Iterator[tuple[Any, Any, str]]:
    pairs = documents.items() if isinstance(documents, Mapping) else documents
    for pair in pairs:
        if isinstance(pair, Document):
            yield pair.doc_id, pair.text, pair.title
        elif isinstance(pair, tuple | list) and len(pair) == 2:
            yield *pair, ""
        else:
            form = "a pair (id, text), or sextant.tools.records.Document(id, text, title)"
            raise DataError(f"{source}: {tables.abbreviate(pair)} is no document; give {form}")


def _make(read: Collection, judged: Mapping[str, Qrels], settings: Settings) -> Environment:
    metrics = settings.get("metrics", METRICS)
    metric = settings.get("metric", metrics[0])
    separator = settings.get("max_p")
    instruction = settings.get("instruction") or settings.get("objective") or GENERIC
    parent = (lambda doc_id: doc_id.rpartition(separator)[0] or doc_id) if separator else None
    dev: Sequence[str] = read.splits.get("dev", ())
    if ours := settings.get("split"):
        dev = DevSplit(ours.get("seed", SEED), ours["share"]).choose(list(read.queries), "dev")
    return Environment(
        task="own/",
        data="",
        split="all",
        source="",
        documents=read.documents,
        queries=tuple(
            Query(
                query_id,
                text,
                read.instructions.get(query_id, instruction),
                read.excluded.get(query_id, frozenset()),
                read.pools[query_id] if read.pools else None,
            )
            for query_id, text in read.queries.items()
        ),
        judgements={
            name: Judgements(
                qrels,
                unit_of=parent,
                zero=True,
                relevant_from=settings.get("relevant_from", 0.0),
            )
            for name, qrels in judged.items()
        },
        headline=next(iter(judged)),
        metrics=tuple(dict.fromkeys([metric, *metrics])),
        metric=metric,
        depth=settings.get("depth", 1000),
        splits={**({} if ours else read.splits), "dev": dev},
        unjudged=read.unjudged,
        separator=separator or ":",
        notes=read.said,
        warnings=read.warnings,
        opaque_ids=settings.get("opaque_ids", False),
        hints=_hints(settings),
    )


def _hints(settings: Settings) -> dict[str, str]:
    hints = {
        name: str(setting)
        for name, setting in settings.items()
        if name in ("lens", "attribute", "document", "target")
    }
    # sextant.tools.lenses reads the text, retrievers take `attribute`.
    if not isinstance(words := settings.get("lens", ""), str):
        hints |= {"lens": json.dumps(words, ensure_ascii=False), "attribute": words["annotate"]}
    return hints


_DRAFT = Template(
    """\
name = $name  # runs and tables call the task own/NAME
objective = $objective  # what counts as a find; models read it with every query
# document = "an article"  # what a document is, in a few words
columns = $columns  # what the files call their columns; as --column
metrics = $metrics  # at any depth; also P, AP and Judged
metric = $metric  # the headline
# relevant_from = 2  # the lowest grade of a relevant document; without it all above 0
# judgements = { gold = "qrels/test.tsv", pooled = "qrels/pooled.tsv" }  # the first leads
# split = { share = 0.3, seed = "$seed" }  # keep 30 % of the queries for dev, which compiling needs
depth = 1000  # documents in a ranking
# lens = "recollection"  # how documents are relevant without saying so; also stance, failure, proof
# instruction = ""  # what queries say of the task, where that is not the objective
# max_p = ":"  # ids of documents are PARENT:PASSAGE, and judgements name parents
# excluded = "excluded.json"  # {query: [documents that it must not see]}; also pools, comparisons, twins
"""
)


def draft_benchmark_toml(
    folder: Path, columns: Mapping[str, str], name: str = ""
) -> tuple[str, tuple[str, ...]]:
    """Return (the text of a benchmark.toml for the data in `folder`, findings in it)."""
    read = read_collection(folder, disk.sextant_home(), columns)
    text = _DRAFT.substitute(
        name=schemas.to_toml(name_slug(name or folder.name)),
        objective=schemas.to_toml(GENERIC),
        metrics=schemas.to_toml(METRICS),
        metric=schemas.to_toml(METRICS[0]),
        columns=schemas.to_toml(columns),
        seed=SEED,
    )
    findings = (*(f"Warning: {warning}" for warning in read.warnings), *read.said)
    comments = [
        f"# {strip_control_characters(sentence).replace(str(folder), folder.name)}\n"
        for sentence in findings
    ]
    return "".join([*comments, text]), findings


SUITE = Suite(
    release=Release("folder", "", "", "", ""),
    tasks={},
    load=load,
    judgements=(),
)
