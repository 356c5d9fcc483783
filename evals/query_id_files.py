"""Files of query ids: `sextant compare ... --write-ids FILE` writes, `sextant run --query-ids FILE`
reads them.

An id a line, in UTF-8. Blank lines, and lines that begin with #, count for nothing.
"""

import argparse
from pathlib import Path

from sextant.tools.errors import UsageError
from sextant.tools.platform import files


def read_query_ids(path: str) -> list[str]:
    """Return the ids of a file, in its order. An argument type."""
    try:
        text = files.read_input(Path(path)).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise argparse.ArgumentTypeError(f"{path} is not UTF-8 text") from None
    query_ids = parse_query_ids(text)
    if not query_ids:
        raise argparse.ArgumentTypeError(f"{path} names no query; it has to have an id a line")
    return query_ids


def parse_query_ids(text: str) -> list[str]:
    """Return the ids of a text."""
    lines = [line.strip() for line in text.split("\n")]
    return [line for line in lines if line and not line.startswith("#")]


def write_query_ids(path: Path, query_ids: list[str], comment: str) -> None:
    """Write ids under a line of comment.

    UsageError, before anything is written, for an id that could not be read back.
    """
    if parse_query_ids("\n".join(query_ids)) != query_ids:
        raise UsageError(
            f"an id cannot be a line of {path}, as it begins with # or is blank; use --json"
        )
    path.write_text("\n".join([f"# {comment}", *query_ids, ""]), encoding="utf-8")
