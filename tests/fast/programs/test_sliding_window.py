"""The sliding window: whatever the model answers, a permutation; against RankGPT's own loop; and call by call."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_server import ids, prompts

from programs.rank import Rank, slide
from tools.corpus import Corpus
from tools.models import lm
from tools.records import Document, Query
from tools.retrievers.bm25 import BM25
from tools.session import Toolbox

SIZES = st.tuples(st.integers(0, 70), st.integers(2, 21), st.integers(1, 21)).filter(lambda size: size[2] <= size[1])


def names(count):
    return [f"d{number:03}" for number in range(count)]


@given(SIZES, st.randoms(use_true_random=False))
def test_a_pass_of_the_window_is_a_permutation_whatever_the_model_answers(size, rng):
    count, window, step = size

    def sloppy(shown):
        return rng.choices([*shown, "invented"], k=rng.randint(0, 2 * len(shown)))

    assert sorted(slide(names(count), sloppy, window, step)) == names(count)


def rankgpt(order, worth, window, step):
    """RankGPT's loop over [start, end), for a model that orders by `worth`; its last window begins at the top."""
    order, windows = list(order), []
    start, end = max(0, len(order) - window), len(order)
    while True:
        windows.append(end - start)
        order[start:end] = sorted(order[start:end], key=worth.index)
        if start == 0:
            return order, windows
        start, end = max(0, start - step), end - step


@given(SIZES, st.integers())
def test_a_pass_of_the_window_is_rankgpt_s_with_as_many_calls_as_the_formula_says(size, seed):
    count, window, step = size
    worth, asked = names(count), []
    random.Random(seed).shuffle(worth)

    def rank_window(shown):
        asked.append(len(shown))
        return sorted(shown, key=worth.index)

    made = slide(names(count), rank_window, window, step)
    expected, windows = rankgpt(names(count), worth, window, step)
    assert made == expected
    assert asked == [size for size in windows if size > 1]
    assert len(windows) == (math.ceil((count - window) / step) + 1 if count > window else 1)
    assert made[: window - step] == worth[: window - step], "a model that is always right brings the best to the top"


QUERY = Query("q1", "ferry", "hearings", candidates=frozenset(names(7)))


@pytest.fixture
def toolbox():
    # The shorter a text, the further up: the retriever's order is that of the numbers.
    corpus = Corpus(Document(doc_id, "ferry" + " port" * n) for n, doc_id in enumerate(names(9)))
    return Toolbox(corpus, BM25(corpus))


def answer(toolbox, server, query=QUERY, **parameters):
    with lm.connect(server.spec).active():
        return Rank(toolbox, **parameters)(query=query)


def test_windows_are_shown_from_the_end_of_the_retriever_s_order_to_its_beginning(toolbox, server):
    server.answer = lambda prompt: {"ranked": json.dumps(sorted(ids(prompt), reverse=True))}
    submission = answer(toolbox, server, window=4, step=2)
    assert [ids(prompt) for prompt in prompts(server)] == [
        ["d003", "d004", "d005", "d006"],
        ["d001", "d002", "d006", "d005"],
        ["d000", "d006", "d005"],
    ]
    assert submission.ranking == ("d006", "d005", "d000", "d002", "d001", "d004", "d003")
    tools = [(step.hop, step.tool) for step in submission.trace.steps]
    assert tools == [(1, "search"), (2, "judge"), (2, "judge"), (2, "judge"), (2, "rank"), (2, "stop")]
    assert submission.trace.steps[-2].doc_ids == submission.ranking


def test_candidates_that_the_retriever_does_not_find_follow_by_id(toolbox, server):
    server.answer = lambda prompt: {"ranked": json.dumps(ids(prompt))}
    query = Query("q1", "port", candidates=frozenset({"d008", "d000", "d002"}), excluded=frozenset({"d002"}))
    assert answer(toolbox, server, query).ranking == ("d008", "d000")
