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
    # OpenAI's harmony: the channel of the answer, or of a call, comes last
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
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
# The mark of harmony's last channel: what stands behind it is the answer.
_FINAL = re.compile(r"\s*(?:<\|start\|>assistant)?<\|channel\|>final[^<>]*<\|message\|>")


def part_thoughts(text: str, instruction: str = "") -> Parted:
    """Return the thoughts in the text of an answer, and the rest; the unchanged text if it has
    none.

    The `instruction` is the prompt: a tag that it asks for holds a field, and no thoughts.
    """
    thoughts, answer = _part_by_marks(text, instruction)
    if final := _FINAL.match(answer):
        answer = answer[final.end() :]
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
    if is_open:  # it was cut off, or the model forgot the mark: no answer is known
        thoughts.append(text[position:])
    else:
        answer += text[position:]
    return Parted(_join(thoughts), answer.strip()) if thoughts else Parted("", text)


def _join(thoughts: Iterable[str]) -> str:
    return "\n".join(stripped for thought in thoughts if (stripped := thought.strip()))
