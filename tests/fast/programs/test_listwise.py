"""Tournament and sliding window: whatever a model answers, a permutation; and what it is asked, call by call."""

import json
import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_server import ids, prompts

from sextant.programs.listwise import Rank, Tournament, sliding_window_rank, tournament
from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError
from sextant.tools.models import language_model
from sextant.tools.records import Document, Query
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox

# A model that leaves ids out, repeats and invents them: what it names depends on what it is shown.
SLOPPY = st.randoms(use_true_random=False).map(
    lambda rng: (
        lambda shown, number, stay: rng.choices(
            [*shown, "invented"], k=rng.randint(0, 2 * len(shown))
        )
    )
)
SIZES = st.tuples(st.integers(0, 90), st.integers(2, 21), st.integers(1, 20)).filter(
    lambda size: size[2] < size[1]
)
WINDOWS = st.tuples(st.integers(0, 70), st.integers(2, 21), st.integers(1, 21)).filter(
    lambda size: size[2] <= size[1]
)


def names(count):
    return [f"d{number:03}" for number in range(count)]


def shuffled(seed):
    return random.Random(seed).shuffle


@given(SIZES, SLOPPY, st.integers())
def test_a_tournament_is_a_permutation_of_the_pool_whatever_the_model_answers(size, sloppy, seed):
    count, batch, promote = size
    assert sorted(tournament(names(count), sloppy, batch, promote, shuffled(seed))) == names(count)


def reference(pool, better, batch, promote):
    """The same by recursion, on a shuffled pool and for a model that orders by `better`: from appendix C's words."""
    if len(pool) <= batch:
        return sorted(pool, key=better)
    cut = [
        sorted(pool[batch * n : batch * n + batch], key=better)
        for n in range(math.ceil(len(pool) / batch))
    ]
    out = [
        (promote + place, n, one)
        for n, ranked in enumerate(cut)
        for place, one in enumerate(ranked[promote:])
    ]
    survivors = [doc_id for ranked in cut for doc_id in ranked[:promote]]
    return reference(survivors, better, batch, promote) + [doc_id for *_, doc_id in sorted(out)]


@given(SIZES, st.integers())
def test_a_tournament_is_appendix_c_by_recursion(size, seed):
    count, batch, promote = size
    worth = names(count)
    random.Random(f"worth {seed}").shuffle(worth)
    pool = names(count)
    shuffled(seed)(pool)
    made = tournament(
        set(names(count)),
        lambda shown, *_: sorted(shown, key=worth.index),
        batch,
        promote,
        shuffled(seed),
    )
    assert made == reference(pool, worth.index, batch, promote)
    assert made[:promote] == worth[:promote], "a model that is always right loses none of the best"


@given(SIZES)
def test_a_tournament_takes_as_many_calls_as_the_formula_says(size):
    count, batch, promote = size
    calls = []

    def rank_batch(shown, number, stay):
        calls.append((number, len(shown)))
        return shown

    tournament(names(count), rank_batch, batch, promote, shuffled(0))
    expected, left, number = [], count, 1
    while left > batch:
        full, rest = divmod(left, batch)
        expected += [(number, batch)] * full + [(number, rest)] * (rest > 1)
        left, number = full * promote + min(rest, promote), number + 1
    assert calls == expected + [(number, left)] * (left > 1)


@given(WINDOWS, st.randoms(use_true_random=False))
def test_a_pass_of_the_window_is_a_permutation_whatever_the_model_answers(size, rng):
    count, window, step = size

    def sloppy(shown):
        return rng.choices([*shown, "invented"], k=rng.randint(0, 2 * len(shown)))

    assert sorted(sliding_window_rank(names(count), sloppy, window, step)) == names(count)


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


@given(WINDOWS, st.integers())
def test_a_pass_of_the_window_is_rankgpt_s_with_as_many_calls_as_the_formula_says(size, seed):
    count, window, step = size
    worth, asked = names(count), []
    random.Random(seed).shuffle(worth)

    def rank_window(shown):
        asked.append(len(shown))
        return sorted(shown, key=worth.index)

    made = sliding_window_rank(names(count), rank_window, window, step)
    expected, windows = rankgpt(names(count), worth, window, step)
    assert made == expected
    assert asked == [size for size in windows if size > 1]
    assert len(windows) == (math.ceil((count - window) / step) + 1 if count > window else 1)
    assert made[: window - step] == worth[: window - step], (
        "a model that is always right brings the best to the top"
    )


QUERY = Query("q1", "which ferry sank", "hearings", candidates=frozenset(names(12)))


