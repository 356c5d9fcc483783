"""OBLIQ-Bench: queries whose relevance is latent and verifiable, but hard to surface.

Five tasks over five corpora (section 4 of the paper, appendix D). The release has no dev split, and
the paper reports all queries (`--split all`). Ours is 20 % of them by hash, a third of a
miniature's. Three tasks have pooled judgements in addition to gold judgements; both are scored in every run.
In WildChat half of the documents repeat the text of another. They are judged by id; a third set of
figures counts equal texts as one document.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from sextant.environments.base import (
    POOLED,
    DevSplit,
    Environment,
    Judgements,
    LoadRequest,
    Release,
    Suite,
    TaskInfo,
)
from sextant.environments.readers.collections import read_id_lists, read_port, read_qrels
from sextant.environments.readers.corpora import Collection
from sextant.environments.readers.files import find_file
from sextant.tools.errors import DataError, NotApplicable
from sextant.tools.records import Query

RELEASE = Release(
    kind="hub",
    repository="dianetc/OBLIQ-Bench",
    revision="4ebee29f68ceeb62ca00bd73d5478acdd3cd7764",
    licence="CC BY 4.0",
    paper="OBLIQ-Bench: Exposing Overlooked Bottlenecks in Modern Retrievers with Latent and "
    "Implicit Queries",
)
SEED = "sextant-obliq-1"
DEV = DevSplit(SEED, 0.2)
DEV_MINI = DevSplit(SEED, 1 / 3)
METRICS = ("nDCG@10", "nDCG@50", "R@10", "R@50", "R@100", "R@1000", "RR@10")
GOLD = "gold"
MERGED = "gold, equal texts merged"


class Task(NamedTuple):
    """A row of the benchmark: everything in which its tasks differ."""

    folder: str  # inside the release
    counts: tuple[int, int]  # documents and queries, in the paper's Table 1
    objective: str  # what counts as a find, in our words; shown to models
    hints: dict[
        str, str
    ]  # what makes a document relevant, by the name of its lens, and what a document is, in words
    pooled: bool = False  # judgements of pooled results are released
    masked: bool = False  # so are documents that must not be shown, query by query
    duplicates: bool = False  # so many documents repeat a text that it deserves figures of its own


TASKS = {
    "twitter": Task(
        folder="descriptive/twitter",
        counts=(72_122, 281),
        objective=(
            "The collection holds short public posts about one conflict. The query names a "
            "stance. Posts are wanted "
            "that hold this stance without saying so: by irony, hedging, framing, a rhetorical "
            "question, or by what "
            "they choose to mention. A post that states the stance outright, or only reports "
            "news, is no find."
        ),
        hints={"lens": "stance", "document": "a short public post"},
        pooled=True,
    ),
    "wildchat": Task(
        folder="descriptive/wildchat",
        counts=(507_729, 40),
        objective=(
            "The collection holds conversations between people and an AI assistant. The query "
            "describes a way in which "
            "an assistant can fail. Conversations are wanted in which that failure happens, "
            "whether or not anybody in "
            "them notices; what they are about does not matter."
        ),
        hints={
            "lens": "failure",
            "document": "a conversation between a person and an AI assistant",
        },
        pooled=True,
        duplicates=True,
    ),
    "math": Task(
        folder="analogues/math",
        counts=(3_508, 151),
        objective=(
            "The collection holds statements of mathematical problems. The query is one such "
            "problem. Wanted are the "
            "problems that are solved by the same idea of proof, whatever field they come from "
            "and whatever they are "
            "about; problems that only look alike are no finds."
        ),
        hints={"lens": "proof", "document": "the statement of a mathematical problem"},
        pooled=True,
        masked=True,
    ),
    "writing": Task(
        folder="analogues/writing",
        counts=(10_389, 512),
        objective=(
            "The collection holds passages of prose by many authors. The query is one such "
            "passage. Wanted are other "
            "passages by the same author, recognised by the way of writing, whatever they are "
            "about."
        ),
        hints={"lens": "authorship", "document": "a passage of prose"},
        masked=True,
    ),
    "congress": Task(
        folder="tip-of-tongue/congress",
        counts=(213_650, 254),
        objective=(
            "The collection holds turns of speech from committee hearings, as transcribed. "
            "Somebody remembers "
            "one moment of one hearing, imperfectly and without names, and a detail or two may be "
            "wrong. "
            "The one passage in which that moment happens is wanted."
        ),
        hints={
            "lens": "recollection",
            "document": "a turn of speech from the transcript of a committee hearing",
        },
    ),
}


def load(request: LoadRequest) -> Environment:
    """Load a task from the release, the task's own folder in it, or a copy in BEIR's or TREC's
    form.
    """
    task = TASKS[request.name]
    folder = request.place([task.folder], [suite_task.folder for suite_task in TASKS.values()])
    is_release = (folder / "queries+qrels").exists()
    files = (_read_release if is_release else read_port)(folder, request.home)
    if task.masked and not files.excluded:
        raise DataError(
            f"{folder} has no queries+qrels/per_query_excluded_ids.json, and obliq/{request.name} "
            f"is not to be searched without it: results would show documents that the benchmark "
            f"masks"
        )
    judgements = {GOLD: Judgements(files.qrels)}
    if files.pooled is not None:
        judgements[POOLED] = Judgements(files.pooled)
    if task.duplicates:
        repeats = cache(
            files.documents.repeats
        )  # goes through the corpus once, when it is first needed
        judgements[MERGED] = Judgements(
            files.qrels,
            unit_of=lambda doc_id: repeats().get(doc_id, doc_id),
            judged_by_unit=False,
        )
    if request.qrels and request.qrels not in judgements:
        raise NotApplicable(
            f"obliq/{request.name} in {folder} has no {request.qrels} judgements; leave out --qrels"
        )
    return request.make(
        RELEASE,
        split="all",
        documents=files.documents,
        queries=tuple(
            Query(
                query_id,
                text,
                request.objective(task.objective),
                files.excluded.get(query_id, frozenset()),
            )
            for query_id, text in files.queries.items()
        ),
        judgements=judgements,
        headline=request.qrels or GOLD,
        metrics=METRICS,
        hints=task.hints,
        notes=("there are no pooled judgements in this copy",)
        * (task.pooled and files.pooled is None),
    ).narrow(DEV_MINI if request.data == "mini" else DEV, request.split)


def _read_release(folder: Path, home: Path) -> Collection:
    """Read the task in `folder`, as it is released: corpus/corpus.jsonl and queries+qrels/queries.jsonl
    with rows {"_id", "text"}, queries+qrels/qrels.tsv with a header line, and, of some tasks,
    qrels_pool.tsv and per_query_excluded_ids.json in the same folder.
    """
    inside = folder / "queries+qrels"
    files = {
        "documents": [_require(folder / "corpus" / "corpus.jsonl")],
        "queries": [_require(inside / "queries.jsonl")],
        "judgements": [_require(inside / "qrels.tsv")],
    }
    read = read_port(folder, home, files=files)
    if read.unjudged:
        raise DataError(f"{inside} has no judgement of query {min(read.unjudged)!r}")
    pool = find_file(inside / "qrels_pool.tsv")
    masks = find_file(inside / "per_query_excluded_ids.json")
    # `validate_environment` sees the headline judgements alone, so `read_qrels` checks pooled ones.
    pooled = read_qrels(pool, read.queries, read.documents) if pool else None
    excluded = {}
    if masks:
        excluded = read_id_lists(masks, read.queries, "a search would show what it must not")
    if strangers := excluded.keys() - read.queries.keys():
        raise DataError(f"{masks} has an entry for {min(strangers)!r}, which is no query")
    return read._replace(pooled=pooled, excluded=excluded)


def _require(path: Path) -> Path:
    if file := find_file(path):
        return file
    raise DataError(f"{path} is missing (nor is there a {path.name}.gz)")


def _facts(task: Task) -> TaskInfo:
    documents, queries = task.counts
    inside = f"{task.folder}/queries+qrels"
    files = [f"{task.folder}/corpus/corpus.jsonl", f"{inside}/queries.jsonl", f"{inside}/qrels.tsv"]
    protocol = "All documents are ranked; gain is the grade, linear."
    if task.pooled:
        files.append(f"{inside}/qrels_pool.tsv")
        protocol += " Gold and pooled judgements are both scored (G/P)."
    if task.masked:
        files.append(f"{inside}/per_query_excluded_ids.json")
        protocol += " The listed documents are left out of each query's results before the cut."
    if task.duplicates:
        protocol += (
            " Documents are judged by id; a figure with equal texts merged stands beside it."
        )
    return TaskInfo(
        task.objective,
        "nDCG@10",
        protocol,
        f"{DEV}; a third in the miniature",
        {"": documents},
        queries,
        tuple(files),
    )


FACTS = {name: _facts(task) for name, task in TASKS.items()}
SUITE = Suite(RELEASE, FACTS, load, judgements=(GOLD, POOLED))
