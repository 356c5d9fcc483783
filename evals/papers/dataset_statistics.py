"""Statistics of a task's data, as the tables and figures of the four papers have them. No model is
asked.

Left out are hard negatives of BIRCO's clinical trials (Table 6): the release does not say which
trials are for the same disease. Figures that a model measures are in evals/papers/measured.py.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from statistics import fmean

from sextant import environments
from sextant.environments.base import Environment
from sextant.environments.chunking import bert_tokens, chunks
from sextant.tools.records import Query
from sextant.tools.text import content_words

Value = float | str | None
# Its ids name the debate: <split>-<topic>-<debate>-<side and number>.
ARGUANA = "birco/arguana"


def pool_size(environment: Environment) -> float:
    """Return the mean number of documents that are ranked for a query: its pool, or the
    corpus without exclusions.
    """
    size = len(environment.documents)
    return fmean(
        size - len(query.excluded) if query.candidates is None else len(query.candidates)
        for query in environment.queries
    )


def lexical_overlap(environment: Environment) -> float | None:
    """Return the mean share of a query's distinct words, without stop words, that are in a relevant
    document, too.

    BIRCO's Table 1 counts overlapping words, and names no denominator: BEIR's 0.384, for queries
    of ten words and documents of 125, can only be over the query's.
    """
    shares = []
    for query in environment.queries:
        shares += word_overlaps(
            environment,
            query,
            relevant_documents(environment, query),
        )
    # There are none if the judgements are of units that are not documents.
    return fmean(shares) if shares else None


def word_overlaps(environment: Environment, query: Query, doc_ids: Iterable[str]) -> list[float]:
    """Return the share of a query's distinct words that each document has; [] without words."""
    query_words = set(content_words(query.text))
    if not query_words:
        return []
    shares = []
    for doc_id in doc_ids:
        common = query_words.intersection(content_words(environment.documents[doc_id].text))
        shares.append(len(common) / len(query_words))
    return shares


def relevant_documents(environment: Environment, query: Query) -> list[str]:
    """Return the relevant documents by the headline judgements' grades."""
    judged = environment.judgements[environment.headline]._replace(binary=None)
    return [doc_id for doc_id in judged.relevant(query.query_id) if doc_id in environment.documents]


def triplets(environment: Environment) -> float:
    """Return how many pairs of documents are compared over all queries of the dev split
    (BIRCO's appendix D).
    """
    dev = environments.load(environment.task, environment.data, "dev")
    return sum(map(len, dev.comparisons.values()))


def hard_negative_share(environment: Environment) -> float | None:
    """Return the share of pooled documents that are hard negatives; None if the data does not tell
    them.
    """
    if environment.task != ARGUANA:
        return None
    hard = sum(len(hard_negatives(environment, query)) for query in environment.queries)
    return hard / sum(len(query.candidates or ()) for query in environment.queries)


def passages_cut_alike(environment: Environment) -> float | None:
    """Return the share of the release's passages of its first 1,000 documents that
    environments/chunking.py makes, too.

    None for a task whose documents were never cut. CRUMB's Figure 2 shows how they are.
    """
    whole = environments.load(
        f"{environment.task}:document",
        environment.data,
        environment.split,
    )
    # Documents have one name in both variants of a release, and two of ours.
    corpus = (whole.released or whole).documents
    passages = (environment.released or environment).documents
    count = bert_tokens()
    cut = set[tuple[str, str]]()
    for document in islice(corpus.stream(), 1000):
        cut.update((document.doc_id, text) for text in chunks(document.text, count))
    parents = {parent for parent, _ in cut}
    released = {
        (passage.parent, passage.text) for passage in passages.stream() if passage.parent in parents
    }
    return len(released & cut) / len(released) if released else None


# What a table of statistics may ask for by name. To add one, write it above and name it here.
STATISTICS: Mapping[str, Callable[[Environment], Value]] = {
    "queries": lambda environment: len(environment.queries),
    "documents": lambda environment: len(environment.documents),
    "query characters": lambda environment: fmean(len(query.text) for query in environment.queries),
    "document characters": lambda environment: fmean(map(len, environment.documents.texts())),
    # As white space parts them.
    "query words": lambda environment: fmean(
        len(query.text.split()) for query in environment.queries
    ),
    "document words": lambda environment: fmean(
        len(text.split()) for text in environment.documents.texts()
    ),
    "pool size": pool_size,
    "lexical overlap": lexical_overlap,
    "triplets": triplets,
    "hard negatives": hard_negative_share,
    "instruction": lambda environment: Counter(
        query.objective for query in environment.queries
    ).most_common(1)[0][0],
    "passages cut alike": passages_cut_alike,
}


def compute_statistic(environment: Environment, name: str) -> Value:
    """Return a statistic: of STATISTICS, or relevant(JUDGEMENTS), or relevant(JUDGEMENTS,binary).

    JUDGEMENTS is a name of the task's judgements ("gold"); the value is the mean number of
    relevant documents. `binary` takes the labels that are released for recall; None if
    there are none.
    """
    if name in STATISTICS:
        return STATISTICS[name](environment)
    judged_by, _, binary = name.removeprefix("relevant(").removesuffix(")").partition(",")
    judgements = environment.judgements.get(judged_by)
    qrels = judgements and (judgements.binary if binary else judgements.qrels)
    if not judgements or not qrels:
        return None
    return fmean(sum(map(judgements.is_relevant, row.values())) for row in qrels.values())


def hard_negatives(environment: Environment, query: Query) -> set[str]:
    """Return the query's pooled documents that are not relevant but of the same debate as a
    relevant document (ArguAna).
    """
    return negatives_in_same_group(
        query.candidates or (),
        relevant_documents(environment, query),
        lambda doc_id: environment.release_ids.get(doc_id, doc_id).rpartition("-")[0],
    )


def negatives_in_same_group(
    pool: Iterable[str], right: Iterable[str], group_of: Callable[[str], str]
) -> set[str]:
    """Return the documents of a pool that are not `right`, and of a group with a right document;
    "" is no group.
    """
    groups = set(map(group_of, right)) - {""}
    return {doc_id for doc_id in pool if group_of(doc_id) in groups}.difference(right)


def reciprocal_ranks(
    environment: Environment, rankings: Mapping[str, Sequence[str]]
) -> tuple[float, float]:
    """Return the mean reciprocal ranks of (hard negatives, other documents that are not relevant),
    BIRCO's Table 6.

    Relevant documents are in neither: the shares and means that the paper prints add up to the mean of
    1/1 to 1/50 so.
    """
    hard = list[float]()
    unrelated = list[float]()
    for query in environment.queries:
        tempting = hard_negatives(environment, query)
        right = set(relevant_documents(environment, query))
        for rank, doc_id in enumerate(rankings[query.query_id], start=1):
            if doc_id not in right:
                (hard if doc_id in tempting else unrelated).append(1 / rank)
    return fmean(hard or [0.0]), fmean(unrelated or [0.0])


def word_shares(environment: Environment) -> dict[str, float]:
    """Return the share of each word, without stop words, in all words of a task's queries and
    documents.
    """
    texts = chain(
        (query.text for query in environment.queries),
        environment.documents.texts(),
    )
    counts = Counter(chain.from_iterable(map(content_words, texts)))
    every = counts.total()
    return {word: count / every for word, count in counts.items()}