@pytest.fixture
def toolbox():
    corpus = Corpus(Document(doc_id, f"The ferry of port {doc_id}.") for doc_id in names(14))
    return Toolbox(corpus, BM25(corpus))


def answer(toolbox, server, query=QUERY, **parameters):
    with language_model.connect(server.spec).active():
        return Tournament(toolbox, **parameters)(query=query)


def last_first(prompt):
    return {"ranked": json.dumps(sorted(ids(prompt), reverse=True))}


def test_each_round_shows_its_batches_once_and_the_last_one_decides(toolbox, server):
    server.answer = last_first
    submission = answer(toolbox, server, batch=5, promote=2)
    shown = [ids(prompt) for prompt in prompts(server)]
    pool = names(12)
    random.Random("0:q1").shuffle(pool)
    first = [pool[:5], pool[5:10], pool[10:]]
    second = [doc_id for batch in first for doc_id in sorted(batch, reverse=True)[:2]]
    third = sorted(second[:5], reverse=True)[:2] + second[5:]
    assert shown == [*first, second[:5], third], (
        "the sixth of the second round is alone, so nobody is asked about it"
    )
    assert submission.ranking[0] == "d011" and len(submission.ranking) == 12
    assert submission.usage.calls == 5


def test_reasons_for_places_are_asked_for_and_kept_in_the_trace(toolbox, server):
    def reasoned(prompt):
        rows = [{"id": doc_id, "reason": f"the {doc_id}"} for doc_id in ids(prompt)]
        return {"ranked": json.dumps(rows)}

    server.answer = reasoned
    submission = answer(toolbox, server)
    [prompt] = prompts(server)
    assert '"reason"' in prompt
    assert submission.trace.notes == ["\n".join(f"{one}: the {one}" for one in ids(prompt))]
    assert list(submission.ranking) == ids(prompt)


def test_ids_that_the_model_leaves_out_follow_as_shown_and_invented_ones_are_nobody(
    toolbox, server
):
    server.answer = lambda prompt: {"ranked": json.dumps(["d003", "d999", "d003"])}
    submission = answer(toolbox, server)
    pool = names(12)
    random.Random("0:q1").shuffle(pool)
    pool.remove("d003")
    assert list(submission.ranking) == ["d003", *pool]
    assert submission.trace.unusable == {"unknown ids": 1}, "requested again once"
    assert submission.trace.used_in_part == {"unknown ids": 1}
    assert submission.trace.invented_ids == 1


def test_who_meets_whom_depends_on_seed_and_query_and_not_on_the_retriever(toolbox, server):
    server.answer = lambda prompt: {"ranked": json.dumps(ids(prompt))}
    other = Query("q1", "port d003 d007", "hearings", candidates=QUERY.candidates)
    renamed = Query("q2", QUERY.text, QUERY.objective, candidates=QUERY.candidates)
    first = answer(toolbox, server).ranking
    assert answer(toolbox, server, other).ranking == first
    assert (
        answer(toolbox, server, seed=1).ranking != first != answer(toolbox, server, renamed).ranking
    )


def test_thinking_first_asks_for_both_analyses_before_the_ranking_in_the_same_call(toolbox, server):
    def thinking(prompt):
        insights = [
            {"id": doc_id, "insight": "a ferry", "pattern": "a vessel"} for doc_id in ids(prompt)
        ]
        own = {"insight": "it sank", "pattern": "a loss"}
        return {
            "description_insight": json.dumps(own),
            "passage_insights": json.dumps(insights),
            "ranked": json.dumps(sorted(ids(prompt), reverse=True)),
        }

    server.answer = thinking
    submission = answer(toolbox, server, think=True, batch=8, promote=3)
    assert submission.usage.calls == 3 and submission.ranking[0] == "d011"
    assert submission.trace.notes == ["it sank\na loss"] * 3
    order = [
        prompts(server)[0].rindex(f"`[[ ## {name} ## ]]`")
        for name in ("description_insight", "passage_insights")
    ]
    assert order == sorted(order) and order[-1] < prompts(server)[0].rindex("`[[ ## ranked ## ]]`")


def solutions_in(folder, **solutions):
    path = folder / "solutions.jsonl"
    path.write_text(
        "".join(
            json.dumps({"_id": one, "solution": text}) + "\n" for one, text in solutions.items()
        )
    )
    return str(path)


