"""How a program asks its model: a predictor, its inputs, what makes an answer usable, and what fits
into the prompt.

    read = ask(self.read_passages, known_ids("selected", unread), **about, passages=passages)

An unusable answer is asked for once more, with what was wrong with it (tools/models/adapter.py),
inside one call of the predictor, so that DSPy's trace has the answer that was used. A second one
raises UnusableAnswer, a fault of the system.

Corpus text goes into a prompt inside a typed field, never as part of an instruction. Tokens are
counted before a call: where a prompt is too long, a reading is split, a batch to be seen together
is cut, or the oldest notes are left out. Each is a step of the trace.
"""

import importlib.util
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import dspy
import pydantic

from tools import session
from tools.errors import UnknownName, UsageError
from tools.models.values import Ids
from tools.session import Session

Kind = Literal[
    "unparsable", "wrong type", "unknown ids", "unknown tool", "empty", "cut off", "refused"
]
Outputs = Mapping[str, Any]
Message = dict[str, Any]  # of the chat protocol: "role", "content", "tool_calls", ...


class InvalidAnswer(Exception):
    """Why one answer cannot be used as it is."""

    def __init__(
        self, kind: Kind, reason: str, *, tolerable: bool = False, report: str = ""
    ) -> None:
        """The model is shown the `reason`. A `tolerable` answer is used when the second one is no better.

        `report` is for people, where the reason is written for the model alone.
        """
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.tolerable = tolerable
        self.report = report or f"{kind}: {reason}"


class UnusableAnswer(Exception):
    """A model gave two answers in a row that could not be used."""

    def __init__(self, fault: InvalidAnswer) -> None:
        super().__init__(fault.report)
        self.kind = fault.kind
        if fault.kind == "refused":
            self.user_line = ""  # no line of a program makes a model refuse (tools/plugins.py)


AnswerCheck = Callable[[Outputs], None]
"""Raises a Fault for outputs that cannot be used."""

_CHECKS: ContextVar[tuple[AnswerCheck, ...]] = ContextVar("checks", default=())


def ask(predictor: dspy.Module, *checks: AnswerCheck, **inputs: Any) -> Any:
    """Return the prediction for `inputs`, which passes all `checks`."""
    with session.set_contextvar(_CHECKS, checks):
        return predictor(**inputs)


def run_checks(outputs: Outputs) -> None:
    """Raise the first Fault that a check of this context finds."""
    for one in _CHECKS.get():
        one(outputs)


def find_ids(outputs: dict[str, Any]) -> None:
    """Put the ids that were shown into the place of what a model made of them, for the checks of this context."""
    for one in _CHECKS.get():
        for name, ids in getattr(one, "ids", {}).items():
            value = outputs.get(name)
            if isinstance(value, list) and not all(_id_of(item) in ids.among for item in value):
                outputs[name] = (
                    _read_rows(value, ids) if hasattr(value[0], "id") else ids.read(value)
                )


def _id_of(item: Any) -> Any:
    return getattr(item, "id", item)


def _read_rows(rows: list[Any], ids: Ids) -> list[Any]:
    return [row.model_copy(update={"id": ids.find(row.id) or row.id}) for row in rows]


def schema_constraints() -> dict[str, dict[str, Any]]:
    """Return what the checks of this context ask of each field, in words of JSON Schema."""
    asks = dict[str, dict[str, Any]]()
    for one in _CHECKS.get():
        for name, words in getattr(one, "asks", {}).items():
            asks[name] = asks.get(name, {}) | words  # of several checks of one field
    return asks


def require_known_ids(field: str, among: Collection[str], *, needed: bool = False) -> AnswerCheck:
    """Check that the ids in the list `field` are of documents in `among`; with `needed`, that there is at least one.

    An answer with known ids beside unknown ones is tolerable: its user drops these (Session.select counts them).
    """

    def known(outputs: Outputs) -> None:
        named = [str(getattr(one, "id", one)) for one in outputs[field]]
        unknown = [doc_id for doc_id in named if doc_id not in among]
        if unknown:
            if payer := session.current():
                for doc_id in unknown:
                    payer.blame(doc_id, "named an id that it gives")
            reason = (
                f"{field} names {unknown[0]!r}, the id of none of the passages shown; use ids as "
                f"they are given"
            )
            raise InvalidAnswer("unknown ids", reason, tolerable=len(unknown) < len(named))
        if needed and not named:
            raise InvalidAnswer("empty", f"{field} is empty; it has to name passages")

    vars(known)["asks"] = {field: {"enum": sorted(among), "minItems": int(needed)}}
    vars(known)["ids"] = {field: Ids(among)}
    return known


