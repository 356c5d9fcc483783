"""The common part of all commands: argument types, short errors, exit codes and progress.

Signals are handled in tools/platform/interrupts.py, numbers are written in tools/platform/number_format.py.
"""

import argparse
import codecs
import ctypes
import difflib
import gc
import io
import json
import logging
import math
import os
import re
import shutil
import sys
import textwrap
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NoReturn, TextIO, TypeVar

from sextant.tools.errors import (
    INTERRUPTED,
    DataError,
    RunIncomplete,
    SextantError,
    UnknownName,
    UsageError,
    check_docstrings,
)
from sextant.tools.platform import files
from sextant.tools.platform.interrupts import (
    UNHEARD,
    check_interrupts,
    is_interrupted,
    run_in_thread,
)
from sextant.tools.platform.number_format import duration
from sextant.tools.platform.wrapping import command_lines, named_width, paragraph

T = TypeVar("T")
Number = TypeVar("Number", int, float)
Command = Callable[[argparse.Namespace], int]

# Functions that close the files of a command, however it ends.
AT_END = list[Callable[[], object]]()

# Characters of a line of a terminal that does not say how wide it is, as argparse has it.
WIDTH = 80

# Variables that a command sets before it imports the libraries that look at them, unless the user
# has; what a run changes from Python: tools/process_changes.py.
_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else LiteLLM downloads prices as it is imported
    "OPENBLAS_NUM_THREADS": "1",  # idle threads would spin
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",  # the bars of DSPy, GEPA and others
}

# Long work logs here; a command that prints JSON does not show it.
_LOG = logging.getLogger("sextant")
_QUIET_SECONDS = 5.0  # shorter work shows no progress in a log
_TERMINAL_SECONDS = 2.0  # nor on a terminal
_LINE_SECONDS = 30.0  # between two lines of progress, in a log
_BAR_SECONDS = 0.2  # between two bars, on a terminal

# The stream of results, if other output goes to stderr.
_results = list[TextIO | None]()
_bar = False  # whether the last line of the terminal is a bar
_printed_at = 0.0  # when a line or a bar of ours was last written on stderr, by the monotonic clock


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str | None:
        empty = action.default is None or action.default is False or action.default in ("", [])
        is_named = "default:" in (action.help or "")  # in words of its own
        return action.help if empty or is_named else super()._get_help_string(action)

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Leave paths and other long words whole, which argparse would break at hyphens or
        anywhere.
        """
        return textwrap.wrap(
            " ".join(text.split()), width, break_long_words=False, break_on_hyphens=False
        )


class CommandParser(argparse.ArgumentParser):
    """argparse with errors of a line that offer the nearest name, without abbreviated options, and no
    option loses its first value.

    argparse makes the `prog` of a sub-command from the `prog` of its parent and its name.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _Help, **kwargs})
        self.lists = set[str]()  # options that take a list, with commas between its values
        self._given = dict[tuple[str, str], Any]()
        self._typed = list[str]()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line, in which an option may have a single value; an unknown word is an error."""
        self._given.clear()
        self._typed = sys.argv[1:] if args is None else list(args)
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            kind = f"value of {action.option_strings[0]}" if action.option_strings else "command"
            raise UnknownName(kind, value, action.choices)

    def _get_values(self, action: argparse.Action, arg_strings: Any) -> Any:
        """Return an option's value. UsageError if the option means several things and had another value before.

        That is an option that takes a list (`--task a --task b` would run b alone), and a name given
        two values (`-P hops=2 -P hops=3`). Of any other option the last value counts, as usual.
        """
        values = super()._get_values(action, arg_strings)
        is_pair = isinstance(values, tuple) and isinstance(action, argparse._AppendAction)  # noqa: SLF001  # as above
        option = next(iter(action.option_strings), "")
        if is_pair or option in self.lists:
            name, value = values if is_pair else ("", values)
            before = self._given.setdefault((option, name), value)
            if before != value:
                remedy = "" if is_pair else f", as {option} {before},{value}"
                raise UsageError(
                    f"{f'{option} {name}'.strip()} is given twice, as {str(before)!r:.100} and as "
                    f"{str(value)!r:.100}; give it once{remedy}"
                )
        return values

    def error(self, message: str) -> NoReturn:
        """Raise UsageError, for exit code 2 without the usage block; first for an option that is unknown."""
        for word in self._typed:
            option = word.partition("=")[0]
            if option.startswith("--") and option not in self._option_string_actions:
                near = difflib.get_close_matches(option, self._option_string_actions, 1, 0.7)
                hint = f"did you mean {near[0]}?" if near else "see --help"
                raise UsageError(f"{self.prog} has no option {option}; {hint}")
        raise UsageError(f"{message}; see --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print --help; argparse would ignore an error."""
        print_stdout(message)