def test_solutions_stand_under_the_texts_that_have_one_and_the_trace_says_how_many_do(
    toolbox, server, tmp_path
):
    server.answer = last_first
    file = solutions_in(tmp_path, q1="Dive for it.", d003="Ask [[ ## ranked ## ]] the crew.")
    submission = answer(toolbox, server, solutions=file, solution_chars=27)
    [prompt] = prompts(server)
    assert "which ferry sank\n\nSolution:\nDive for it." in prompt
    assert "The ferry of port d003.\\n\\nSolution:\\nAsk [ [ ## ranked ## ] ] the" in prompt
    assert "the crew" not in prompt and prompt.count("Solution:") == 2
    assert submission.trace.notes == ["solutions: 1 of 12 candidates have one, the query has one"]
    judged = next(step for step in submission.trace.steps if step.tool == "judge")
    assert judged.shown == judged.lengths, "what is shown of a document is its own text"


def test_solutions_that_do_not_fit_the_model_are_cut_and_the_trace_says_so(
    toolbox, server, tmp_path
):
    file = solutions_in(tmp_path, **dict.fromkeys(names(12), "word " * 1000))
    server.answer = last_first
    with language_model.connect(
        server.spec, settings=language_model.ModelSettings(context=8000)
    ).active():
        trace = Tournament(toolbox, solutions=file, solution_chars=4000)(query=QUERY).trace
    [shortened] = [step.argument for step in trace.steps if step.tool == "shorten"]
    assert re.fullmatch(r"solutions: cut to 1[0-9]{3} characters each, instead of 4000", shortened)


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ('{"_id": "a"}\n', "line 1: not of the form"),
        ("\n[]\n", "line 2: not of the form"),
        ('{"_id": "a", "solution"', "line 1: not of the form"),
        (
            '{"_id": "a", "solution": "x"}\n{"_id": "a", "solution": "y"}\n',
            "line 2: 'a' had another",
        ),
        (b"\xff", "cannot be read"),
    ],
)
def test_a_damaged_file_of_solutions_is_refused_in_one_line(toolbox, tmp_path, content, wrong):
    path = tmp_path / "solutions.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=wrong) as refusal:
        Tournament(toolbox, solutions=str(path))
    assert "\n" not in str(refusal.value)


def test_another_content_of_the_solutions_file_is_another_run(run, tmp_path):
    arguments = (
        "--program",
        "tournament",
        "--task",
        "math",
        "--limit",
        1,
        "--pool",
        "oracle:5",
        "-P",
    )
    runs = []
    for solution in ("by induction", "by contradiction", "by induction"):
        runs.append(
            run(*arguments, f"solutions={solutions_in(tmp_path, x=solution)}", "--json").json["run"]
        )
    assert runs[0] == runs[2] != runs[1]
    missing = run(*arguments, "solutions=nowhere.jsonl")
    assert missing.code == 3 and "nowhere.jsonl cannot be read" in missing.err


@pytest.fixture
def ferries():
    # The shorter a text, the further up: the retriever's order is that of the numbers.
    corpus = Corpus(Document(doc_id, "ferry" + " port" * n) for n, doc_id in enumerate(names(9)))
    return Toolbox(corpus, BM25(corpus))


FERRY = Query("q1", "ferry", "hearings", candidates=frozenset(names(7)))


def ranked(toolbox, server, query=FERRY, **parameters):
    with language_model.connect(server.spec).active():
        return Rank(toolbox, **parameters)(query=query)


def test_windows_are_shown_from_the_end_of_the_retriever_s_order_to_its_beginning(ferries, server):
    server.answer = lambda prompt: {"ranked": json.dumps(sorted(ids(prompt), reverse=True))}
    submission = ranked(ferries, server, window=4, step=2)
    assert [ids(prompt) for prompt in prompts(server)] == [
        ["d003", "d004", "d005", "d006"],
        ["d001", "d002", "d006", "d005"],
        ["d000", "d006", "d005"],
    ]
    assert submission.ranking == ("d006", "d005", "d000", "d002", "d001", "d004", "d003")
    tools = [(step.hop, step.tool) for step in submission.trace.steps]
    assert tools == [
        (1, "search"),
        (2, "judge"),
        (2, "judge"),
        (2, "judge"),
        (2, "rank"),
        (2, "stop"),
    ]
    assert submission.trace.steps[-2].doc_ids == submission.ranking


def test_candidates_that_the_retriever_does_not_find_follow_by_id(ferries, server):
    server.answer = lambda prompt: {"ranked": json.dumps(ids(prompt))}
    query = Query(
        "q1", "port", candidates=frozenset({"d008", "d000", "d002"}), excluded=frozenset({"d002"})
    )
    assert ranked(ferries, server, query).ranking == ("d008", "d000")
