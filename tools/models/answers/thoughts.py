"""Separate thoughts from the text of an answer by the marks that models put around them.

A server with a parser for its model takes them out; many servers have none. Text between two
marks, or before a closing mark whose opening mark was in the prompt, is no part of the answer. To
add a form: a row in a table below. Harmony's channels without their tokens, and thoughts that only
close inside a field, are left out.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple


class Parted(NamedTuple):
    """The text of an answer in two parts: the model's thoughts, and its answer."""

    thoughts: str
    answer: str


# Tags, as in <think>...</think>. These are no names of fields.
_OWN_TAGS = ("think", "mm:think", "seed:think", "seed:cot_budget_reflect", "antthinking")
# These may be, in a prompt that asks for tags (DSPy's XMLAdapter): where the instruction has such a
# tag, it is a field.
_FIELD_TAGS = (
    *("thinking", "thought", "thoughts", "reason", "reasoning", "reflection", "scratchpad"),
    *("inner_monologue", "internal_monologue", "inner_thoughts", "analysis"),
    *("chain_of_thought", "thinking_process"),
)
# Other marks: what opens thoughts, and what closes them.
_MARKS = (
    ("[THINK]", "[/THINK]"),  # Mistral
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker, Sky-T1
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ("<|channel>thought", "<channel|>"),  # Gemma 4
    ("<unused94>thought", "<unused95>"),  # MedGemma
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
)
_OPENING, _CLOSING = ("|".join(map(re.escape, marks)) for marks in zip(*_MARKS, strict=True))
_MARK = re.compile(
    rf"<(?P<slash>/?)(?P<tag>{'|'.join((*_OWN_TAGS, *_FIELD_TAGS))})(?:\s[^<>]*)?>"
    rf"|(?P<opening>{_OPENING})|(?P<closing>{_CLOSING})",
    re.IGNORECASE,
)
# Tokens that end a turn, which some servers leave in the text.
_TURN_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|end|>", "<|return|>"),
    *("<|endoftext|>", "<|end_of_text|>", "<|end_of_turn|>", "<|END_OF_TURN_TOKEN|>", "</s>"),
    *("<end_of_turn>", "<turn|>", "<｜end▁of▁sentence｜>", "<|END_RESPONSE|>"),
)
# Harmony, OpenAI's format: each part of an answer has a channel. `final` is the answer, and what
# has a receiver is a call of a tool.
_PART = re.compile(
    r"(?:<\|start\|>(?P<role>[^<]*))?<\|channel\|>(?P<channel>[^<]*)(?:<\|constrain\|>[^<]*)?"
    r"<\|message\|>(?P<content>.*?)(?=<\|(?:end|return|call|start|channel)\|>|\Z)",
    re.DOTALL,
)


def part_thoughts(text: str, instruction: str = "") -> Parted:
    """Return the thoughts in the text of an answer, and the rest; the unchanged text if it has
    none.

    The `instruction` is the prompt: a tag that it asks for holds a field, and no thoughts.
    """
    part = _part_harmony if "<|channel|>" in text else _part_by_marks
    thoughts, answer = part(text, instruction)
    while (shorter := answer.rstrip()).endswith(_TURN_ENDS):
        answer = shorter[: shorter.rindex("<")]
    return Parted(thoughts, answer)


def _part_by_marks(text: str, instruction: str) -> Parted:
    thoughts = []
    answer = ""
    position = 0
    is_open = False
    for mark in _MARK.finditer(text):
        tag = (mark["tag"] or "").lower()
        if tag in _FIELD_TAGS and f"<{tag}>" in instruction:
            continue
        opens = bool(mark["opening"] or (tag and not mark["slash"]))
        if opens and is_open:
            continue
        before = text[position : mark.start()]
        if opens:
            answer += before
        else:
            thoughts.append(before if is_open else answer + before)
            answer = answer if is_open else ""
        position = mark.end()
        is_open = opens
    if is_open:
        # It was cut off, or the model forgot the mark: no answer is known
        return Parted(_join([*thoughts, text[position:]]), answer.strip())
    return (
        Parted(_join(thoughts), (answer + text[position:]).strip())
        if thoughts
        else Parted("", text)
    )


def _part_harmony(text: str, instruction: str) -> Parted:
    sections = list(_PART.finditer(text))
    before = text[: sections[0].start()] if sections else text
    texts: dict[str, list[str]] = {"analysis": [before.rpartition("<|message|>")[2]]}
    calls = []
    for section in sections:
        if "to=" in section["channel"] or "to=" in (section["role"] or ""):
            calls.append(section[0])
        else:
            channel = section["channel"].strip().partition(" ")[0]
            texts.setdefault(channel, []).append(section["content"])
    answer = texts.pop("final", [])[-1:]
    if calls and not answer:
        answer = texts.pop("commentary", [])
    inner = _part_by_marks("\n".join(answer), instruction)
    thoughts = [*(thought for channel in texts.values() for thought in channel), inner.thoughts]
    return Parted(_join(thoughts), "\n".join([inner.answer, *calls]).strip())


def _join(thoughts: Iterable[str]) -> str:
    return "\n".join(stripped for thought in thoughts if (stripped := thought.strip()))