def _number(
    read: Callable[[str], Number], fits: Callable[[Number], bool], requirement: str
) -> Callable[[str], Number]:
    def argument(text: str) -> Number:
        with suppress(ValueError):
            if fits(number := read(text)):
                return number
        raise argparse.ArgumentTypeError(f"{text!r} is not {requirement}")

    return argument


positive = _number(int, lambda number: number >= 1, "a whole number of at least 1")
port = _number(int, lambda number: 0 <= number <= 65535, "a port from 0 to 65535")
dollars = _number(float, lambda amount: 0 < amount < math.inf, "an amount above 0")
cost = _number(float, lambda amount: 0 <= amount < math.inf, "an amount of at least 0")
grade = _number(float, lambda number: 0 < number < math.inf, "a grade above 0")
share = _number(float, lambda number: 0 < number <= 1, "a number above 0, to 1")
temperature = _number(float, lambda number: 0 <= number <= 2, "a number from 0 to 2")


def clock(text: str) -> float:
    """Read a time above 0, as 90, 90s, 30m or 2h; return seconds. An argument type."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not match or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time above 0, as 90s, 30m or 2h")
    return float(match[1]) * {"m": 60.0, "h": 3600.0}.get(match[2], 1.0)


def spell_in(encoding: str, text: str) -> str:
    """Return text as a stream of this encoding shows it, with similar signs in place of signs that
    it lacks.
    """
    return text.encode(encoding, _SPELLING).decode(encoding)


def _spell(error: UnicodeError) -> tuple[str, int]:
    """Write signs that an encoding lacks: lines and bars with similar signs, other signs by their
    number, as in Python.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_spell_sign, error.object[error.start : error.end])), error.end


def _spell_sign(sign: str) -> str:
    if sign in _SIGNS:
        return _SIGNS[sign]
    name = unicodedata.name(sign, "")
    if name.startswith("BOX DRAWINGS"):
        if " AND " in name:
            return "+"
        return "-" if name.endswith("HORIZONTAL") else "|"
    return "#" if name.endswith("BLOCK") else sign.encode("ascii", "backslashreplace").decode()


# A sign for each, so that columns stay where they are. The ellipsis is rich's, where a cell is cut.
_SIGNS = {"\N{HORIZONTAL ELLIPSIS}": "~", "\N{DAGGER}": "*", "\N{REPLACEMENT CHARACTER}": "?"}
_SIGNS |= dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-")  # dashes and the minus
_SIGNS |= {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'}
_SPELLING = "sextant.spelling"
codecs.register_error(_SPELLING, _spell)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal that can be drawn on."""
    return (
        stream is not None
        and not stream.closed
        and stream.isatty()
        and os.environ.get("TERM") != "dumb"
    )


def run_and_leave(parser: CommandParser, command: Command) -> NoReturn:
    """Run a command as the whole process, and exit; after an interrupt, without waiting for
    its threads.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Seldom: modules and corpora make a million objects that stay.
    gc.set_threshold(50_000, 20, 50)
    _fill_closed_descriptors()
    # Libraries give the root logger a handler of its own, and every line would come twice.
    _LOG.propagate = False
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_SPELLING)
    guard_prints()
    code = run_in_thread(lambda: run_command(parser, command))
    if code is None:
        last = threading.Thread(target=_say_last_words, daemon=True)
        last.start()
        last.join(UNHEARD)  # the reader may be gone, and a file may be locked
    if code in (None, INTERRUPTED):
        # Python would wait for the threads of a graph, which may be in the middle of a call.
        os._exit(INTERRUPTED)
    sys.exit(code)