def require_known_row_ids(field: str, among: Collection[str]) -> AnswerCheck:
    """Check the ids of the rows in `field` as `require_known_ids` does ids."""
    known = require_known_ids(field, among)
    vars(known)["asks"] = {"id": {"enum": sorted(among)}}
    return known


def filled(*fields: str) -> AnswerCheck:
    """Check that none of the text or list `fields` is empty; a list of blank texts is."""

    def not_empty(outputs: Outputs) -> None:
        for field in fields:
            value = outputs[field]
            if not any(str(one).strip() for one in ([value] if isinstance(value, str) else value)):
                raise InvalidAnswer("empty", f"{field} is empty; it is needed")

    vars(not_empty)["asks"] = {field: {"minItems": 1, "minLength": 1} for field in fields}
    return not_empty


def require_in_range(field: str, low: float, high: float) -> AnswerCheck:
    """Check that the number `field` is from `low` to `high`."""

    def in_range(outputs: Outputs) -> None:
        if not low <= outputs[field] <= high:
            raise InvalidAnswer(
                "wrong type",
                f"{field} is {outputs[field]}; it is a number from {low:g} to {high:g}",
            )

    vars(in_range)["asks"] = {field: {"minimum": low, "maximum": high}}
    return in_range


# Passages

# What the input `description` is, for the model: in some tasks the query is itself a text like the
# wanted ones.
DESCRIPTION = (
    "the query: words about what is wanted, or a text to find the like of; the objective says which"
)


class Passage(pydantic.BaseModel):
    """One document as a model sees it."""

    id: str
    text: str


Fits = Callable[[list[Passage]], bool]
_FEWEST_CHARS = 50  # of a passage, below which it says nothing


def show_passages(
    session: Session, doc_ids: Sequence[str], chars: int, fit: Fits = lambda passages: True
) -> list[Passage]:
    """Show documents together as passages of `chars` characters (0: whole), or of as many as `fit`, at least 50."""
    return _passages(
        doc_ids, session.judge(doc_ids, chars or None, fit=partial(_cut, session, doc_ids, fit))
    )


def passage_batches(
    session: Session, doc_ids: Sequence[str], chars: int, fit: Fits
) -> Iterator[list[Passage]]:
    """Yield the documents as passages in as few batches as `fit`, each recorded as shown when it is taken."""
    left = list(doc_ids)
    while left:
        tried: list[Passage] = []
        shown = session.judge(
            left, chars or None, fit=partial(_beginning, session, left, fit, tried)
        )
        passages = tried or _passages(left, shown)
        yield passages
        left = left[len(passages) :]


def _cut(session: Session, doc_ids: Sequence[str], fit: Fits, texts: list[str]) -> list[str]:
    longest = max(map(len, texts), default=0)
    most = fit_length(
        longest,
        lambda chars: fit(_passages(doc_ids, [text[:chars] for text in texts])),
        _FEWEST_CHARS,
    )
    if most < longest:
        session.shorten(
            f"passages: {len(texts)} are cut to {most} characters each, instead of {longest}"
        )
    return [text[:most] for text in texts]


def _beginning(
    session: Session, doc_ids: list[str], fit: Fits, tried: list[Passage], texts: list[str]
) -> list[str]:
    """Return as many of the texts as fit; their passages go into `tried`, unless the only one had to be cut."""
    passages = _passages(doc_ids, texts)
    low = len(texts) if fit(passages) else min(1, len(texts))
    high = len(texts)
    while (
        high - low > 1
    ):  # the longest beginning that fits, by bisection; at least one passage, if there is one
        middle = (low + high) // 2
        low, high = (middle, high) if fit(passages[:middle]) else (low, middle)
    kept = passages[:low]
    if len(kept) < len(texts):
        session.shorten(
            f"passages: {len(kept)} of {len(texts)} in one reading, the others in the next"
        )
    if len(kept) > 1:
        tried += kept
        return texts[: len(kept)]
    return _cut(session, doc_ids, fit, texts[:1])


