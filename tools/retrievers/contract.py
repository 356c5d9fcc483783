"""The duties of every retriever, as checks over a tiny corpus.

`sextant retrievers check SPEC` runs them. The docstring of a check is the duty, as it is
printed. A check yields whether the duty is met, and the deviation otherwise. Figures are not
checked.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from sextant.tools.corpus import Corpus
from sextant.tools.models.run_resources import RunResources
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.terminal import first_sentence
from sextant.tools.plugins import describe_exception
from sextant.tools.records import Document, Hits
from sextant.tools.retrievers import build, canonicalize
from sextant.tools.retrievers.base import Retriever, Search
from sextant.tools.retrievers.expressions import RetrieverSpec

# Builds the retriever over a corpus, with an index in a folder or without.
BuildOver = Callable[..., Retriever]
# (whether the duty is met, the deviation)
Verdicts = Iterator[tuple[bool, str]]

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
    """Yield each duty, and the deviation from it; "" if it is met."""

    def build_over(corpus: Corpus, home: Path | None = None) -> Retriever:
        retriever = build(spec, corpus, home, resources=RunResources())
        retriever.known = corpus  # so that its answers are checked, as those of a user's class
        return retriever

    retriever = build_over(CORPUS)
    for check in _CHECKS:
        try:
            verdicts = check(retriever, build_over)
            deviation = next((deviation for right, deviation in verdicts if not right), "")
        except Exception as error:  # noqa: BLE001  # of a user's class
            deviation = describe_exception(error)
        yield first_sentence(check.__doc__).removesuffix("."), deviation


def _finds(retriever: Retriever, build_over: BuildOver) -> Verdicts:
    """It finds different documents, the best first, with finite scores; a smaller k gives the
    beginning of the same.
    """
    for text in QUERIES:
        hits = retriever.search(text, 100)
        three = retriever.search(text, 3)
        yield three == hits[:3], f"search({text!r}, 3) gives {three}, and with k=100 {hits}"
    yield any(retriever.search(text, 1) for text in QUERIES), f"nothing is found for {QUERIES}"


def _narrows(retriever: Retriever, build_over: BuildOver) -> Verdicts:
    """Documents that are excluded, or not `among` those to look at, are left out before the
    cut to k.
    """
    for text in QUERIES:
        anywhere = retriever.search(text, 6).doc_ids
        searches = (
            Search(text, excluded=anywhere[:1]),
            Search(
                text,
                excluded={"d1", "unheard of"},
                among={"d1", "d3", "d5", "d6"},
            ),
            Search(text, among=()),
        )
        for search in searches:
            six = retriever.search_many([search], 6)[0].doc_ids
            two = retriever.search_many([search], 2)[0].doc_ids
            among = CORPUS if search.among is None else search.among
            expected = set(anywhere).intersection(among).difference(search.excluded)
            yield (
                expected <= set(six) and two == six[:2],
                f"{search} gives {six}, and with k=2 {two}; without limits it gives {anywhere}",
            )


def _finds_nothing(retriever: Retriever, build_over: BuildOver) -> Verdicts:
    """A blank text finds nothing, and k below 1 gives nothing."""
    for text, k in ((" \n\t", 6), ("blood", 0), ("blood", -1)):
        yield retriever.search(text, k) == [], f"search({text!r}, {k}) finds something"


def _takes_any_text(retriever: Retriever, build_over: BuildOver) -> Verdicts:
    """Odd characters are no error, in documents and in searches."""
    odd_texts = ("?!", "zyzzyva", "\x00", "ﬁ ℵ 血", "a" * 5000, "\udcff lone half")
    odd_documents = [Document(f"odd{n}", text) for n, text in enumerate(odd_texts)]
    odd_retriever = build_over(Corpus([*CORPUS.values(), *odd_documents]))
    for text in odd_texts:
        yield len(odd_retriever.search(text, 6)) <= 6, f"search({text!r}, 6) gives more"


def _repeats_itself(retriever: Retriever, build_over: BuildOver) -> Verdicts:
    """A search gives the same hits again, in a batch, in threads, and when the retriever is
    built again.
    """
    searches = [Search(text) for text in (*QUERIES, "")]
    searches.append(Search(QUERIES[0], excluded={"d1"}))
    searches.append(Search(QUERIES[0], among={"d1", "d2", "d5"}))

    def alone(search: Search) -> Hits:
        return retriever.search(
            search.text,
            5,
            excluded=search.excluded,
            among=search.among,
        )

    one_by_one = list(map(alone, searches))
    with ThreadPoolExecutor(4) as threads:
        results = {
            "again": list(map(alone, searches)),
            "in a batch": retriever.search_many(searches, 5),
            "in a batch in another order": retriever.search_many(searches[::-1], 5)[::-1],
            "in four threads": list(threads.map(alone, searches)),
            "when built again": build_over(CORPUS).search_many(searches, 5),
        }
    for manner, lists in results.items():
        yield (
            lists == one_by_one,
            f"{plural(len(searches), 'search', 'searches')} give {one_by_one} one by one, and {lists} {manner}",
        )


def _breaks_ties(retriever: Retriever, build_over: BuildOver) -> Verdicts:
    """Documents of equal text come in the order of their ids, unless `ties_by_id` is false."""
    hits = build_over(
        Corpus(
            [
                *[Document(doc_id, "the blood of an octopus is blue") for doc_id in "zbyac"],
                *CORPUS.values(),
            ]
        )
    ).search(QUERIES[0], 11)
    order = [doc_id for doc_id in hits.doc_ids if doc_id not in CORPUS]
    ties_by_id = all(part.ties_by_id for part in (retriever, *retriever.parts))
    yield (
        not ties_by_id or order == sorted(order),
        f"{', '.join(order)}; use Ranker.top, or sort by (-score, doc_id)",
    )


def _has_a_name(retriever: Retriever, build_over: BuildOver) -> Verdicts:
    """Its name is an expression of the same retriever."""
    rebuilt = build(canonicalize(retriever.name), CORPUS, resources=RunResources())
    same_hits = rebuilt.search(QUERIES[0], 5) == retriever.search(QUERIES[0], 5)
    difference = "" if same_hits else ", with other hits"
    yield (
        rebuilt.name == retriever.name and same_hits,
        f"{retriever.name} makes {rebuilt.name}{difference}",
    )


def _keeps_indexes(retriever: Retriever, build_over: BuildOver) -> Verdicts:
    """A kept index gives the hits of an index in memory, another corpus has its own, and none is
    needed.
    """
    # Each id has the text of the next.
    changed = Corpus(map(Document, CORPUS, [*TEXTS[1:], TEXTS[0]]))
    with TemporaryDirectory() as folder:
        # No folder can be made in a file.
        file = Path(folder, "file")
        file.touch()
        for corpus, home in ((CORPUS, folder), (CORPUS, folder), (changed, folder), (CORPUS, file)):
            fresh = build_over(corpus).search(QUERIES[0], 6)
            stored = build_over(corpus, Path(home)).search(QUERIES[0], 6)
            yield stored == fresh, f"{stored}, and in memory {fresh}"


_CHECKS = (
    _finds,
    _narrows,
    _finds_nothing,
    _takes_any_text,
    _repeats_itself,
    _breaks_ties,
    _has_a_name,
    _keeps_indexes,
)