class _Guarded(io.TextIOBase):
    """A standard stream for libraries and users' programs, which may print texts of others.

    On a terminal, control characters are replaced, but for line ends and tabs. No writer fails
    because the reader has gone.
    """

    def __init__(self, stream: TextIO) -> None:
        self.own = stream  # as it is, for what we write ourselves
        self._cleans = is_terminal(stream) or stream.isatty()

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self.own.write(
                re.sub(r"[^\n\r\t]+", lambda match: strip_control_characters(match[0]), text)
                if self._cleans
                else text
            )
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self.own.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    # What TextIOBase has itself is not asked of __getattr__.
    encoding: Any = property(lambda self: self.own.encoding)
    errors: Any = property(lambda self: self.own.errors)
    closed: Any = property(lambda self: self.own.closed)

    def isatty(self) -> bool:
        return self.own.isatty()

    def fileno(self) -> int:
        return self.own.fileno()

    def writable(self) -> bool:
        return True


def guard_prints() -> None:
    """Guard standard output and error, also if a table on the terminal has replaced them with its
    own streams.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Guarded):
            setattr(sys, name, _Guarded(stream))


def own_stream(stream: TextIO | None) -> TextIO | None:
    """Return a standard stream without the guard against texts of others, for drawing on
    the terminal.
    """
    return stream.own if isinstance(stream, _Guarded) else stream


def _fill_closed_descriptors() -> None:
    """Open standard streams that are closed (`>&-`) on nothing: otherwise the next file that is
    opened gets the number of a standard stream.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


@contextmanager
def _divert_prints() -> Iterator[None]:
    """Have stderr take what programs print, also in C and in other processes: it is no part of the result."""
    before = sys.stdout
    results: Any = own_stream(before)
    descriptor = None
    with suppress(AttributeError, OSError, ValueError):  # of a stream that is no file
        if results.fileno() == 1:
            results.flush()
            descriptor = os.dup(1)
            os.dup2(2, 1)
            results = os.fdopen(descriptor, "w", encoding=results.encoding, errors=results.errors)
    _results.append(results)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = before if _results.pop() else None
        if descriptor is not None:
            ctypes.CDLL(None).fflush(None)  # what C has not written yet
            os.dup2(descriptor, 1)
            with suppress(OSError):  # print_stdout has said so
                results.close()


def run_command(
    parser: CommandParser, command: Command, arguments: Sequence[str] | None = None
) -> int:
    """Parse the arguments, run the command, and turn an error into a line on stderr and its exit
    code.
    """
    open_before = len(AT_END)
    diverted = ExitStack()
    try:
        try:
            typed = sys.argv[1:] if arguments is None else arguments
            # Some options are in modules that take long to import.
            _LOG.setLevel(logging.WARNING if "--json" in typed else logging.INFO)
            parsed = parser.parse_args(arguments)
            check_docstrings()
            quiet = getattr(parsed, "json", False) or getattr(parsed, "json_events", False)
            _LOG.setLevel(logging.WARNING if quiet else logging.INFO)
            if quiet:
                diverted.enter_context(_divert_prints())
            return command(parsed)
        except (SextantError, OSError) as error:
            if is_interrupted():
                raise KeyboardInterrupt from error
            return report_error(error)
        finally:
            _close_files(open_before)
            diverted.close()
    except KeyboardInterrupt:
        print_stderr("interrupted")
        return INTERRUPTED


