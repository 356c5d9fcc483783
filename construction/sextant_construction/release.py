"""A finished benchmark as a folder that every command takes as a task, and its dev split, masks and
checks.

    FOLDER/release/
      corpus.jsonl, queries.jsonl     BEIR's rows, {"_id", "title", "text"} and {"_id", "text"}
      qrels/test.tsv, qrels/dev.tsv   the first judgements, with grades of 0; others are in <name>.tsv
      excluded.json, pools.json, comparisons.tsv, twins.json   if the benchmark has such: environments/custom.py
      provenance.jsonl, benchmark.toml, README.md
    FOLDER/solutions.jsonl            private texts, which `tournament -P solutions=FILE` reads

Nothing here asks a model, and equal benchmarks give equal bytes.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path

from sextant import environments
from sextant.environments import base, custom, task_card
from sextant.environments.base import DevSplit, EmptySplit, Environment, Grades, Qrels
from sextant.environments.readers import files as tables
from sextant.environments.readers import raw_files
from sextant.evals.formats.hub import front_matter
from sextant.tools import schemas
from sextant.tools.corpus import Corpus, indexed_text
from sextant.tools.errors import DataError
from sextant.tools.platform import files as disk
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import tabulate
from sextant.tools.records import JsonMapping, JsonObject, Query
from sextant.tools.text import ngrams, tokens
from sextant_construction import human_review
from sextant_construction.types import Benchmark

_LOG = logging.getLogger("sextant")

RELEASE = "release"
PRIVATE = "solutions.jsonl"
RUN = 8  # words in a row by which a private text is known; a shorter text is looked for in full
# What JSON writes in place of characters that are in no word
_ESCAPE = re.compile(r"\\u[0-9a-f]{4}|\\.")
_TAGS = ("information-retrieval", "benchmark", "sextant")


def mask_own_document(
    queries: Iterable[Query],
    group: Mapping[str, str],
    twins: Mapping[str, str],
) -> Iterator[Query]:
    """Yield queries that are documents, by their ids, with the documents that they must not see.

    These are the query itself, its group and equal texts. `group` and `twins` are as of a
    BuildSource.
    """
    members = _invert(group)
    copies = _invert(twins)
    for query in queries:
        first = twins.get(query.query_id, query.query_id)
        hidden = {query.query_id, first} | copies[first] | members[group.get(query.query_id)]
        yield replace(query, excluded=query.excluded | hidden)


def _invert(table: Mapping[str, str]) -> defaultdict[str | None, set[str]]:
    """Return value -> the keys that have it."""
    keys = defaultdict[str | None, set[str]](set)
    for key, value in table.items():
        keys[value].add(key)
    return keys


def copy_labels_to_duplicates(qrels: Qrels, twins: Mapping[str, str]) -> Qrels:
    """Return the judgements with a judgement of a text for every document that has the text.

    Of several judgements of a text the highest holds.
    """
    copies = _invert(twins)
    spread = Grades()
    for query_id, grades in qrels.items():
        highest: dict[str, float] = {}  # the first document with a text -> its grade
        for doc_id, grade in grades.items():
            first = twins.get(doc_id, doc_id)
            highest[first] = max(grade, highest.get(first, grade))
        spread[query_id] = {
            doc_id: grade
            for first, grade in highest.items()
            for doc_id in (first, *sorted(copies[first]))
        }
    return spread


def _filter_judgements(benchmark: Benchmark, stays: Callable[[str, str], bool]) -> dict[str, Qrels]:
    """Return the judgements without those that `stays` (query id, document id) refuses."""
    return {
        name: {
            query_id: {doc_id: grade for doc_id, grade in grades.items() if stays(query_id, doc_id)}
            for query_id, grades in qrels.items()
        }
        for name, qrels in benchmark.judgements.items()
    }


def judge_within_pools(benchmark: Benchmark) -> Benchmark:
    """Return the benchmark without judgements of documents that a query does not rank.

    Such are judgements of equal texts. A judgement of an id that is no document stays: it is of
    the parent of passages.
    """
    pools = {query.query_id: query.candidates for query in benchmark.queries}

    def is_ranked(query_id: str, doc_id: str) -> bool:
        pool = pools.get(query_id)
        return pool is None or doc_id in pool or doc_id not in benchmark.documents

    return benchmark._replace(judgements=_filter_judgements(benchmark, is_ranked))


def split_dev(
    benchmark: Benchmark,
    share: float,
    group: Mapping[str, str] = {},
    *,
    disjoint: bool = False,
) -> Benchmark:
    """Return the benchmark with a share of its queries for dev, by hash.

    Queries of one `group` stay together, and so do groups that share a text. `disjoint`: documents
    in the pool of a test query leave the pools of dev queries, and dev queries without a relevant
    document then are dropped (BIRCO). If there are too few queries, none is for dev.
    """
    names = _join_equal_texts(benchmark.queries, group)
    chosen: Collection[str] = ()
    with suppress(EmptySplit):
        chosen = DevSplit(custom.SEED, share).choose(sorted({*names.values()}), "dev")
    dev = {query_id for query_id, name in names.items() if name in {*chosen}}
    if disjoint:
        test_pools = (
            query.candidates or () for query in benchmark.queries if query.query_id not in dev
        )
        pooled = frozenset(chain.from_iterable(test_pools))
        benchmark = drop_documents(benchmark, dict.fromkeys(dev, pooled))
        queries = [
            query
            for query in benchmark.queries
            if query.query_id not in dev or _highest_grade(benchmark, query) > 0
        ]
        benchmark = benchmark._replace(queries=queries)
    return benchmark._replace(dev=sorted(dev & {query.query_id for query in benchmark.queries}))


def _join_equal_texts(queries: Sequence[Query], group: Mapping[str, str]) -> dict[str, str]:
    """Return the name of each query's group: one name for all groups that share a query's text."""
    names = {query.query_id: group.get(query.query_id, query.query_id) for query in queries}
    first: dict[str, str] = {}  # text -> a query
    for query in queries:
        name = names[query.query_id]
        other = names[first.setdefault(query.text, query.query_id)]
        if other != name:
            names = {key: other if value == name else value for key, value in names.items()}
    return names


def find_dev(task: str, data: str | None) -> frozenset[str]:
    """Return the queries that a task has for dev; none if it has too few."""
    with suppress(EmptySplit):
        return frozenset(
            query.query_id
            for query in environments.load(
                task,
                data,
                "dev",
            ).queries
        )
    return frozenset()


def _highest_grade(benchmark: Benchmark, query: Query) -> float:
    """Return the highest grade of a query by the leading judgements; 0 without any."""
    gold = next(iter(benchmark.judgements.values()))
    return max(gold.get(query.query_id, {}).values(), default=0.0)


def drop_documents(benchmark: Benchmark, removed: Mapping[str, frozenset[str]]) -> Benchmark:
    """Return the benchmark without the documents `removed` for a query, wherever it names them."""
    gone = defaultdict(frozenset, removed)
    queries = [
        replace(query, candidates=query.candidates and query.candidates - gone[query.query_id])
        for query in benchmark.queries
    ]
    comparisons = {
        query_id: [pair for pair in pairs if not {pair.better, pair.worse} & gone[query_id]]
        for query_id, pairs in benchmark.comparisons.items()
    }
    judgements = _filter_judgements(
        benchmark, lambda query_id, doc_id: doc_id not in gone[query_id]
    )
    return benchmark._replace(queries=queries, judgements=judgements, comparisons=comparisons)


def write_release(
    benchmark: Benchmark,
    folder: Path,
    provenance: JsonMapping,
) -> None:
    """Write FOLDER/release in a single step: readers find the release before, none, or the new
    release.

    `provenance` has the recipe, digest, models, licence (as the Hub has it) and source; of the
    card alone: funnel (rows of stage, went_in, came_out, dropped). DataError for a benchmark that
    could not be read again.
    """
    masks = {query.query_id: query.excluded for query in benchmark.queries}
    benchmark = drop_documents(benchmark, masks)
    if masks.keys() <= {*benchmark.dev}:
        raise DataError("no test query is left; the funnel says where they were dropped")
    for query in benchmark.queries:
        if _highest_grade(benchmark, query) <= 0:
            raise DataError(
                f"query {query.query_id!r} has no relevant document that it may see; its stage "
                f"has to drop it"
            )
    folder.mkdir(parents=True, exist_ok=True)
    if benchmark.private:
        with disk.replacing(folder / PRIVATE) as file:
            for doc_id, texts in benchmark.private.items():
                row = {"_id": doc_id, "solution": "\n\n".join(texts.values()), "fields": texts}
                file.write(disk.dumps(row) + "\n")
    else:
        (folder / PRIVATE).unlink(missing_ok=True)
    path = folder / RELEASE
    with (
        disk.temporary_sibling(path, disk.SHARED, folder=True) as draft,
        disk.temporary_sibling(path, disk.SHARED, folder=True) as old,
    ):
        _write_files(benchmark, draft, {"human": human_review.describe(folder), **provenance})
        with suppress(FileNotFoundError):
            path.rename(old)
        draft.rename(path)


def _write_files(
    benchmark: Benchmark,
    draft: Path,
    provenance: JsonMapping,
) -> None:
    """Write every file of a release into the folder `draft`."""
    texts = (
        {"_id": document.doc_id, "title": document.title, "text": document.text}
        for document in benchmark.documents.stream()
    )
    queries = ({"_id": query.query_id, "text": query.text} for query in benchmark.queries)
    rows_of = {"corpus": texts, "queries": queries, "provenance": benchmark.provenance}
    for name, rows in rows_of.items():
        _write(draft / f"{name}.jsonl", map(disk.dumps, rows))
    settings = {
        **benchmark.settings,
        **_write_judgements(benchmark, draft),
        **_write_protocol(benchmark, draft),
    }
    made = {**provenance, "counts": _count(benchmark)}
    path = draft / custom.FILE
    _write(path, [*_toml_lines(settings), "", "[made]", *_toml_lines(made)])
    custom.check_settings(disk.read_toml(path), custom.FILE)
    _write(draft / "README.md", _card_lines(settings, made, bool(benchmark.dev)))


def _count(benchmark: Benchmark) -> dict[str, float]:
    """Return the numbers of documents, queries and judgements, and further counts of the recipe."""
    counts: dict[str, float] = {
        "documents": len(benchmark.documents),
        "queries": len(benchmark.queries),
        "for dev": len(benchmark.dev),
    }
    for name, qrels in benchmark.judgements.items():
        rows = (qrels.get(query.query_id, ()) for query in benchmark.queries)
        counts[f"{name} judgements"] = sum(map(len, rows))
    return {**counts, **benchmark.counts}


def _write(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", errors="replace", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def _write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write tab-separated rows. DataError for an id with a tab."""
    lines = ["\t".join(row) for row in (header, *rows)]
    for line in lines:
        if line.count("\t") >= len(header):
            raise DataError(
                f"an id has a tab in it, which no table of judgements can hold: {line!r}; give it "
                f"another"
            )
    _write(path, lines)


