"""Separate thoughts from the text of an answer by the marks that models put around them.

A server with a parser for its model takes them out; many servers have none. Text between two
marks, or before a closing mark whose opening mark was in the prompt, is no part of the answer. To
add a form: a row in a table below.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple


class Parted(NamedTuple):
    """The text of an answer in two parts: the model's thoughts, and its answer."""

    thoughts: str
    answer: str


# Tags, as in <think>...</think>.
_TAGS = (
    *(
        "think",
        "mm:think",
        "seed:think",
        "seed:cot_budget_reflect",
        "antthinking",
        "thinking",
        "thought",
        "thoughts",
    ),
    *(
        "reason",
        "reasoning",
        "reflection",
        "scratchpad",
        "inner_monologue",
        "analysis",
        "internal_monologue",
    ),
    *("inner_thoughts", "chain_of_thought", "thinking_process"),
)
# These are no names of fields. The others may be, in a prompt that asks for tags (DSPy's
# XMLAdapter): where the instruction has such a tag, it is a field.
_NO_FIELDS = _TAGS[:5]
# Other marks: what opens thoughts, and what closes them.
_MARKS = (
    ("[THINK]", "[/THINK]"),  # Mistral
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker, Sky-T1
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ("<|channel>thought", "<channel|>"),  # Gemma 4
    ("<unused94>thought", "<unused95>"),  # MedGemma
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("Here is my thought process:", "Here is my response:"),  # Granite
    ("Here's my thought process:", "Here's my response:"),
)
_OPENING = "|".join(re.escape(opening) for opening, _ in _MARKS)
_CLOSING = "|".join(re.escape(closing) for _, closing in _MARKS)
_MARK = re.compile(
    rf"<\|?(?P<slash>/?)(?P<tag>{'|'.join(_TAGS)})(?:\s+[\w-]+\s*=[^<>]*)?\s*\|?>"
    rf"|(?P<opening>{_OPENING})|(?P<closing>{_CLOSING})",
    re.IGNORECASE,
)
# What a text has that has any of these marks, in lower case: to search for the marks themselves
# takes milliseconds.
_HINT = re.compile(rf"<[|/]{{0,2}}(?:{'|'.join(_TAGS)}|message|channel)")
_HINTS = [mark.lower() for marks in _MARKS for mark in marks]
_MOST_CLOSINGS = 50  # marks without an opening one before which an open field is looked for
_BARE_BEGINNINGS = ("analysis", "commentary", "assistantanalysis", "assistantcommentary")

# Marks around an answer that comes after thoughts.
_AROUND = re.compile(
    r"<(?P<tag>answer|output|response|final_answer|final|solution)>(?P<tagged>.*?)</(?P=tag)>"
    r"|<\|(?:begin_of_solution|begin_of_box|START_RESPONSE)\|>(?P<marked>.*?)"
    r"(?:<\|(?:end_of_solution|end_of_box|END_RESPONSE)\|>)?",
    re.DOTALL | re.IGNORECASE,
)
# Tokens that end a turn, which some servers leave in the text.
_TURN_ENDS = (
    *(
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",
        "<|end|>",
        "<|return|>",
        "<|endoftext|>",
        "<|end_of_text|>",
    ),
    *(
        "<|end_of_turn|>",
        "<|END_OF_TURN_TOKEN|>",
        "</s>",
        "<end_of_turn>",
        "<turn|>",
        "<｜end▁of▁sentence｜>",
    ),
)
# A field that is open where a text ends: DSPy's marker, or a string in a JSON object (in a list,
# after other strings).
_MARKER = re.compile(r"\[\[\s*##\s*(\w+)\s*##\s*\]\]")
_BEGINNING = re.compile(r"[\s*`>#-]*(?:json\s*)?(?:\[\[\s*##|\{)")
_STRING = r'"(?:[^"\\]|\\.)*'
_OPEN_STRING = re.compile(
    rf'"(\w+)"\s*+:\s*+\[?(?:\s*+{_STRING}"\s*+,)*+\s*+"(?=(?:[^"\\]|\\.)*+$)', re.DOTALL
)

# Harmony, OpenAI's format: each part of an answer has a channel. `final` is the answer, and what
# has a receiver is a call of a tool.
_PART = re.compile(
    r"(?:<\|start\|>(?P<role>[^<]*))?<\|channel\|>(?P<channel>[^<]*)(?:<\|constrain\|>[^<]*)?<\|message\|>"
)
_PART_END = re.compile(r"<\|(?:end|return|call|start|channel)\|>")
# The same from a server that leaves its tokens out, so that the words run into each other.
_BARE_PART = re.compile(
    r"\s*(?:assistant)?(?:analysis|commentary(?! "
    r"to=))(?P<text>.*?)assistant(?=final|analysis|commentary)",
    re.DOTALL,
)


