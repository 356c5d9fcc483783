"""Loops that numba compiles, and their machine code on disk."""

import os
import subprocess
import sys

import numba
import numpy as np
from conftest import ROOT

from sextant.tools.retrievers.lexical.compiled_loops import compile_loop, pointer_to


@compile_loop()
def sums(addresses, size, out):
    """A loop over arrays of which it is given the addresses."""
    for n in range(len(addresses)):
        numbers = numba.carray(pointer_to(addresses[n]), size, np.uint16)
        for i in range(size):
            out[n] += numbers[i]


def test_a_loop_reads_any_number_of_arrays_by_their_addresses():
    for count in (1, 3):
        arrays = [np.arange(n, n + 4, dtype=np.uint16) for n in range(count)]
        addresses = np.array([array.ctypes.data for array in arrays])
        out = np.zeros(count, np.int64)
        sums(addresses, 4, out)
        assert out.tolist() == [int(array.sum()) for array in arrays]


def test_a_later_process_finds_the_machine_code(tmp_path):
    program = """
import numpy
from sextant.tools.retrievers.lexical import numba_kernels
numba_kernels.rehash(numpy.full(2, -1, numpy.int32), numpy.zeros(1, numpy.int64), 1)
print(len(numba_kernels.rehash.stats.cache_hits))
"""
    hits = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert hits == ["0", "1"]
