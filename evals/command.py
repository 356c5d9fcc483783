"""What every command line shares: one-line errors, exit codes, argument types. Knows no command."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from tools.errors import INTERRUPTED, SextantError, UsageError


class Parser(argparse.ArgumentParser):
    """argparse that says what is wrong in one line, and takes no abbreviated options."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(
            **{"allow_abbrev": False, "formatter_class": argparse.ArgumentDefaultsHelpFormatter, **kwargs}  # type: ignore[arg-type]
        )

    def error(self, message: str) -> NoReturn:
        """Exit code 2, without the usage block; --help has that."""
        raise UsageError(f"{message}; see --help")


def positive(text: str) -> int:
    """An argument type: a whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def dollars(text: str) -> float:
    """An argument type: an amount above 0."""
    try:
        amount = float(text)
    except ValueError:
        amount = 0.0
    if not amount > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount above 0")
    return amount


def clean(text: str) -> str:
    """`text` without control characters: it cannot move the cursor or colour the screen."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "\N{REPLACEMENT CHARACTER}", text)


def run_command(
    parser: Parser,
    command: Callable[[argparse.Namespace], int],
    arguments: Sequence[str] | None = None,
) -> int:
    """Parse, run, and turn every deliberate error into one line on stderr and its exit code."""
    try:
        return command(parser.parse_args(arguments))
    except SextantError as error:
        print(f"error: {clean(' '.join(str(error).split()))}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone, as in `| head`; Python would complain once more on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
