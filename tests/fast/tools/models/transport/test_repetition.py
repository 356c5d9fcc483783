"""Texts that repeat themselves at their end, beside a search that tries every part."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sextant.tools.models.transport.streams import (
    LONGEST_PART,
    REPEATS,
    SHORTEST,
    WINDOW,
    cut_loop,
    find_loop,
)

LETTERS = st.text(st.sampled_from("ab "), max_size=60)


def find_slowly(text, shortest):
    """The length of the shortest part, by trying all of them."""
    tail = text[-WINDOW:]
    for length in range(1, LONGEST_PART + 1):
        needed = max(shortest, REPEATS * length)
        if needed <= len(tail):
            end = tail[-needed:]
            if all(end[i] == end[i + length] for i in range(needed - length)):
                return length
    return None


@given(LETTERS, LETTERS.filter(bool), st.integers(0, 40), st.integers(0, 60))
def test_a_loop_is_found_where_a_slow_search_finds_one(before, part, repeats, more):
    text = before + part * repeats + part[:more]
    for shortest in (100, SHORTEST):
        loop = find_loop(text, shortest)
        assert (loop and loop.length) == find_slowly(text, shortest)


@given(LETTERS, st.integers(0, 10**9), st.integers(1, LONGEST_PART), st.integers(0, 99))
def test_a_text_is_cut_to_one_occurrence_of_its_loop(before, seed, length, more):
    drawn = random.Random(seed)
    part = "".join(drawn.choice("abcdefgh, ") for _ in range(length))
    repeated = part * max(REPEATS, -(-SHORTEST // length))
    text = before + repeated + part[:more]
    cut = cut_loop(text)
    assert text.startswith(cut)
    assert len(cut) <= len(before) + 2 * length
    assert find_loop(text) is not None


LEGITIMATE = {
    "ids": json.dumps([f"CHRG-117hhrg{number}" for number in range(400)]),
    "rows": json.dumps([{"id": str(n), "grade": 0, "evidence": "nothing"} for n in range(100)]),
    "table": "| name | kind |\n" + "|---|---|\n" * 20 + "| a | b |\n" * 30,
    "ruler": "Report\n" + "=" * 400,
    "code": "\n".join(f"    values[{n}] = read(source, {n})" for n in range(200)),
    "chorus": "\n".join(["Row, row, row your boat, gently down the stream."] * 3) * 3,
    "counted": " ".join(map(str, range(2000))),
}


@pytest.mark.parametrize("text", LEGITIMATE.values(), ids=LEGITIMATE.keys())
def test_a_text_whose_parts_only_resemble_each_other_has_no_loop(text):
    assert not any(find_loop(text[:end]) for end in range(1, len(text), 7))


@pytest.mark.parametrize(
    "part",
    [" ", "\n", "and on ", "The witness said so. ", '"D12", "D7", "D31", ', "x" * 700 + "y" * 700],
)
def test_loops_of_words_sentences_ids_and_blanks_are_found(part):
    text = "[[ ## search ## ]]\nflood relief " + part * (6000 // len(part) + REPEATS)
    assert find_loop(text).length <= len(part)
