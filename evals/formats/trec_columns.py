"""The columns of a TREC run file as arrays: five million lines take about a second of CPU if their
columns are one blank apart, else a few.

Blanks are ASCII's, and blank lines count for nothing. A fault is a ValueError that names no line;
RunFile (trec.py) reads a faulty file line by line to name it.
"""

import codecs
import io
import math
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sextant.environments.readers import raw_files
from sextant.tools.platform.interrupts import start_thread

_BLANKS = bytes.maketrans(b"\t\v\f\r", b"    ")
_BESIDE_TABS = (b" ", b"\v", b"\f", b"\r")
_SPACE = ord(" ")


class RunColumns(NamedTuple):
    """A run file; numbers are positions in the lists of ids, which are in the file's order."""

    query_numbers: NDArray[np.int32]
    document_numbers: NDArray[np.int32]
    scores: NDArray[np.float32]
    # The ids with the bytes of the file, each once.
    raw_queries: list[bytes]
    raw_documents: list[bytes]
    # The last column of the first line.
    tag: str


def read_columns(path: Path) -> RunColumns:
    """Read a run file, packed or not. ValueError or DataError for a file that is none."""
    import pyarrow  # here, because exporting needs none

    tag = b""
    queries = []
    documents = []
    scores = []
    for block, table in _parse_blocks(path):
        if not len(table):
            continue
        tag = tag or _first_tag(block)
        queries += table["query"].chunks
        documents += table["document"].chunks
        scores.append(_single_precision(table["score"]))
    if not scores:
        raise ValueError("it has no lines")
    query_column = pyarrow.chunked_array(queries).unify_dictionaries()
    document_column = pyarrow.chunked_array(documents).unify_dictionaries()
    return RunColumns(
        _numbers(query_column),
        _numbers(document_column),
        np.concatenate(scores),
        query_column.chunk(0).dictionary.to_pylist(),
        document_column.chunk(0).dictionary.to_pylist(),
        tag.decode("utf-8", "replace"),
    )


def parse_score(text: bytes) -> float:
    """Return a score in double precision; ValueError unless it is a finite number."""
    score = float(text)
    if not math.isfinite(score) or b"_" in text:
        raise ValueError("it is no finite number")
    return score


def _parse_blocks(path: Path) -> Iterator[tuple[bytes, Any]]:
    """Yield blocks of lines with their tables; a block is parsed while the next is read."""
    before: tuple[bytes, Future[Any]] | None = None
    for block in _single_blanks(path):
        if not block or block.isspace():
            continue
        parsing = start_thread(partial(_read_block, block))  # gives Python's lock away
        if before:
            yield before[0], before[1].result()
        before = block, parsing
    if before:
        yield before[0], before[1].result()


def _single_blanks(path: Path) -> Iterator[bytes]:
    """Yield blocks of lines whose columns are one space apart, or, in all of a block, one tab."""
    for number, block in enumerate(raw_files.read_blocks(path)):
        if not block.isascii():
            block.decode()  # UnicodeDecodeError is a ValueError
            block = block.removeprefix(codecs.BOM_UTF8)
            # Files that were put together have a mark at each joint.
            block = block.replace(b"\n" + codecs.BOM_UTF8, b"\n")
        if number == 0 and block.startswith((b"{", b"[")):
            raise ValueError("it is JSON")
        if any(blank in block for blank in _BESIDE_TABS):
            block = block.translate(_BLANKS)
        yield _squeeze(block)


def _squeeze(block: bytes) -> bytes:
    """Drop repeated blanks, and those at the start and the end of lines."""
    characters = np.frombuffer(block, np.uint8)
    maybe_blank = characters <= _SPACE
    if not maybe_blank[0] and not (maybe_blank[1:] & maybe_blank[:-1]).any():
        return block
    lines = [b" ".join(line.split()) for line in block.split(b"\n")]
    return b"\n".join(lines)


def _read_block(block: bytes) -> Any:
    """Return a block's queries, documents and scores as a table of Arrow.

    Scores are texts if one of them is no number as Arrow reads it, such as "+1.5".
    """
    import pyarrow as arrow  # here, because exporting needs none

    try:
        return _parse_block(block, arrow.float64())
    except arrow.ArrowInvalid:
        return _parse_block(block, arrow.string())


def _parse_block(block: bytes, score_type: Any) -> Any:
    import pyarrow as arrow  # here, because exporting needs none
    import pyarrow.csv as arrow_csv  # as above

    ids = arrow.dictionary(arrow.int32(), arrow.binary())
    types = {"query": ids, "document": ids, "score": score_type}
    return arrow_csv.read_csv(
        arrow.BufferReader(block),
        read_options=arrow_csv.ReadOptions(
            column_names=["query", "Q0", "document", "rank", "score", "tag"],
            block_size=len(block),
        ),
        parse_options=arrow_csv.ParseOptions(
            delimiter=" " if b" " in block else "\t",
            quote_char=False,
            escape_char=False,
            # Unicode has more blanks than ASCII.
            invalid_row_handler=lambda row: "error" if row.text.strip() else "skip",
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=[],
        ),
    )


def _first_tag(block: bytes) -> bytes:
    for line in io.BytesIO(block):
        fields = line.split()
        if len(fields) == 6:
            return fields[5]
    return b""


def _single_precision(column: Any) -> NDArray[np.float32]:
    if column.type == "string":
        texts = column.to_pylist()
        scores = np.array([parse_score(text.encode()) for text in texts])
    else:
        scores = _as_array(column)
    if not np.isfinite(scores).all():
        raise ValueError("a score is no finite number")
    with np.errstate(over="ignore"):  # infinite in single precision, as trec_eval has it
        singles: NDArray[np.float32] = scores.astype(np.float32)
    return singles


def _numbers(column: Any) -> NDArray[np.int32]:
    """Return the numbers of a column whose chunks share a dictionary."""
    return np.concatenate([np.from_dlpack(chunk.indices) for chunk in column.chunks])


def _as_array(column: Any) -> NDArray[np.float64]:
    # Arrow's own to_numpy imports pandas where it is installed, which takes half a second.
    return np.concatenate([np.from_dlpack(chunk) for chunk in column.chunks])
