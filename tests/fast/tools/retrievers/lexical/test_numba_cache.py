"""The cache of compiled loops: whatever becomes of its files, a loop gives its result."""

import numba
import pytest

from tools.retrievers.lexical.numba_cache import compile_loop


def total(numbers):
    """A loop to be compiled."""
    result = 0
    for number in numbers:
        result += number
    return result


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert compile_loop()(total)((1, 2, 3)) == 6
    return tmp_path


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("size", [0, 40])
def test_a_truncated_cache_file_is_made_anew(cache, ending, size):
    for path in cache.rglob(f"*.{ending}"):
        with path.open("r+b") as file:
            file.truncate(size)
    assert compile_loop()(total)((1, 2, 3)) == 6
    again = compile_loop()(total)
    assert again((4, 5, 6)) == 15 and sum(again.stats.cache_hits.values()) == 1


def test_a_cache_file_that_cannot_be_written_is_done_without(cache):
    for path in list(cache.rglob("*.nb?")):
        path.unlink()
        path.mkdir()
    assert compile_loop()(total)((1, 2, 3)) == 6