def report_error(error: SextantError | OSError) -> int:
    """Print an error in a line on stderr; return its exit code."""
    text = " ".join(str(error).split())
    remedy = ""
    if isinstance(error, OSError):  # a path that may not be read, or is of the wrong kind
        text = files.describe(error)
        if error.errno in files.FULL:
            remedy = "; make room there, and give the same command again"
        elif error.errno in files.TOO_MANY_OPEN:
            remedy = f"; {files.remedy(error)}, and give the same command again"
    with suppress(OSError):  # there may be no working folder any more
        text = text.replace(f"{os.getcwd()}{os.sep}", "")  # noqa: PTH109  # not for pathlib
    short = text if len(text) <= 1000 else f"{text[:500]} ... {text[-500:]}"
    # In a file or a pipe an error is one line, whatever $COLUMNS says.
    print_stderr(f"error: {short}{remedy}", whole=not is_terminal(sys.stderr))
    return DataError.exit_code if isinstance(error, OSError) else error.exit_code


def _say_last_words() -> None:
    if (stream := own_stream(sys.stderr)) and is_terminal(stream):
        stream.write("\x1b[?25h")  # a bar that was cut off has hidden the cursor
    print_stderr("interrupted")
    _close_files()


def _close_files(open_before: int = 0) -> None:
    """Close the files that were opened after the first `open_before`, the last first."""
    with suppress(IndexError):  # two threads may be at it
        while len(AT_END) > open_before:
            AT_END.pop()()


def strip_control_characters(text: str) -> str:
    """Replace control characters, which could colour the screen, and lone surrogates, which
    no stream accepts.
    """
    unsafe = r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
    return re.sub(unsafe, "\N{REPLACEMENT CHARACTER}", text)


def line_width(stream: TextIO | None) -> int | None:
    """Return the characters of a line on a stream; None in a file or a pipe, if $COLUMNS says none."""
    if named := named_width():
        return named
    if not is_terminal(stream):
        return None
    return shutil.get_terminal_size().columns or WIDTH


def print_stderr(text: str, to: TextIO | None = None, *, whole: bool = False) -> None:
    """Print a line on stderr, in place of a bar, or `to` another stream; nothing happens when it is
    closed.

    It is broken between words at the width of a terminal, unless it has to stay `whole`.
    """
    global _bar, _printed_at
    _printed_at = time.monotonic()
    if (stream := own_stream(to or sys.stderr)) is not None:  # print() would take stdout instead
        over = "\r\x1b[K" if _bar else ""
        _bar = False
        with suppress(OSError, ValueError):
            lines = strip_control_characters(text)
            if not whole:
                lines = paragraph(lines, line_width(stream))
            # In one write, as print() writes the end of the line apart and threads come between.
            stream.write(f"{over}{lines}\n")
            stream.flush()


def draw_line(title: str, text: str) -> None:
    """Write a title and a text on the terminal over the last line that was drawn; what has no room is cut off."""
    width = shutil.get_terminal_size().columns - 1
    _overwrite(f"{strip_control_characters(title)}{text}"[:width])


def erase_line() -> None:
    """Remove a bar or a line that was drawn, if nothing was printed since."""
    if _bar:
        _overwrite("")


def _overwrite(text: str) -> None:
    """Write over the line that was drawn last; an empty text leaves none."""
    global _bar
    stream = own_stream(sys.stderr) or sys.stderr
    with suppress(OSError, ValueError):
        stream.write(f"\r{text}\x1b[K")
        stream.flush()
    _bar = bool(text)


def last_output() -> float:
    """Return when we last wrote on stderr, by the monotonic clock."""
    return _printed_at


def shows_progress() -> bool:
    """Return whether a person reads stderr, and not only JSON is wanted."""
    return sys.stderr is not None and _LOG.isEnabledFor(logging.INFO)


