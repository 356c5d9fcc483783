"""Lines of at most the width of a terminal, broken between words.

Tables and lists of names are in terminal.py.
"""

import os
import textwrap


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
    """Return a command after its lead as lines from which it can be copied.

    A command that is too wide stands below its lead, in a line of its own.
    """
    line = f"{lead} {command}"
    if width is None or len(line) <= width:
        return [line]
    above = paragraph(lead, width).splitlines() if lead.strip() else []
    return [*above, f"    {command}"]
