"""Shared by all commands: one-line errors, exit codes and argument types."""

import argparse
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn, TextIO, TypeVar

from tools import disk
from tools.console import interrupts
from tools.errors import INTERRUPTED, DataError, RunIncomplete, SextantError, UsageError

Number = TypeVar("Number", int, float)


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Help that shows defaults, unless they are empty."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        nothing = action.default is None or action.default is False or action.default in ("", [])
        return action.help if nothing else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line and without abbreviated options."""

    def __init__(self, **kwargs: object) -> None:
        if sys.argv[0].startswith("sextant"):  # evals/__main__.py has started the command
            kwargs["prog"] = sys.argv[0]
        super().__init__(
            **{"allow_abbrev": False, "formatter_class": _Help, **kwargs}  # type: ignore[arg-type]
        )

    def error(self, message: str) -> NoReturn:
        """Exit code 2, without the usage block; --help has that."""
        raise UsageError(f"{message}; see --help")


def _number(read: Callable[[str], Number], fits: Callable[[Number], bool], what: str) -> Callable[[str], Number]:
    """Make an argument type from a reader of text and a test of its result."""

    def argument(text: str) -> Number:
        with suppress(ValueError):
            if fits(number := read(text)):
                return number
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")

    return argument


positive = _number(int, lambda number: number >= 1, "a whole number of at least 1")
dollars = _number(float, lambda amount: amount > 0, "an amount above 0")
temperature = _number(float, lambda number: 0 <= number <= 2, "a number from 0 to 2")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def clock(text: str) -> float:
    """An argument type: a time above 0 as 90, 90s, 30m or 2h, in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time above 0, as 90s, 30m or 2h")
    return seconds


def clean(text: str) -> str:
    """Replace control characters, which could move the cursor or colour the screen, and lone surrogates.

    Lone surrogates come from folder names that are not UTF-8; no stream accepts them.
    """
    unsafe = r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
    return re.sub(unsafe, "\N{REPLACEMENT CHARACTER}", text)


def run_command(
    parser: Parser,
    command: Callable[[argparse.Namespace], int],
    arguments: Sequence[str] | None = None,
) -> int:
    """Parse the arguments, run the command, and turn an error into one line on stderr and its exit code."""
    try:
        try:
            return _run(parser, command, arguments)
        finally:
            _close_all()
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED


def _run(parser: Parser, command: Callable[[argparse.Namespace], int], arguments: Sequence[str] | None) -> int:
    try:
        parsed = parser.parse_args(arguments)
        _LOG.setLevel(
            logging.WARNING if getattr(parsed, "json", False) or getattr(parsed, "json_events", False) else logging.INFO
        )
        return command(parsed)
    except (SextantError, OSError) as error:
        if interrupts.came():
            raise KeyboardInterrupt from error
        return _fail(error)


def _fail(error: SextantError | OSError) -> int:
    """Print an error in one line; returns its exit code."""
    if isinstance(error, SextantError):
        say(f"error: {_short(' '.join(str(error).split()))}")
        return error.exit_code
    where = f"{error.filename}: " if error.filename else ""  # a path that may not be read, or is of the wrong kind
    do = "; make room there, and give the same command again" if error.errno in disk.FULL else ""
    say(f"error: {_short(f'{where}{error.strerror or error}')}{do}")
    return DataError.exit_code


class _Talk(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


# Long work logs its progress here; a command that prints JSON does not show it.
_LOG = logging.getLogger("sextant")
_LOG.addHandler(_Talk())


def say(text: str, to: TextIO | None = None) -> None:
    """Print one line on stderr, or `to` another stream; nothing happens when it is closed."""
    if (stream := to or sys.stderr) is not None:  # print() would take stdout instead
        with suppress(OSError, ValueError):
            print(clean(text), file=stream, flush=True)


def _short(text: str, most: int = 1000) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


AT_END = list[Callable[[], object]]()  # what closes the files that a command has opened, however it ends


def run_and_leave(parser: Parser, command: Callable[[argparse.Namespace], int]) -> NoReturn:
    """Run a command as the whole process, and exit; after an interrupt, without waiting for its threads."""
    code = interrupts.run(lambda: run_command(parser, command))
    if code is None:
        last = threading.Thread(target=_last_words, daemon=True)
        last.start()
        last.join(interrupts.UNHEARD)  # nobody may be reading, and a file may be locked
    if code in (None, INTERRUPTED):
        os._exit(INTERRUPTED)  # Python would wait for the threads of a graph, which may be in the middle of a call
    sys.exit(code)


def _last_words() -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h")  # a bar that was cut off has hidden the cursor
    say("interrupted")
    _close_all()


def _close_all() -> None:
    with suppress(IndexError):
        while True:
            AT_END.pop()()


def put_out(text: str, kept: str = "") -> None:
    """Write the command's result on stdout.

    DataError when it cannot be written, e.g. on a full disk, or RunIncomplete where it is also `kept`, e.g. "in the run
    folder". A reader that has gone, as in `| head`, is no error, and neither is a closed stdout.
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain once more on exit, when it flushes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, UnicodeEncodeError) as error:
        sys.stdout = None  # for the same reason
        if kept:
            raise RunIncomplete(f"the result cannot be printed ({error}); it is {kept}") from None
        raise DataError(f"the result cannot be printed ({error})") from None
