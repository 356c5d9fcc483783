"""A finished benchmark as a folder that every command takes as a task, and its dev split, masks and
checks.

    FOLDER/release/
      corpus.jsonl, queries.jsonl     BEIR's rows, {"_id", "title", "text"} and {"_id", "text"}
      qrels/test.tsv, qrels/dev.tsv   the first judgements, with grades of 0; others are in <name>.tsv
      excluded.json, pools.json, comparisons.tsv, twins.json   where the benchmark has such: environments/custom.py
      provenance.jsonl, benchmark.toml, README.md
    FOLDER/solutions.jsonl            private texts, which `tournament -P solutions=FILE` reads

Nothing here asks a model, and equal benchmarks give equal bytes.
"""

import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import environments
from environments import base, custom, task_card
from environments.base import Comparison, DevSplit, EmptySplit, Environment, Qrels
from environments.readers import files as tables
from environments.readers import raw_files
from evals.build import human_review
from evals.build.types import Benchmark
from evals.formats.hub import front_matter
from tools import files as disk
from tools import schemas
from tools.corpus import Corpus, indexed_text
from tools.errors import DataError
from tools.records import Query
from tools.text import ngrams, tokens

RELEASE = "release"
PRIVATE = "solutions.jsonl"
RUN = 8  # words in a row by which a private text is known; what is shorter is looked for whole
_TAGS = ("information-retrieval", "benchmark", "sextant")


def mask_own_document(
    queries: Iterable[Query], group: Mapping[str, str], twins: Mapping[str, str]
) -> Iterator[Query]:
    """Yield queries that are documents, by their ids, with what they must not see: themselves, their group, their text.

    `group` and `twins` are as of a Source.
    """
    same = _gather(group)
    copies = _gather(twins)
    for query in queries:
        first = twins.get(query.query_id, query.query_id)
        hidden = {query.query_id, first} | same[group.get(query.query_id)] | copies[first]
        yield replace(query, excluded=query.excluded | hidden)


def _gather(
    table: Mapping[str, str],
) -> defaultdict[str | None, set[str]]:  # value -> the keys that have it
    keys = defaultdict[str | None, set[str]](set)
    for key, value in table.items():
        keys[value].add(key)
    return keys


def copy_labels_to_duplicates(qrels: Qrels, twins: Mapping[str, str]) -> Qrels:
    """Return the judgements, where one of a text holds for every document with it; of several, the highest."""
    copies = _gather(twins)
    spread = dict[str, dict[str, float]]()
    for query_id, grades in qrels.items():
        of = dict[str, float]()  # the first document with a text -> its grade
        for doc_id, grade in grades.items():
            first = twins.get(doc_id, doc_id)
            of[first] = max(grade, of.get(first, grade))
        spread[query_id] = {
            one: grade for first, grade in of.items() for one in [first, *sorted(copies[first])]
        }
    return spread


def judge_within_pools(benchmark: Benchmark) -> Benchmark:
    """Return the benchmark without judgements of documents that a query does not rank, as those of equal texts.

    A judgement of what is no document stays: it is of the parent of passages.
    """
    outside = dict[str, frozenset[str]]()
    for query in benchmark.queries:
        if query.candidates is not None:
            judged = {
                doc_id
                for qrels in benchmark.judgements.values()
                for doc_id in qrels.get(query.query_id, ())
            }
            strangers = judged - query.candidates
            outside[query.query_id] = frozenset(
                stranger for stranger in strangers if stranger in benchmark.documents
            )
    judgements = dict[str, Qrels]()
    for name, qrels in benchmark.judgements.items():
        judgements[name] = {
            query_id: {
                doc_id: grade
                for doc_id, grade in row.items()
                if doc_id not in outside.get(query_id, ())
            }
            for query_id, row in qrels.items()
        }
    return benchmark._replace(judgements=judgements)