def _passages(doc_ids: Sequence[str], texts: Sequence[str]) -> list[Passage]:
    return [
        Passage(id=escape_markers(doc_id), text=escape_markers(text))
        for doc_id, text in zip(doc_ids, texts, strict=False)
    ]


def fit_notes(
    session: Session, notes: Sequence[str], fit: Callable[[list[str]], bool], *, what: str = "notes"
) -> list[str]:
    """Return the latest of `notes` that `fit` together, oldest first; `what` names them in the trace."""
    kept = list(notes)
    while kept and not fit(kept):
        del kept[0]
    if len(kept) < len(notes):
        session.shorten(f"{what}: the {len(notes) - len(kept)} oldest of {len(notes)} are left out")
    return kept


def escape_markers(text: str) -> str:
    """Return `text` with blanks inside DSPy's field markers, [[ ## name ## ]], and its marks of images and files."""
    text = text.replace("<<CUSTOM-TYPE-", "< <CUSTOM-TYPE-")
    return re.sub(r"\](?=\])", "] ", re.sub(r"\[(?=\[)", "[ ", text)) if "##" in text else text


# Tokens are counted with OpenAI's o200k_base, whichever the model, and a tenth of the window is
# kept free because other tokenizers count otherwise. Where a model's window is not known (a server
# of the user's own, without --context), everything fits, and the provider refuses what is too long.

_ANSWER = 4096  # tokens kept for the answer, where neither the call nor the model has a limit
_SHARE = 3  # the part of the room that is kept for it at most: a third
_MARGIN = 0.9  # share of the window that is used
_SHORTEST = 64  # tokens without which no answer is possible
_MESSAGE = 8  # tokens of a message beside its text, at most


class PromptTooLong(Exception):
    """A prompt that the model cannot take and that cannot be shortened; it is not sent."""


def context_window() -> int | None:
    """Return how many tokens the active model's prompt and answer may have together; None when not known."""
    most = getattr(dspy.settings.lm, "window", None)
    return None if most is None else int(most * _MARGIN)