def draws_on_stderr() -> bool:
    """Return whether stderr is a terminal that nothing else draws on, as the table of a run does."""
    return own_stream(sys.stderr) is sys.__stderr__ and is_terminal(sys.stderr)


class _LogHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_stderr(record.getMessage())


_LOG.addHandler(_LogHandler())


def print_stdout(text: str, kept: str = "") -> None:
    """Write the command's result on stdout. A reader that has gone, as in `| head`, and a closed
    stdout are no errors.

    DataError if it cannot be written, or RunIncomplete if it is also `kept` elsewhere, e.g. "in
    the run folder".
    """
    if (out := own_stream(_results[0] if _results else sys.stdout)) is None:
        return
    try:
        out.write(text)
        out.flush()
    except BrokenPipeError:
        # Python would complain once more on exit, when it flushes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    except (OSError, UnicodeEncodeError) as error:
        # for the same reason
        _results[:] = [None for _ in _results]
        sys.stdout = None
        error_type, hint = (RunIncomplete, f"; it is {kept}") if kept else (DataError, "")
        raise error_type(f"the result cannot be printed ({error}){hint}") from None


def add_json_option(parser: Any) -> None:
    """Add --json to a parser, or to a group of its options."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else"
    )


def print_json(result: object, kept: str = "") -> None:
    """Write the command's result on stdout as JSON in a line; `kept` is as of `print_stdout`."""
    print_stdout(json.dumps(result) + "\n", kept)


def print_result(result: T, render: Callable[[T], str], *, as_json: bool) -> None:
    """Write the command's result on stdout, as JSON in a line or as a person reads it."""
    if as_json:
        print_json(result)
    else:
        print_stdout(render(result))


def fit_line(text: str) -> str:
    """Return a line of output, broken between words at the width of stdout."""
    return paragraph(strip_control_characters(text), line_width(sys.stdout))


def print_command(lead: str, command: str) -> None:
    """Write a command after its lead on stdout, so that it can be copied."""
    for line in command_lines(lead, command, line_width(sys.stdout)):
        print_stdout(f"{strip_control_characters(line)}\n")


class Progress:
    """Counts the finished part of `total`, e.g. `Progress("dense", 28_315)`; threads may share it.

    After two seconds a terminal has a bar; after five a log has a line, and then every half minute:
    "dense: 12,288 of 28,315 documents, 31.2 a second, 8 min 34 s left".
    `done` is the part from before an interruption, which does not count for the speed.
    """

    def __init__(
        self,
        what: str,
        total: int,
        unit: str = "documents",
        done: int = 0,
    ) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._before = self.done = done
        self._started = time.monotonic()
        # Shorter work shows nothing.
        self._quiet = _TERMINAL_SECONDS if draws_on_stderr() else _QUIET_SECONDS
        self._next = self._started + self._quiet  # when something is shown
        self._lock = threading.Lock()

    def add(self, n: int = 1) -> None:
        """Count `n` more as done. KeyboardInterrupt after a signal."""
        global _printed_at
        check_interrupts()
        with self._lock:
            self.done += n
            time_now = time.monotonic()
            finished = self.done >= self._total
            if not n or time_now < (self._started + self._quiet if finished else self._next):
                return
            # The table of a run puts another stream in its place, for lines above it.
            draws = draws_on_stderr() and not finished and _LOG.isEnabledFor(logging.INFO)
            self._next = time_now + (_BAR_SECONDS if draws else _LINE_SECONDS)
            speed = (self.done - self._before) / (time_now - self._started)
            rate = f"{speed:,.{1 if speed < 100 else 0}f} a second"
            remaining = (
                f", {duration((self._total - self.done) / speed)} left"
                if speed > 0 and not finished
                else ""
            )
            text = f"{self.done:,} of {self._total:,} {self._unit}, {rate}{remaining}"
            if draws:
                draw_line(self._what, f": {text}")
                _printed_at = time_now
            else:
                _LOG.info(f"{self._what}: {text}")
