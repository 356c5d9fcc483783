"""Finds, in the pieces of a compiled prompt, text of the documents that are wanted and of the
queries that are judged.

A demo may quote its source, and a model that writes instructions copies from the
examples it was shown. A prompt with such text scores well on the queries that it quotes and says
nothing of others. Flagged is, for each piece and passage, the longest run of words (lower case,
without punctuation) that they have in common, if it is longer than `BOUND`. Queries that are compiled on
(train, validation) and test queries are told apart: a demo of a train query
has that query's text in it, which is no fault. Paraphrased text and ids of documents are not found.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal, NamedTuple

from sextant.environments.base import Environment
from sextant.optimizers.trainset.demonstrations import relevant_documents, texts_in
from sextant.programs.compiled import Compiled
from sextant.tools.corpus import indexed_text
from sextant.tools.records import JsonMapping, JsonObject, Query
from sextant.tools.text import index_ngrams, longest_shared_ngrams, tokens

# Longest run, in words, that counts as chance. Instructions of our programs share at most 6 words
# with any of 28,315 passages of hearings, and queries and wanted passages of dev there fewer than 8
# with those of test. Printed formulas run longer: 2 % of all passages share more than 12 words with
# one of another hearing.
BOUND = 12
SHOWN = 200  # characters of a run that a finding quotes

Split = Literal["train", "validation", "test"]


class LeakSource(NamedTuple):
    """A text that a compiled prompt should not hold."""

    kind: Literal["gold document", "query"]
    split: Split
    owner: str  # the id of the document or query
    text: str


def find_leaks(
    texts: Mapping[str, str], passages: Iterable[LeakSource], *, bound: int = BOUND
) -> list[JsonObject]:
    """Return the longest run of words that a piece of a prompt has in common with a passage, for
    each pair that shares more than `bound` words in a row; those of test, and the longest, first.

    A row has "piece", "kind", "split", "owner", "length" in words, and "text", the run, lower-cased
    and without punctuation, cut to `SHOWN` characters.
    """
    places = index_ngrams({piece: tokens(text) for piece, text in texts.items()}, bound + 1)
    leaks = [
        {
            "piece": piece,
            **passage._asdict(),
            "length": len(run),
            "text": " ".join(run)[:SHOWN],
        }
        for passage in passages
        for piece, run in longest_shared_ngrams(tokens(passage.text), places, bound + 1).items()
    ]
    return sorted(
        leaks, key=lambda leak: (leak["split"] != "test", -leak["length"], *map(str, leak.values()))
    )


def collect_passages(
    split: Split, queries: Sequence[Query], environment: Environment
) -> Iterator[LeakSource]:
    """Collect queries of a split that are of the environment, and the documents that are wanted for them."""
    queries = [query for query in queries if query in environment.queries]
    for query in queries:
        yield LeakSource("query", split, query.query_id, query.text)
    for doc_id in dict.fromkeys(chain(*relevant_documents(queries, environment).values())):
        yield LeakSource(
            "gold document", split, doc_id, indexed_text(environment.documents[doc_id])
        )


def list_texts(compiled: Compiled) -> dict[str, str]:
    """Return the texts of a compiled program by name, without the objective in demonstrations."""
    texts: dict[str, str] = {}
    for name, prompt in compiled.prompts.items():
        instructions = [prompt.instructions, *prompt.descriptions.values()]
        texts[f"{name} instructions"] = "\n".join(instructions)
        texts |= _list_demos(name, prompt.demos)
    for neighbour in compiled.neighbours:
        for name, demos in neighbour.demos.items():
            texts |= _list_demos(f"{name} of {neighbour.query_id},", demos)
    for number, member in enumerate(compiled.members, start=1):
        for name, text in list_texts(member).items():
            texts[f"member {number}, {name}"] = text
    return texts


def _list_demos(owner: str, demos: Sequence[JsonMapping]) -> dict[str, str]:
    return {
        f"{owner} demo {number}": "\n".join(texts_in({**demo, "objective": ""}))
        for number, demo in enumerate(demos, start=1)
    }