def keep_level(environment: Environment) -> JsonObject:
    """Return the key of benchmark.toml for the lowest grade of a relevant document, if there is one."""
    level = environment.judgements[environment.headline].relevant_from
    return {"relevant_from": level} if level else {}


def _write_judgements(benchmark: Benchmark, draft: Path) -> JsonObject:
    """Write every set of judgements as BEIR has them, whole grades without a fraction; return the keys
    of benchmark.toml that name them.
    """
    [(leading, gold), *further] = benchmark.judgements.items()
    query_ids = [query.query_id for query in benchmark.queries]
    dev = [query_id for query_id in query_ids if query_id in benchmark.dev]
    test = [query_id for query_id in query_ids if query_id not in benchmark.dev]
    files = {leading: "qrels"} | {name: f"{name}.tsv" for name, _ in further}
    tables = [("qrels/test.tsv", gold, test), ("qrels/dev.tsv", gold, dev)]
    tables += [(files[name], qrels, query_ids) for name, qrels in further]
    for file, qrels, chosen in tables:
        rows = [
            (query_id, doc_id, str(float(grade)).removesuffix(".0"))
            for query_id in chosen
            for doc_id, grade in qrels.get(query_id, {}).items()
        ]
        if chosen:
            _write_table(draft / file, ("query-id", "corpus-id", "score"), rows)
    return {"judgements": files}


