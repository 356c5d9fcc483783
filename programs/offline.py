"""The engine without a model: fills the signatures of the programs by counting words. No language model is in it.

It is a named baseline, pseudo-relevance feedback (Rocchio 1971; Lavrenko and Croft 2001), in the shape of a model:
it weighs the words of description and notes by how rare they are in the corpus, spends less on words that earlier
searches have used, keeps the passages that share the most weight, and takes their best sentences as notes. It
invents no word, understands none, and gives the same answer to the same input always. What it wins and loses
against the bare retriever is in docs/results.md.

DSPy hands an engine the rendered prompt only; `programs/lm.py` publishes the structured call beside it, and
`RULES` has one function for each output field, by the field's name.
"""

import math
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple, Self

from dspy.lm15 import Message, Request, Response, Usage, response_to_events

from tools.errors import UsageError
from tools.text import TermStatistics, sentences, words

VERSION = "offline/1"  # goes into run configs: raise it with every change that changes an answer

# How these were chosen, and on which queries, is in docs/offline.md.
SEARCH_WORDS = 20  # words in each search after the first
NOTES_SHARE = 0.3  # of a word's weight that comes from the notes; the rest from the description
DECAY = 0.5  # what a word keeps of its weight for each earlier search that used it
KEEP = 6  # passages kept of each batch
NOTE_SENTENCES = 1  # taken from each kept passage
# Okapi's usual constants, for weighing a passage: how soon repeats stop counting, and how much length costs.
K1, B = 1.5, 0.75


class Call(NamedTuple):
    """A predictor's call as DSPy's adapter sees it."""

    adapter: Any
    signature: Any
    inputs: Mapping[str, Any]


_CALL: ContextVar[Call | None] = ContextVar("call", default=None)


@contextmanager
def published(call: Call) -> Iterator[None]:
    """Let the engine see the structured call that is being made inside."""
    token = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(token)