def prompt_fits(predictor: Any, **inputs: Any) -> bool:
    """Whether the prompt of `predictor` for `inputs` leaves the model room for its answer."""
    room = context_window()
    if room is None:
        return True
    predict = getattr(predictor, "predict", predictor)  # of a ChainOfThought
    messages = dspy.settings.adapter.format(predict.signature, predict.demos, inputs)
    limits = predict.config.get("max_tokens"), max_output_tokens()
    answer = min(*(int(one) for one in limits if one), room // _SHARE)
    return count_prompt_tokens(messages, room - answer) <= room - answer


def max_output_tokens() -> int:
    """Return how many tokens an answer of the active model may have."""
    return getattr(dspy.settings.lm, "limit", None) or _ANSWER


def remaining_tokens(messages: Sequence[Message], most: int, window: int | None) -> int:
    """Return how many tokens of `most` the prompt leaves for an answer in a `context_window`; a few in any case."""
    if window is None:
        return most
    room = int(window * _MARGIN)
    return min(most, max(_SHORTEST, room - count_prompt_tokens(messages, room - most)))


def token_overflow(messages: Sequence[Message]) -> int:
    """Return by how many tokens a prompt exceeds the active model's window; 0 where it fits or that is not known."""
    most = getattr(dspy.settings.lm, "window", None)
    return (
        0
        if most is None
        else max(0, count_prompt_tokens(messages, most - _SHORTEST) + _SHORTEST - most)
    )


def check_room(messages: Sequence[Message], what: str) -> None:
    """Raise TooLong for messages that the active model cannot take; `what` names them in its message."""
    if more := token_overflow(messages):
        raise PromptTooLong(f"the {what} is {more} tokens larger than what the model takes")


def count_prompt_tokens(messages: Sequence[Message], room: int = 0) -> int:
    """Return a prompt's tokens, or its bytes where they fit `room`: a token has at least one, and counting is slow."""
    texts = [str(message["content"]) for message in messages]
    bound = sum(len(text.encode("utf-8", "surrogatepass")) + _MESSAGE for text in texts)
    return bound if bound <= room else sum(tokens(text) + _MESSAGE for text in texts)


# Anthropic's models alone cache nothing that is not marked, and nothing below so many tokens
# (https://docs.claude.com/en/docs/build-with-claude/prompt-caching). Others cache by themselves
# what begins alike.
_LEAST_CACHED = 1024


def mark_cacheable_prefix(model: str, messages: Sequence[Message], *, grows: bool) -> list[Message]:
    """Return messages with a mark for the provider's cache on the last that comes again, where the model needs one.

    That is the very last of a conversation, which grows, and of a prompt the one before the query.
    """
    marked = list(messages)
    place = len(messages) - (1 if grows else 2)
    repeats = "\n".join(str(one["content"]) for one in marked[: place + 1])[: 8 * _LEAST_CACHED]
    text = marked[place]["content"] if place >= 0 and "claude" in model else None
    if isinstance(text, str) and text and tokens(repeats) >= _LEAST_CACHED:
        part = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
        marked[place] = marked[place] | {"content": [part]}
    return marked


def fit_length(chars: int, fit: Callable[[int], bool], fewest: int = 0) -> int:
    """Return how many of `chars` characters `fit`, to a sixteenth; at least `fewest`, whether they fit or not."""
    low = high = chars
    while low > fewest and not fit(low):
        low, high = max(low // 2, fewest), low
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if fit(middle) else (low, middle)
    return low


def cut_to_share(text: str, share: float) -> str:
    """Return the beginning of `text` that takes at most `share` of the model's window; all where this is not known."""
    room = context_window()
    return (
        text
        if room is None
        else text[: fit_length(len(text), lambda chars: tokens(text[:chars]) <= room * share)]
    )


def tokens(text: str) -> int:
    """Count the tokens of `text`; without the tokenizer, return an upper bound."""
    encoding = _encoding()  # without it: a token of text in a Latin script has some four bytes
    return (
        len(encoding.encode(text, disallowed_special=()))
        if encoding
        else len(text.encode("utf-8", "replace")) // 2
    )


@cache
def _encoding() -> Any:
    """Return the tokenizer, from the file that LiteLLM ships: tiktoken by itself would download it."""
    spec = importlib.util.find_spec("litellm")  # which is not imported: that takes seconds
    bundled = (
        Path(spec.origin).parent / "litellm_core_utils" / "tokenizers"
        if spec and spec.origin
        else None
    )
    # tiktoken's name for o200k_base: the SHA-1 of its address
    file = "fb374d419588a4632f3f557e76b4b70aebbca790"
    if bundled is None or not (bundled / file).is_file():
        return None
    import tiktoken  # few commands count tokens

    os.environ["TIKTOKEN_CACHE_DIR"] = str(bundled)  # as LiteLLM sets it
    return tiktoken.get_encoding("o200k_base")


# What makes a document relevant, for each of OBLIQ-Bench's mechanisms. The paper's prompts differ
# by task (appendix D); these are the same five readings in our own words, added to the instructions
# of a signature. A program takes one as its parameter `get_lens`; by default, the task's own.


class Lens(NamedTuple):
    """One way in which a document can be what is wanted without its words saying so."""

    search: str  # what to put into a search text
    recognise: str  # what to look for when reading
    annotate: (
        str  # what to write down of a document, for an index (tools/retrievers/lens/lens_index.py)
    )
    solved: str = ""  # in place of `recognise`, where solutions are given beside the texts


LENSES = {
    "recollection": Lens(
        search="The description is somebody's hazy memory of one moment. Write what the record of "
        "that moment would "
        "say: names and titles of the people who would speak, the formal turns of phrase of such "
        "an occasion, the "
        "terms of the subject, a phrase that may have been said. Leave out how it felt to "
        "remember it and how sure "
        "they are; what they state as a detail may be wrong.",
        recognise="Ask of each passage whether this could be the remembered moment: who speaks to "
        "whom, what "
        "happens, and what the exchange turns on. Single details of a memory are often wrong; the "
        "scene as a whole "
        "is not.",
        annotate="What somebody would remember of this passage weeks later: who does what to "
        "whom, the odd detail, "
        "the mood, what it is about in everyday words, without names and numbers.",
    ),
    "stance": Lens(
        search="What is wanted takes the described stance without stating it. Write as somebody "
        "who holds it would "
        "write in passing: with irony, a rhetorical question, a euphemism, a telling choice of "
        "what to mention. Do "
        "not name the stance.",
        recognise="Ask what the writer must believe to have written this. Keep what implies the "
        "stance; pass over "
        "what states it openly, argues the opposite, or only reports.",
        annotate="The position that the writer takes without stating it, as a plain sentence: "
        "towards whom, for or "
        "against what, and by which means (irony, framing, understatement, a question). Say so "
        "when there is none.",
    ),
    "failure": Lens(
        search="The description names a way in which an assistant goes wrong. Write what would "
        "stand in a "
        "conversation where that happens: the kind of request that provokes it, the answer that "
        "shows it, what the "
        "user says next. The subject of the conversation is open, so vary it from search to "
        "search.",
        recognise="Follow the conversation turn by turn and ask whether the described failure "
        "happens in it, whether "
        "or not anybody in it notices. What the conversation is about does not matter.",
        annotate="What goes wrong between user and assistant in this conversation: what was "
        "asked, what was given "
        "instead, at which turn, and whether anybody notices. Say so when nothing goes wrong.",
    ),
    "proof": Lens(
        search="What is wanted is solved by the same idea of proof, in whatever field. Work out "
        "the idea that solves "
        "the given problem, then write the statement of another problem that gives way to it: "
        "other objects, other "
        "notation, the same step that unlocks it.",
        recognise="Work out a solution for each problem, any natural one, and compare the step "
        "that unlocks it with "
        "that of the given problem. The same field, objects or notation are no evidence.",
        annotate="The idea that solves this problem, apart from its subject: the step that "
        "unlocks it, the principle "
        "behind it, and the outline of the proof in a sentence or two.",
        solved="Take the step that unlocks each problem from its solution, which stands below it, "
        "and compare it "
        "with that of the given problem. A solution is one of several: where another natural one "
        "shares the step, "
        "that counts as well. The same field, objects or notation are no evidence.",
    ),
    "authorship": Lens(
        search="What is wanted was written by the same hand, about anything. Write a few "
        "sentences in that hand: its "
        "rhythm, its connectives and hedges, its punctuation, its favourite words. Keep the "
        "manner and change the "
        "subject.",
        recognise="Compare ways of writing and nothing else: length and rhythm of sentences, "
        "hedges, connectives, "
        "punctuation, vocabulary, tone, habits of argument. What a passage is about is no "
        "evidence.",
        annotate="How this is written, not what it is about: length and rhythm of sentences, "
        "connectives, hedges, "
        "punctuation, person and tense, register, habits of argument, words that are typical of "
        "the writer.",
    ),
}


def get_lens(name: str) -> Lens:
    """Return the lens called `name`, an empty one for "", or one in words: {"search": ..., ...}, the fields as JSON.

    UnknownName, with the nearest names, for another name.
    """
    if name.startswith("{"):
        try:
            return Lens(**{"search": "", "recognise": "", "annotate": ""} | json.loads(name))
        except (ValueError, TypeError):
            raise UsageError(
                f"the lens {name[:60]!r} is no JSON of {', '.join(Lens._fields)}"
            ) from None
    if name and name not in LENSES:
        raise UnknownName("lens", name, LENSES)
    return LENSES[name] if name else Lens(search="", recognise="", annotate="")


def with_advice(signature: Any, advice: str) -> Any:
    """Return `signature` with `advice` at the end of its instructions."""
    return (
        with_instructions(signature, f"{signature.instructions}\n\n{advice}")
        if advice
        else signature
    )


def with_instructions(
    signature: Any, instructions: str, descriptions: Mapping[str, str] | None = None
) -> Any:
    """Return `signature` with other instructions, and other descriptions of fields, which are then marked as such.

    It keeps its own name: DSPy's copies are called StringSignature.
    """
    made = signature.with_instructions(instructions)
    for name, text in (descriptions or {}).items():
        if (desc := text or f"${{{name}}}") != signature.fields[name].json_schema_extra["desc"]:
            made = made.with_updated_fields(name, desc=desc, described=True)
    made.__name__ = signature.__name__
    return made
