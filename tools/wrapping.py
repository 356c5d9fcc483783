"""Lines of at most the width of a terminal, broken between words.

Tables and lists of names are in terminal.py.
"""

import os
import shlex
import textwrap
from collections.abc import Sequence

# Ends a line of a command that goes on in the next.
CONTINUED = " \\"
# Before such a line.
_DEEPER = " " * 6


def named_width() -> int | None:
    """Return the characters of a line that $COLUMNS names; None if it names none."""
    named = os.environ.get("COLUMNS", "")
    return int(named) if named.isdigit() and int(named) else None


def wrap(text: str, width: int | None, first: str = "", further: str = "") -> str:
    """Return a text in lines of at most `width`, broken between words, with what each line begins with."""
    if width is None:
        return first + text
    if not text:
        return first.rstrip()
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def paragraph(text: str, width: int | None) -> str:
    """Return a line of output; where it is broken, it goes on under its beginning.

    A line that is not indented goes on two characters further in.
    """
    words = text.lstrip()
    indent = " " * (len(text) - len(words))
    return wrap(
        words,
        width,
        first=indent,
        further=indent or "  ",
    )


def command_lines(lead: str, command: str, width: int | None) -> list[str]:
    """Return a command after its lead as lines of at most `width`, from which it can be copied.

    A command that is too wide stands below its lead, and goes on after a backslash.
    """
    line = f"{lead} {command}"
    if width is None or len(line) <= width:
        return [line]
    above = paragraph(lead, width).splitlines() if lead.strip() else []
    words = shlex.split(command, posix=False)
    if " ".join(words) != command:
        # A quoted word has quotes in it.
        return [*above, f"    {command}"]
    first, *others = _join_values(words, width)
    lines = [f"    {first}"]
    for phrase in others:
        longer = f"{lines[-1]} {phrase}"
        if len(longer) + len(CONTINUED) <= width:
            lines[-1] = longer
        else:
            lines[-1] += CONTINUED
            lines.append(f"{_DEEPER}{phrase}")
    return [*above, *lines]


def _join_values(words: Sequence[str], width: int) -> list[str]:
    """Return the words of a command, each option together with its value if a line has room for
    both.
    """
    room = width - len(_DEEPER) - len(CONTINUED)
    phrases = list[str]()
    for word in words:
        option = phrases[-1] if phrases else ""
        joined = f"{option} {word}"
        is_value = option.startswith("-") and " " not in option and not word.startswith("-")
        if is_value and len(joined) <= room:
            phrases[-1] = joined
        else:
            phrases.append(word)
    return phrases
