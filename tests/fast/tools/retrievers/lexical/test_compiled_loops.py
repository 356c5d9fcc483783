"""Machine code of loops on disk: whatever becomes of its files, a loop gives its result."""

import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from conftest import ROOT

from sextant.tools.retrievers.lexical import compiled_loops
from sextant.tools.retrievers.lexical.compiled_loops import array_at, compile_loop


class Table(NamedTuple):
    keys: np.ndarray
    values: np.ndarray


@compile_loop()
def double(number):
    """A loop that another one calls."""
    return 2 * number


@compile_loop()
def total(table, factor, start, out):
    """A loop to be compiled."""
    result = start
    for n in range(len(table.keys)):
        out[n] = factor * table.values[table.keys[n]]
        result += double(table.keys[n])
    return result, len(out)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled_loops, "code_folders", lambda: [tmp_path])
    return tmp_path


def call(loop=total, kind=np.int64):
    table = Table(np.array([2, 0], dtype=kind), np.array([0.5, 1.5, 2.5], dtype=np.float32))
    out = np.zeros(2)
    fresh = compile_loop()(loop._function)
    result = fresh(table, 0.5, True, out)
    return *result, out.tolist()


def test_a_loop_takes_tables_fractions_and_truth_values_and_calls_another(folder):
    assert call() == (5, 2, [1.25, 0.25])
    assert call(kind=np.int32) == call(), "compiled again for another type"
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("size", [0, 40, 400])
def test_a_truncated_file_is_made_again(folder, size):
    expected = call()
    [file] = folder.iterdir()
    file.write_bytes(file.read_bytes()[:size])
    assert call() == expected and len(file.read_bytes()) > size


def test_changed_bytes_are_noticed(folder):
    expected = call()
    [file] = folder.iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert call() == expected


def test_a_folder_that_cannot_be_written_is_done_without(folder):
    expected = call()
    [file] = folder.iterdir()
    file.unlink()
    file.mkdir()
    assert call() == expected


def test_a_loop_that_makes_an_array_is_refused(folder):
    def zeros(out):
        out[:] = np.zeros(len(out))

    with pytest.raises(Exception, match="zeros"):
        compile_loop()(zeros)(np.ones(2))


def test_a_search_imports_neither_numba_nor_scipy():
    program = """
import sys
from sextant.tools.corpus import Corpus
from sextant.tools.records import Document
from sextant.tools.retrievers.lexical.bm25 import BM25
BM25(Corpus([Document("1", "a word")])).search("word", 1)
assert not {"numba", "scipy"} & set(sys.modules)
"""
    for _ in range(2):  # the first may have to compile
        process = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
        )
    assert process.returncode == 0, process.stderr


@compile_loop()
def sums(addresses, size, out):
    """A loop over arrays of which it is given the addresses."""
    for n in range(len(addresses)):
        numbers = array_at(addresses[n], size, np.uint16)
        for i in range(size):
            out[n] += numbers[i]


def test_a_loop_reads_any_number_of_arrays_by_their_addresses(folder):
    for count in (1, 3):
        arrays = [np.arange(n, n + 4, dtype=np.uint16) for n in range(count)]
        addresses = np.array([array.ctypes.data for array in arrays])
        out = np.zeros(count, np.int64)
        compile_loop()(sums._function)(addresses, 4, out)
        assert out.tolist() == [int(array.sum()) for array in arrays]
    assert len(list(folder.iterdir())) == 1, "it is compiled once"