def _write_protocol(benchmark: Benchmark, draft: Path) -> dict[str, str]:
    """Write masks, pools, twins and comparisons; return the keys of benchmark.toml."""
    queries = {query.query_id: query for query in benchmark.queries}
    objects: dict[str, JsonObject] = {
        "excluded": {name: sorted(query.excluded) for name, query in queries.items()},
        "pools": {name: sorted(query.candidates or ()) for name, query in queries.items()},
        "twins": {
            name: twin for name, twin in benchmark.twins.items() if {name, twin} <= queries.keys()
        },
    }
    files = {}
    for key, values in objects.items():
        if any(values.values()):
            files[key] = f"{key}.json"
            _write(draft / files[key], [disk.dumps(values)])
    if benchmark.comparisons:
        pairs = [
            (query_id, *pair)
            for query_id in queries
            for pair in benchmark.comparisons.get(query_id, ())
        ]
        files["comparisons"] = "comparisons.tsv"
        header = ("query-id", "label", "better", "worse")
        _write_table(draft / files["comparisons"], header, pairs)
    return files


def _toml_lines(table: JsonMapping) -> list[str]:
    return schemas.toml_lines({**table, "funnel": None})


def _card_lines(settings: JsonMapping, made: JsonMapping, has_dev: bool) -> Iterator[str]:
    """Yield the lines of README.md."""
    splits = ("test", "dev") if has_dev else ("test",)
    files = {
        "corpus": {"corpus": "corpus.jsonl"},
        "queries": {"queries": "queries.jsonl"},
        "default": {split: f"qrels/{split}.tsv" for split in splits},
    }
    name = settings.get("name", "A benchmark")
    yield front_matter(name, _TAGS, files, made.get("licence") or "unknown")
    yield f"{made['human']}\n\n# {name}\n\n{settings.get('objective', '')}\n"
    if funnel := made.get("funnel"):
        rows = [
            {
                "stage": row["stage"],
                "in": row["went_in"],
                "out": row["came_out"],
                "left out": ", ".join(f"{why} {count:,}" for why, count in row["dropped"].items()),
            }
            for row in funnel
        ]
        yield f"## What was left out\n\n{tabulate('', rows).to_markdown()}"
    yield "## How it was made\n"
    for line in _toml_lines({**made, "human": None}):
        yield f"    {line}"


