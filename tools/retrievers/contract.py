"""What holds for every retriever, as checks over a tiny corpus: `python -m tools.retrievers check
SPEC`.

A check's docstring says what has to hold; it yields whether it does, and what was found. Figures
are not checked.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.corpus import Corpus
from tools.models.run_resources import RunResources
from tools.plugins import show, user_code_line
from tools.records import Document, Hit
from tools.retrievers import build, canonicalize
from tools.retrievers.base import Retriever, Search
from tools.retrievers.expressions import RetrieverSpec

Over = Callable[
    ..., Retriever
]  # builds the retriever over a corpus, with an index in a folder or none
Found = Iterator[tuple[bool, str]]

TEXTS = (
    "The octopus has three hearts and blue blood.",
    "Copper in haemocyanin makes the blood of an octopus blue.",
    "Horseshoe crabs are bled for their blue blood.",
    "Iron in haemoglobin makes blood red.",
    "A giraffe has one heart of eleven kilograms.",
    "Why do octopuses have blue blood? A post in a forum.",
)
CORPUS = Corpus(Document(f"d{number}", text) for number, text in enumerate(TEXTS, start=1))
QUERIES = (
    "blue blood octopus",
    "heart",
    "why is the blood of an octopus blue blue blood",
    "blue heart of a giraffe",
)


def run(spec: RetrieverSpec) -> Iterator[tuple[str, str]]:
    """Yield what has to hold, and what was found in its place or "", check by check."""
    over = partial(build, spec, terms=RunResources())
    retriever = over(CORPUS)
    of_searches = _finds, _narrows, _finds_nothing, _takes_any_text, _repeats_itself, _breaks_ties
    for holds in (*of_searches, _has_a_name, _keeps_indexes):
        try:
            wrong = next(
                (deviation for right, deviation in holds(retriever, over) if not right), ""
            )
        except Exception as error:  # noqa: BLE001  # of a user's class
            wrong = f"{type(error).__name__}: {show(error)}{user_code_line(error)}"
        yield str(holds.__doc__).removesuffix("."), wrong


def _ids(hits: list[Hit]) -> list[str]:
    return [hit.doc_id for hit in hits]


def _finds(retriever: Retriever, over: Over) -> Found:
    """It finds different documents, the best first, with finite scores; a smaller k gives the
    beginning of the same.
    """
    for text in QUERIES:
        hits = retriever.search(text, 100)
        scores = [hit.score for hit in hits]
        right = len(CORPUS.keys() & set(_ids(hits))) == len(hits) and all(
            map(math.isfinite, scores)
        )
        yield (
            right and scores == sorted(scores, reverse=True),
            f"search({text!r}, 100) gives {hits}",
        )
        three = retriever.search(text, 3)
        yield three == hits[:3], f"search({text!r}, 3) gives {three}, and with k=100 {hits}"
    yield any(retriever.search(text, 1) for text in QUERIES), f"nothing is found for {QUERIES}"


def _narrows(retriever: Retriever, over: Over) -> Found:
    """Documents that are excluded, or not `among` those to look at, are left out before the
    cut to k.
    """
    for text in QUERIES:
        anywhere = _ids(retriever.search(text, 6))
        narrow = Search(text, excluded={"d1", "unheard of"}, among={"d1", "d3", "d5", "d6"})
        for search in (Search(text, excluded=anywhere[:1]), narrow, Search(text, among=())):
            allowed = set(CORPUS if search.among is None else search.among) - set(search.excluded)
            best_six, best_two = (_ids(retriever.search_many([search], k)[0]) for k in (6, 2))
            right = set(anywhere) & allowed <= set(best_six) <= allowed and best_two == best_six[:2]
            yield (
                right,
                f"{search} gives {best_six}, and with k=2 {best_two}; without limits it gives {anywhere}",
            )


def _finds_nothing(retriever: Retriever, over: Over) -> Found:
    """A blank text finds nothing, and k below 1 gives nothing."""
    for text, k in ((" \n\t", 6), ("blood", 0), ("blood", -1)):
        yield retriever.search(text, k) == [], f"search({text!r}, {k}) finds something"


def _takes_any_text(odd_retriever: Retriever, over: Over) -> Found:
    """Odd characters are no error, in documents and in searches."""
    odd = ("?!", "zyzzyva", "\x00", "ﬁ ℵ 血", "a" * 5000, "\udcff lone half")
    odd_retriever = over(
        Corpus([*CORPUS.values(), *(Document(f"odd{n}", text) for n, text in enumerate(odd))])
    )
    for text in odd:
        yield len(odd_retriever.search(text, 6)) <= 6, f"search({text!r}, 6) gives more"


def _repeats_itself(retriever: Retriever, over: Over) -> Found:
    """A search gives the same hits again, in a batch, in threads, and when the retriever is
    built again.
    """
    searches = [Search(text) for text in (*QUERIES, "")]
    searches += [Search(QUERIES[0], excluded={"d1"}), Search(QUERIES[0], among={"d1", "d2", "d5"})]

    def alone(search: Search) -> list[Hit]:
        return retriever.search(search.text, 5, excluded=search.excluded, among=search.among)

    one_by_one = list(map(alone, searches))
    with ThreadPoolExecutor(4) as threads:
        results = {
            "again": list(map(alone, searches)),
            "in a batch": retriever.search_many(searches, 5),
            "in a batch in another order": retriever.search_many(searches[::-1], 5)[::-1],
            "in four threads": list(threads.map(alone, searches)),
            "when built again": over(CORPUS).search_many(searches, 5),
        }
    for manner, lists in results.items():
        yield (
            lists == one_by_one,
            f"{len(searches)} searches give {one_by_one} one by one, and {lists} {manner}",
        )


def _breaks_ties(retriever: Retriever, over: Over) -> Found:
    """Documents of equal text come in the order of their ids, unless `ties_by_id` is false."""
    equal_documents = [
        Document(doc_id, "the blood of an octopus is blue") for doc_id in ("z", "b", "y", "a", "c")
    ]
    doc_ids = _ids(over(Corpus([*equal_documents, *CORPUS.values()])).search(QUERIES[0], 11))
    order = [doc_id for doc_id in doc_ids if doc_id not in CORPUS]
    has_other_ties = not all(part.ties_by_id for part in (retriever, *retriever.parts))
    yield (
        has_other_ties or order == sorted(order),
        f"{', '.join(order)}; use Ranker.top, or sort by (-score, doc_id)",
    )


def _has_a_name(retriever: Retriever, over: Over) -> Found:
    """Its name is an expression of the same retriever."""
    rebuilt = build(canonicalize(retriever.name), CORPUS, terms=RunResources())
    same_hits = rebuilt.search(QUERIES[0], 5) == retriever.search(QUERIES[0], 5)
    yield (
        rebuilt.name == retriever.name and same_hits,
        f"{retriever.name} makes {rebuilt.name}" + ", with other hits" * (not same_hits),
    )


def _keeps_indexes(retriever: Retriever, over: Over) -> Found:
    """A kept index gives the hits of one in memory, another corpus has its own, and none is
    needed.
    """
    changed = Corpus(
        map(Document, CORPUS, [*TEXTS[1:], TEXTS[0]])
    )  # each id has the text of the next
    with TemporaryDirectory() as folder:
        (file := Path(folder, "file")).touch()  # where no folder can be made
        for corpus, home in ((CORPUS, folder), (CORPUS, folder), (changed, folder), (CORPUS, file)):
            fresh = over(corpus).search(QUERIES[0], 6)
            stored = over(corpus, Path(home)).search(QUERIES[0], 6)
            yield stored == fresh, f"{stored}, and in memory {fresh}"