def rewritten(inputs: Mapping[str, Any], statistics: TermStatistics) -> str:
    """The heavier half of the description's words, heaviest first."""
    weight = _weights(inputs["description"], statistics)
    heaviest = sorted(weight, key=lambda word: (-weight[word], word))
    return " ".join(heaviest[: max(1, len(heaviest) // 2)])


def search(inputs: Mapping[str, Any], statistics: TermStatistics) -> str:
    """First the description's own words; then the heaviest of description and notes, used ones decayed."""
    earlier = inputs["earlier_searches"]
    if not earlier:
        return " ".join(words(inputs["description"]))
    described = _scaled(_weights(inputs["description"], statistics))
    noted_raw: Counter[str] = Counter()
    for note in inputs["notes"]:
        for sentence in sentences(note):
            noted_raw.update({word: statistics.weight(word) for word in set(words(sentence))})
    noted = _scaled(noted_raw)
    used = Counter(word for text in earlier for word in set(words(text)))
    weight = {
        word: DECAY ** used[word] * (NOTES_SHARE * noted.get(word, 0.0) + (1 - NOTES_SHARE) * described.get(word, 0.0))
        for word in described.keys() | noted.keys()
    }
    return " ".join(sorted(weight, key=lambda word: (-weight[word], word))[:SEARCH_WORDS])


def selected(inputs: Mapping[str, Any], statistics: TermStatistics) -> list[str]:
    """The passages that share the most weight with the description, by BM25's saturation; best first."""
    weight = _weights(inputs["description"], statistics)

    def shared(text: str) -> float:
        count = Counter(words(text))
        norm = K1 * (1 - B + B * count.total() / statistics.average_length)
        saturated = {word: n / (n + norm) for word, n in count.items() if word in weight}
        return sum((weight[word] * share for word, share in saturated.items()), 0.0)

    scored = [(shared(passage.text), passage.id) for passage in inputs["passages"]]
    best = sorted(scored, key=lambda pair: (-pair[0], pair[1]))
    return [passage_id for score, passage_id in best[:KEEP] if score > 0]


def observations(inputs: Mapping[str, Any], statistics: TermStatistics) -> str:
    """The best sentences of the passages that `selected` keeps, one a line."""
    weight = _weights(inputs["description"], statistics)

    def density(sentence: str) -> float:
        found = dict.fromkeys(words(sentence))  # no set: its order, and so the sum's last digit, would vary
        # The root of the length, so that neither the shortest nor the longest sentence always wins.
        return sum((weight.get(word, 0.0) for word in found), 0.0) / math.sqrt(10 + len(found))

    text = {passage.id: passage.text for passage in inputs["passages"]}
    best: list[str] = []
    for passage_id in selected(inputs, statistics):
        best += sorted(sentences(text[passage_id]), key=density, reverse=True)[:NOTE_SENTENCES]
    return "\n".join(best)


# Output field -> rule. A field that is not here cannot be filled without a model.
RULES: dict[str, Callable[[Mapping[str, Any], TermStatistics], Any]] = {
    "rewritten": rewritten,
    "search": search,
    "selected": selected,
    "observations": observations,
}


def _weights(text: str, statistics: TermStatistics) -> dict[str, float]:
    """Idf x square root of its count, for each word of `text` that the corpus has."""
    count = Counter(words(text))
    weight = {word: statistics.weight(word) * math.sqrt(n) for word, n in count.items()}
    return {word: w for word, w in weight.items() if w > 0}


def _scaled(weight: Mapping[str, float]) -> dict[str, float]:
    """The same weights with the largest at 1."""
    largest = max(weight.values(), default=1.0) or 1.0
    return {word: w / largest for word, w in weight.items()}


class OfflineEngine:
    """What `dspy.LM(engine=...)` asks for: `complete`, `stream` and `close`. Stateless; threads share it."""

    def __init__(self, statistics: Callable[[], TermStatistics]) -> None:
        # Asked for at the first call, because a program without any needs no index; once, whoever calls first.
        self._ask = cache(statistics)
        self._asking = threading.Lock()

    def complete(self, request: Request) -> Response:
        """Fill the output fields of the call that is being made, by `RULES`."""
        call = _CALL.get()
        if call is None:
            raise UsageError("offline is no language model and answers no free prompt; name a model with --lm")
        unknown: Sequence[str] = [name for name in call.signature.output_fields if name not in RULES]
        if unknown:
            raise UsageError(
                f"offline cannot fill the field {unknown[0]!r}; name a model with --lm, or write a rule for it"
            )
        with self._asking:
            statistics = self._ask()
        outputs = {name: RULES[name](call.inputs, statistics) for name in call.signature.output_fields}
        return Response(
            id=None,
            model=request.model,
            message=Message.assistant(call.adapter.format_assistant_message_content(call.signature, outputs)),
            finish_reason="stop",
            usage=Usage(input_tokens=0, output_tokens=0),  # no model, no tokens
        )

    def stream(self, request: Request) -> Iterator[Any]:
        """The whole answer as one event; nothing here takes long enough to stream."""
        yield from response_to_events(self.complete(request))

    def close(self) -> None:
        """Nothing is held open."""

    def __deepcopy__(self, memo: object) -> Self:
        # DSPy's optimizers copy the language model with the program; the statistics are the corpus'.
        return self


class AsyncOfflineEngine:
    """The same for awaited predictors. Nothing in it waits."""

    def __init__(self, engine: OfflineEngine) -> None:
        self._engine = engine

    async def complete(self, request: Request) -> Response:
        """As `OfflineEngine.complete`."""
        return self._engine.complete(request)

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """As `OfflineEngine.stream`."""
        for event in self._engine.stream(request):
            yield event

    async def aclose(self) -> None:
        """Nothing is held open."""

    def __deepcopy__(self, memo: object) -> Self:
        return self