def check_release(
    folder: Path, hooks: Sequence[Callable[[Environment], Iterable[str]]] = ()
) -> list[str]:
    """Return the problems of FOLDER/release: it breaks a rule that must hold of any benchmark.

    `hooks` see all its queries, and yield further problems.
    """
    release = (folder / RELEASE).resolve()
    problems = []
    for finding in task_card.run_checks(str(release)):
        if finding.what == "ids" and not finding.fine:
            _LOG.warning("warning: %s", finding.said)  # which a line of benchmark.toml mends
        elif not finding.fine:
            problems.append(f"{finding.what}: {finding.said}")
    if problems and problems[0].startswith("loading"):
        return problems
    environment = environments.load(str(release), split="all")
    try:
        base.validate_environment(environment)
    except DataError as error:
        problems.append(str(error))
    if environment.unjudged:
        problems.append(f"no judgement for {plural(len(environment.unjudged), 'query', 'queries')}")
    for find_problems in (_find_shared, *hooks):
        problems += find_problems(environment)
    problems += _find_leaks(folder, environment.documents)
    return problems


def _find_shared(environment: Environment) -> Iterator[str]:
    """Yield the texts of queries, and the documents of pools, that dev and test share."""
    texts = (set[str](), set[str]())  # of test, of dev
    pooled = (set[str](), set[str]())
    for query in environment.queries:
        split = query.query_id in environment.splits["dev"]
        texts[split].add(query.text)
        pooled[split].update(query.candidates or ())
    for noun, (test, dev) in (("queries", texts), ("documents of pools", pooled)):
        if shared := test & dev:
            yield f"dev and test share {len(shared)} {noun}, e.g. {min(shared)[:60]!r}"


def _find_leaks(folder: Path, documents: Corpus) -> Iterator[str]:
    """Yield the places of a release that tell private texts.

    A text is known by 8 words in a row, or in full if it is shorter. A word, or 8, that a document
    says by itself is not private; a document whose own text has all of it is named.
    """
    private = folder / PRIVATE
    if not private.exists():
        return
    lines = [
        (f"{name}, line {number}", tokens(_ESCAPE.sub(" ", line)))
        for name in ("queries.jsonl", "provenance.jsonl", "README.md", custom.FILE)
        for number, line in raw_files.read_lines(folder / RELEASE / name)
    ]

    @cache
    def locations(width: int) -> dict[tuple[str, ...], str]:
        return {run: location for location, words in lines for run in ngrams(words, width)}

    leaks = {}
    for place, row in tables.read_objects(private):
        doc_id = tables.pick_column(place, row, "_id")
        document = documents.get(doc_id)
        public = f" {' '.join(tokens(indexed_text(document)))} " if document else ""
        for field, text in row["fields"].items():
            words = tokens(text)
            subject = f"private {field} of {doc_id!r}"
            if len(words) > 1 and f" {' '.join(words)} " in public:
                yield f"corpus.jsonl: {subject} is in its text"
            width = min(RUN, len(words))
            for run in ngrams(words, width):
                if location := locations(width).get(run):
                    leaks[run] = f"{location}: {subject} is in it"
    for document in documents.stream() if leaks else ():
        words = tokens(indexed_text(document))
        for run in chain(ngrams(words, 1), ngrams(words, RUN)):
            leaks.pop(run, None)
    # One run is enough for each location and text: the first.
    for problem, run in {problem: run for run, problem in reversed(leaks.items())}.items():
        yield f"{problem}: {' '.join(run)!r}"