def part_thoughts(text: str, instruction: str = "") -> Parted:
    """Return the thoughts in the text of an answer, and the rest; the unchanged text if it has
    none.

    The `instruction` is the prompt: a tag that it asks for holds a field, and no thoughts.
    """
    lowered = text.lower()
    begins_bare = lowered.lstrip().startswith(_BARE_BEGINNINGS)
    if not (begins_bare or _HINT.search(lowered) or any(hint in lowered for hint in _HINTS)):
        return Parted("", _leave_out_ends(text))
    if "<|channel|>" in text or "<|message|>" in text:
        parted = _part_harmony(text, instruction)
    elif begins_bare and _BARE_PART.match(text):
        parted = _part_bare_harmony(text)
    else:
        parted = _part_by_marks(text, instruction)
    return parted._replace(answer=_leave_out_ends(parted.answer))


def _leave_out_ends(text: str) -> str:
    """Return a text without tokens that end a turn, behind it."""
    while (shorter := text.rstrip()).endswith(_TURN_ENDS):
        ending = next(token for token in _TURN_ENDS if shorter.endswith(token))
        text = shorter[: -len(ending)]
    return text


def _part_by_marks(text: str, instruction: str) -> Parted:
    thoughts = []
    answer_text = ""
    position = 0
    is_open = False
    closings = 0  # without an opening mark
    for mark in _MARK.finditer(text):
        tag = (mark["tag"] or "").lower()
        if tag and tag not in _NO_FIELDS and f"<{tag}>" in instruction:
            continue
        opens = mark["opening"] or (tag and not mark["slash"])
        if opens and not is_open:
            answer_text += text[position : mark.start()]
            position = mark.end()
            is_open = True
        elif not opens and is_open:
            thoughts.append(text[position : mark.start()])
            position = mark.end()
            is_open = False
        elif not opens:
            before = answer_text + text[position : mark.start()]
            closings += 1
            is_few = closings <= _MOST_CLOSINGS
            answer_text = _keep_open_field(before, text[mark.end() :]) if is_few else ""
            thoughts.append(before[len(answer_text) :])
            position = mark.end()
    if is_open:
        thoughts.append(
            text[position:]
        )  # it was cut off, or the model forgot the mark: no answer is known
    elif thoughts:
        answer_text += text[position:]
    else:
        return Parted("", text)
    answer = answer_text.strip()
    if around := _AROUND.fullmatch(answer):
        answer = (around["tagged"] or around["marked"] or "").strip()
    return Parted(_join(thoughts), answer)


def _keep_open_field(before: str, after: str) -> str:
    """Return the beginning of an answer, up to the field in which the thoughts began that end
    before `after`.

    All of `before` is thoughts if no field is open there, or if the answer begins only `after` it:
    with a field, or with a field that was drafted before.
    """
    markers = list(_MARKER.finditer(before))
    field = markers[-1] if markers else _OPEN_STRING.search(before)
    if field is None or field[1] == "completed" or _BEGINNING.match(after):
        return ""
    drafted = set(_MARKER.findall(before)) & set(_MARKER.findall(after)) - {"completed"}
    return "" if drafted else before[: field.end()]


def _part_harmony(text: str, instruction: str) -> Parted:
    sections = list(_PART.finditer(text))
    before = text[: sections[0].start()] if sections else text
    thoughts = []
    finals = []
    remarks = []
    calls = []
    field = _keep_open_field(before, text[len(before) :])
    thoughts.append(before[len(field) :].rpartition("<|message|>")[2].replace("<|end|>", ""))
    for section in sections:
        end = _PART_END.search(text, section.end())
        content = text[section.end() : end.start() if end else len(text)]
        channel = section["channel"].split()[:1]
        if "to=" in section["channel"] or "to=" in (section["role"] or ""):
            calls.append(text[section.start() : section.end()] + content)
        elif channel == ["final"]:
            finals.append(content)
        elif channel == ["commentary"]:
            remarks.append(content)
        else:
            thoughts.append(content)
    if finals or not calls:
        thoughts += remarks
        answer = field + "".join(finals[-1:])
    else:
        answer = "\n".join(remarks)
    inner = _part_by_marks(answer, instruction)
    return Parted(_join([*thoughts, inner.thoughts]), "\n".join([inner.answer, *calls]).strip())


def _part_bare_harmony(text: str) -> Parted:
    thoughts = []
    position = 0
    while section := _BARE_PART.match(text, position):
        thoughts.append(section["text"])
        position = section.end()
    return Parted(_join(thoughts), text[position:].removeprefix("final").strip())


def _join(thoughts: Sequence[str]) -> str:
    return "\n".join(stripped for thought in thoughts if (stripped := thought.strip()))