def split_dev(
    benchmark: Benchmark, share: float, group: Mapping[str, str] = {}, *, disjoint: bool = False
) -> Benchmark:
    """Return the benchmark with a share of its queries for dev, by hash; queries of one `group` stay together.

    `disjoint`: what is in a test query's pool leaves the pools of dev queries, and those without a relevant document
    then are dropped (BIRCO). Of too few queries none is for dev.
    """
    names = {
        query.query_id: group.get(query.query_id, query.query_id) for query in benchmark.queries
    }
    chosen = list[str]()
    with suppress(EmptySplit):
        chosen = DevSplit(custom.SEED, share).choose(sorted({*names.values()}), "dev")
    ours = {query_id for query_id, name in names.items() if name in {*chosen}}
    if disjoint:
        taken = (
            query.candidates or () for query in benchmark.queries if query.query_id not in ours
        )
        benchmark = drop_documents(
            benchmark, dict.fromkeys(ours, frozenset(chain.from_iterable(taken)))
        )
        left = [
            one
            for one in benchmark.queries
            if one.query_id not in ours or _best(benchmark, one) > 0
        ]
        benchmark = benchmark._replace(queries=left)
    return benchmark._replace(dev=sorted(ours & {one.query_id for one in benchmark.queries}))


def find_dev(task: str, data: str | None) -> frozenset[str]:
    """Return the queries that a task has for dev; none where it has too few."""
    with suppress(EmptySplit):
        return frozenset(query.query_id for query in environments.load(task, data, "dev").queries)
    return frozenset()


def _best(benchmark: Benchmark, query: Query) -> float:
    return max(
        next(iter(benchmark.judgements.values())).get(query.query_id, {}).values(), default=0.0
    )


def drop_documents(benchmark: Benchmark, out: Mapping[str, frozenset[str]]) -> Benchmark:
    """Return the benchmark without the documents that are `out` for a query, wherever they are named for it."""
    out = {query.query_id: out.get(query.query_id, frozenset()) for query in benchmark.queries}
    queries = [
        replace(one, candidates=one.candidates and one.candidates - out[one.query_id])
        for one in benchmark.queries
    ]
    judgements = dict[str, Qrels]()
    comparisons = dict[str, Sequence[Comparison]]()
    for name, qrels in benchmark.judgements.items():
        judgements[name] = {
            one: {key: of[key] for key in of if key not in out.get(one, ())}
            for one, of in qrels.items()
        }
    for one, pairs in benchmark.comparisons.items():
        gone = out.get(one, frozenset())
        comparisons[one] = [pair for pair in pairs if not {pair.better, pair.worse} & gone]
    return benchmark._replace(queries=queries, judgements=judgements, comparisons=comparisons)


def write_release(benchmark: Benchmark, folder: Path, made: Mapping[str, Any]) -> None:
    """Write FOLDER/release in one step: a reader, or a kill, finds the one before, none, or the new one.

    `made` says how it came about: recipe, digest, models, licence (as the Hub has it), source; of the card alone:
    funnel (rows of stage, went_in, came_out, dropped). DataError for a benchmark that could not be read again.
    """
    benchmark = drop_documents(
        benchmark, {query.query_id: query.excluded for query in benchmark.queries}
    )
    if all(query.query_id in benchmark.dev for query in benchmark.queries):
        raise DataError("no test query is left; the funnel says where they were dropped")
    if lost := [query.query_id for query in benchmark.queries if _best(benchmark, query) <= 0]:
        raise DataError(
            f"query {lost[0]!r} has no relevant document that it may see; its stage has to drop it"
        )
    place = folder / RELEASE
    hidden = benchmark.private.items()
    folder.mkdir(parents=True, exist_ok=True)
    with disk.replacing(folder / PRIVATE) as file:
        for one, of in hidden:
            file.write(
                disk.dumps({"_id": one, "solution": "\n\n".join(of.values()), "fields": dict(of)})
                + "\n"
            )
    if not hidden:
        (folder / PRIVATE).unlink()
    texts = (
        {"_id": one.doc_id, "title": one.title, "text": one.text}
        for one in benchmark.documents.stream()
    )
    with (
        disk.temporary_sibling(place, disk.SHARED, folder=True) as draft,
        disk.temporary_sibling(place, disk.SHARED, folder=True) as old,
    ):
        _write(draft / "corpus.jsonl", map(disk.dumps, texts))
        asked = ({"_id": one.query_id, "text": one.text} for one in benchmark.queries)
        _write(draft / "queries.jsonl", map(disk.dumps, asked))
        settings = {
            **benchmark.settings,
            **_write_judgements(benchmark, draft),
            **_write_protocol(benchmark, draft),
        }
        _write(draft / "provenance.jsonl", map(disk.dumps, benchmark.provenance))
        made = {"human": human_review.describe(folder), **made, "counts": _count(benchmark)}
        _write(draft / custom.FILE, [*_toml_lines(settings), "", "[made]", *_toml_lines(made)])
        custom.check_settings(
            tomllib.loads((draft / custom.FILE).read_text(encoding="utf-8")), custom.FILE
        )
        _write(draft / "README.md", _card_lines(settings, made, bool(benchmark.dev)))
        with suppress(FileNotFoundError):
            place.rename(old)
        draft.rename(place)


def _count(benchmark: Benchmark) -> dict[str, float]:
    counts = {
        "documents": len(benchmark.documents),
        "queries": len(benchmark.queries),
        "for dev": len(benchmark.dev),
    }
    for name, qrels in benchmark.judgements.items():
        grades = [
            grade for query in benchmark.queries for grade in qrels.get(query.query_id, {}).values()
        ]
        counts |= {
            f"{name} judgements": len(grades),
            f"{name} judgements above 0": sum(one > 0 for one in grades),
        }
    return {**counts, **benchmark.counts}


def _write(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", errors="replace", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def _write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    rows = [header, *rows]
    if torn := next((cell for row in rows for cell in row if "\t" in cell), None):
        raise DataError(
            f"the id {torn!r} has a tab in it, which no table of judgements can hold; give it "
            f"another"
        )
    _write(path, map("\t".join, rows))


def _write_judgements(benchmark: Benchmark, draft: Path) -> dict[str, Any]:
    """Write every set of judgements, and return what benchmark.toml says of them."""

    def write(file: str, qrels: Qrels, query_ids: Iterable[str]) -> None:
        rows = (
            (query_id, *judged)
            for query_id in query_ids
            for judged in qrels.get(query_id, {}).items()
        )
        cells = (
            (one, doc_id, f"{int(grade) if grade == int(grade) else grade}")
            for one, doc_id, grade in rows
        )
        _write_table(draft / file, ("query-id", "corpus-id", "score"), cells)

    [(leading, gold), *others] = benchmark.judgements.items()
    every = [query.query_id for query in benchmark.queries]
    for part in ("test", "dev") if {*benchmark.dev} & {*every} else ("test",):
        write(
            f"qrels/{part}.tsv",
            gold,
            (one for one in every if (one in benchmark.dev) == (part == "dev")),
        )
    for name, qrels in others:
        write(f"{name}.tsv", qrels, every)
    return {"judgements": {leading: "qrels", **{name: f"{name}.tsv" for name, _ in others}}}


def _write_protocol(benchmark: Benchmark, draft: Path) -> dict[str, str]:
    """Write what queries must not see, their pools, comparisons and twins; return the keys of benchmark.toml."""
    files = dict[str, str]()
    known = {query.query_id: query for query in benchmark.queries}
    objects: dict[str, dict[str, Any]] = {
        "excluded": {one: sorted(query.excluded) for one, query in known.items()},
        "pools": {one: sorted(query.candidates or ()) for one, query in known.items()},
        "twins": {
            one: twin for one, twin in benchmark.twins.items() if {one, twin} <= known.keys()
        },
    }
    for key, of in objects.items():
        if any(of.values()):
            rows = ",\n".join(f"{disk.dumps(one)}:{disk.dumps(value)}" for one, value in of.items())
            files[key] = f"{key}.json"
            _write(draft / files[key], ["{", rows, "}"])
    if benchmark.comparisons:
        pairs = (
            (query_id, *one)
            for query_id in known
            for one in benchmark.comparisons.get(query_id, ())
        )
        files["comparisons"] = "comparisons.tsv"
        _write_table(draft / files["comparisons"], ("query-id", "label", "better", "worse"), pairs)
    return files


def _toml_lines(table: Mapping[str, Any]) -> list[str]:
    return [
        f"{key} = {schemas.to_toml(value)}"
        for key, value in table.items()
        if key != "funnel" and value is not None
    ]


def _card_lines(
    settings: Mapping[str, Any], made: Mapping[str, Any], has_dev: bool
) -> Iterator[str]:
    files = {"corpus": {"corpus": "corpus.jsonl"}, "queries": {"queries": "queries.jsonl"}}
    files["default"] = {
        part: f"qrels/{part}.tsv" for part in (("test", "dev") if has_dev else ("test",))
    }
    name = settings.get("name", "A benchmark")
    table = "\n| stage | in | out | left out |\n|---|---|---|---|"
    yield front_matter(name, _TAGS, files, made.get("licence") or "unknown")
    yield f"{made['human']}\n\n# {name}\n\n{settings.get('objective', '')}\n\n## What was left out\n{table}"
    for row in made.get("funnel", ()):
        why = ", ".join(f"{reason} {many:,}" for reason, many in row["dropped"].items())
        yield f"| {row['stage']} | {row['went_in']:,} | {row['came_out']:,} | {why} |"
    yield "\n## How it was made\n"
    yield from (f"    {line}" for line in _toml_lines({**made, "human": None}))


def check_release(
    folder: Path, hooks: Sequence[Callable[[Environment], Iterable[str]]] = ()
) -> list[str]:
    """Return what is wrong with FOLDER/release of what must hold of any benchmark; `hooks` see all its queries."""
    release = (folder / RELEASE).resolve()
    problems = [
        f"{finding.what}: {finding.said}"
        for finding in task_card.run_checks(str(release))
        if not finding.fine
    ]
    if problems and problems[0].startswith("loading"):
        return problems
    whole = environments.load(str(release), split="all")
    try:
        base.validate_environment(whole)
    except DataError as error:
        problems.append(str(error))
    if lost := sum(1 for _ in tables.read_objects(release / "queries.jsonl")) - len(whole.queries):
        problems.append(f"{lost} queries have no judgement")
    for name, judgements in whole.judgements.items():
        known = (
            {judgements.unit_of(document) for document in whole.documents}
            if judgements.unit_of
            else whole.documents
        )
        if lost_ids := {
            grade for grades in judgements.qrels.values() for grade in grades if grade not in known
        }:
            problems.append(
                f"{name} judgements: {len(lost_ids)} documents are not there, e.g. "
                f"{min(lost_ids)!r}"
            )
    dev, test = (
        [query for query in whole.queries if (query.query_id in whole.splits["dev"]) == of]
        for of in (True, False)
    )
    texts = {one.text for one in dev} & {one.text for one in test}
    pooled = {doc_id for one in dev for doc_id in one.candidates or ()}
    pooled &= {doc_id for one in test for doc_id in one.candidates or ()}
    for what, shared in (("queries", texts), ("documents of pools", pooled)):
        if shared:
            problems.append(f"dev and test share {len(shared)} {what}, e.g. {min(shared)[:60]!r}")
    problems += [problem for hook in hooks for problem in hook(whole)]
    return [*problems, *_find_leaks(folder, whole.documents)]


def _find_leaks(folder: Path, documents: Corpus) -> Iterator[str]:
    """Yield where a release says what is private.

    A text is known by 8 words in a row, or whole where it is shorter. One word, or 8, that a document says by itself is
    not private; a document whose own text has all of it is told.
    """
    if not (private := folder / PRIVATE).exists():
        return
    names = ("queries.jsonl", "provenance.jsonl", "README.md", custom.FILE)
    texts = [
        (where, tokens(text))
        for name in names
        for where, text in _read_texts(folder / RELEASE / name)
    ]

    @cache
    def said(width: int) -> dict[tuple[str, ...], str]:
        return {run: where for where, words in texts for run in ngrams(words, width)}

    found = dict[tuple[str, ...], tuple[str, str]]()
    for _, row in tables.read_objects(private, "_id"):
        document = documents.get(row["_id"])
        public = f" {' '.join(tokens(indexed_text(document)))} " if document else ""
        for field, text in row["fields"].items():
            words = tokens(text)
            what = f"private {field} of {row['_id']!r}"
            if len(words) > 1 and f" {' '.join(words)} " in public:
                yield f"corpus.jsonl: {what} is in its text"
            runs = ngrams(words, width := min(RUN, len(words)))
            found.update((run, (said(width)[run], what)) for run in runs if run in said(width))
    for document in documents.stream() if found else ():
        words = tokens(indexed_text(document))
        for run in chain(ngrams(words, 1), ngrams(words, RUN)):
            found.pop(run, None)
    once = {place: run for run, place in reversed(found.items())}
    yield from (
        f"{where}: {what} is in it: {' '.join(run)!r}" for (where, what), run in once.items()
    )


def _read_texts(path: Path) -> Iterator[tuple[str, str]]:
    if path.suffix == ".jsonl":
        return ((where, _join(row)) for where, row in tables.read_objects(path))
    return ((f"{path}, line {line}", text) for line, text in raw_files.read_lines(path))


def _join(value: Any) -> str:
    if isinstance(value, dict | list):
        return " ".join(map(_join, value.values() if isinstance(value, dict) else value))
    return str(value)
