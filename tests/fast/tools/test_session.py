"""The rules of the only door to a corpus."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from threading import Barrier, Thread

import pytest

from sextant.tools import schemas
from sextant.tools.corpus import Corpus
from sextant.tools.errors import DocumentNotFound, LimitReached
from sextant.tools.records import Query, Trace, Usage, trace_json
from sextant.tools.retrievers import build
from sextant.tools.session import Limits, Toolbox, current

QUERY = Query("q1", "Why is octopus blood blue?", excluded=frozenset({"d6"}))


@pytest.fixture
def toolbox(corpus):
    clock = iter(range(1000)).__next__  # one second a look
    return Toolbox(
        corpus,
        build("bm25", corpus),
        limits=Limits(searches=2, reads=2, snippet_chars=10),
        clock=clock,
    )


@pytest.fixture
def session(toolbox):
    return toolbox.open(QUERY)


def test_an_excluded_document_does_not_exist(session):
    assert "d6" not in [
        snippet.doc_id for snippet in session.search("octopuses blue blood forum", k=6)
    ]
    with pytest.raises(DocumentNotFound):
        session.read("d6")


def test_a_pool_is_all_there_is(toolbox):
    session = toolbox.open(Query("q1", "x", candidates=frozenset({"d3", "d5"})))
    assert {snippet.doc_id for snippet in session.search("blue blood heart", k=6)} == {"d3", "d5"}
    assert session.read("d5").startswith("A giraffe"), (
        "a pool is handed to the searcher; no search is needed to see it"
    )
    with pytest.raises(DocumentNotFound):
        session.read("d1")
    masked = toolbox.open(
        Query("q1", "x", candidates=frozenset({"d3", "d5"}), excluded=frozenset({"d5"}))
    )
    with pytest.raises(ValueError, match="no search of the query returned"):
        masked.submit(["d3", "d5"])


def test_finding_hits_leaves_the_step_of_a_search_and_reads_no_document(toolbox, corpus):
    class Unreadable(Corpus):
        def __getitem__(self, doc_id):
            raise AssertionError(f"{doc_id} was read")

    searched = toolbox.open(QUERY)
    snippets = searched.search("blue blood", k=3)
    unread = Unreadable(corpus.stream())
    found = Toolbox(unread, build("bm25", corpus)).open(QUERY)
    hits = found.find_hits("blue blood", 3)
    assert hits == [(snippet.doc_id, snippet.score) for snippet in snippets]
    [by_search] = trace_json(searched.trace)["steps"]
    [by_find] = trace_json(found.trace)["steps"]
    times = {"started": 0, "seconds": 0}
    assert by_search | times == by_find | times


def test_a_search_among_documents_orders_only_those_that_have_surfaced(toolbox):
    session = toolbox.open(QUERY)
    surfaced = [snippet.doc_id for snippet in session.search("blue blood", k=3)]
    again = session.search(
        "heart blood octopus", k=6, among=[*surfaced[1:], "d5", "d6", "invented"]
    )
    assert {snippet.doc_id for snippet in again} == set(surfaced[1:])
    assert session.trace.steps[-1].doc_ids == tuple(snippet.doc_id for snippet in again)


def test_a_search_among_documents_stays_in_the_pool(toolbox):
    session = toolbox.open(
        Query("q1", "x", candidates=frozenset({"d3", "d5", "d6"}), excluded=frozenset({"d6"}))
    )
    found = session.search("octopus blood heart", k=6, among={"d1", "d5", "d6"})
    assert {snippet.doc_id for snippet in found} == {"d5"}


def test_only_what_a_search_returned_can_be_read(session):
    with pytest.raises(DocumentNotFound, match="use a doc_id that a search returned"):
        session.read("d5")
    session.search("giraffe", k=1)
    assert session.read("d5") == "A giraffe has one heart of eleven kilograms."


def test_a_snippet_is_cut_and_a_read_says_how_much_was_shown(session):
    [snippet] = session.search("giraffe", k=1)
    assert snippet.text == "A giraffe "
    assert session.read("d5", chars=9) == "A giraffe"
    step = session.trace.steps[-1]
    assert (step.tool, step.shown, step.lengths) == ("read", (9,), (44,))


def test_limits_are_met_and_a_refused_call_says_so_in_the_trace(session):
    session.search("blood", k=1)
    session.search("heart", k=1)
    with pytest.raises(LimitReached, match="all 2 search calls"):
        session.search("copper", k=1)
    assert [bool(step.refused) for step in session.trace.steps] == [False, False, True]
    assert session.trace.steps[-1].argument == "copper" and session.trace.steps[-1].doc_ids == ()


def test_limits_hold_for_searches_at_the_same_time(toolbox):
    session = toolbox.open(QUERY)
    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(session.search, "blood", 1) for _ in range(12)]
    assert sum(call.exception() is None for call in calls) == 2


def test_snippets_that_go_to_a_model_were_shown_and_can_be_selected(session):
    surfaced = [snippet.doc_id for snippet in session.search("blue blood", k=2, shown=True)]
    assert session.trace.steps[-1].shown == (10, 10)
    assert session.select(surfaced[:1], among=surfaced) == surfaced[:1]
    assert session.trace.invented_ids == 0


def test_the_trace_has_what_came_back_and_from_where(session):
    session.hop = 3
    found = session.search("blue blood", k=2)
    [step] = session.trace.steps
    assert (step.tool, step.argument, step.hop, step.k) == ("search", "blue blood", 3, 2)
    assert step.doc_ids == tuple(snippet.doc_id for snippet in found)
    assert step.retriever == "bm25(k1=0.9,b=0.4)"


def test_an_id_that_was_not_shown_is_dropped_and_counted(session):
    surfaced = [snippet.doc_id for snippet in session.search("blue blood", k=3)]
    session.judge(surfaced[:2])
    kept = session.select([surfaced[1], "invented", surfaced[2], surfaced[1]], among=surfaced[:2])
    assert kept == [surfaced[1]]
    assert session.trace.invented_ids == 2, (
        "one that does not exist, and one that was surfaced but never shown"
    )
    select, drop = session.trace.steps[-2:]
    assert (select.tool, select.doc_ids) == ("select", (surfaced[1],))
    assert (drop.tool, drop.doc_ids) == ("drop", (surfaced[0],))
    session.select(["invented"], among=["invented", surfaced[0]])
    assert session.trace.steps[-1].doc_ids == (surfaced[0],), (
        "what was never shown was not passed over"
    )


def test_invented_ids_in_an_order_are_counted_too(session):
    [surfaced] = [snippet.doc_id for snippet in session.search("giraffe", k=1, shown=True)]
    session.count_invented([surfaced, "invented", "invented"])
    assert session.trace.invented_ids == 1


def test_a_step_carries_the_model_calls_made_since_the_one_before(session):
    session.charge(Usage(calls=1, input_tokens=10))
    session.charge(Usage(calls=1, input_tokens=5))
    session.search("blood", k=1)
    session.search("heart", k=1)
    session.charge(Usage(calls=1))
    assert [step.usage.calls for step in session.trace.steps] == [2, 0]
    assert session.usage == Usage(calls=3, input_tokens=15), "also what no step has taken"
    assert (Usage(calls=1, paid_usd=None) + Usage(calls=1, paid_usd=0.5)).paid_usd is None, (
        "unknown stays unknown"
    )


def test_steps_divide_the_time_of_a_session(session):
    session.search("blood", k=1)
    session.search("heart", k=1)
    first, second = session.trace.steps
    assert (first.started, second.started) == (0, first.seconds)


def test_a_ranking_may_not_repeat_or_invent(session):
    surfaced = [snippet.doc_id for snippet in session.search("blue blood", k=2)]
    with pytest.raises(ValueError, match="twice"):
        session.submit([surfaced[0], surfaced[0]])
    with pytest.raises(ValueError, match="no search of the query returned"):
        session.submit([*surfaced, "d5"])
    assert session.submit(surfaced).ranking == tuple(surfaced)
    assert session.trace.steps[-1].tool == "stop"


def test_after_its_submission_a_session_pays_for_nothing(toolbox):
    session = toolbox.open(QUERY)
    assert current() is session
    session.charge(Usage(calls=2))
    assert session.submit([]).usage.calls == 2
    assert current() is None


def test_parallel_lines_of_work_have_their_own_hop_times_and_usage(corpus):
    now = iter(range(100))
    session = Toolbox(corpus, build("bm25", corpus), clock=lambda: next(now)).open(
        Query("q1", "blood")
    )
    session.hop = 1
    both = Barrier(2)

    def work(hop, calls):
        with session.branch(hop):
            session.charge(Usage(calls=calls))
            both.wait()  # neither is done before both have begun
            session.search("blood", 1)
            session.charge(Usage(calls=100 * calls))

    threads = [Thread(target=copy_context().run, args=(work, hop, hop)) for hop in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.note("both")
    steps = {step.hop: step for step in session.trace.steps}
    assert [steps[hop].usage.calls for hop in (2, 3)] == [2, 3]
    assert steps[1].usage.calls == 500, (
        "what a branch left open goes to the line that it branched off"
    )
    assert steps[1].started >= max(steps[hop].started + steps[hop].seconds for hop in (2, 3))
    assert session.usage.calls == 505


def test_a_session_goes_on_from_a_snapshot_as_if_it_had_never_stopped(corpus):
    def begin(session):
        session.hop = 1
        session.charge(Usage(calls=1))
        found = [snippet.doc_id for snippet in session.search("blue blood", 3)]
        session.judge(found[:2])
        session.select(found[:1], among=found[:2])
        with pytest.raises(DocumentNotFound):
            session.read("d5")
        session.note("copper")
        session.charge(Usage(calls=1, input_tokens=7), "the second")
        return found

    def finish(session, found):
        session.hop = 2
        session.read(found[2])
        with pytest.raises(LimitReached):
            session.read(found[0])
        session.select([found[2], "d6", "nonsense"], among=found)
        return session.submit(found)

    toolbox = Toolbox(
        corpus, build("bm25", corpus), limits=Limits(searches=1, reads=2), clock=lambda: 0.0
    )
    whole = toolbox.open(Query("q1", "blood"))
    expected = finish(whole, begin(whole))
    first = toolbox.open(Query("q1", "blood"))
    found = begin(first)
    kept = json.loads(json.dumps(first.snapshot()))
    second = toolbox.open(Query("q1", "blood"), kept)
    with pytest.raises(LimitReached):
        second.search("again")
    second = toolbox.open(Query("q1", "blood"), kept)
    assert finish(second, found) == expected and ("the second",) in [
        step.calls for step in expected.trace.steps
    ]


def test_a_step_has_the_keys_of_the_calls_before_it_in_order_and_the_trace_those_that_no_step_took(
    corpus,
):
    session = Toolbox(corpus, build("bm25", corpus)).open(Query("q1", "blood"))
    session.charge(Usage(calls=1), "a")
    for line in (2, 1):
        with session.branch(1, line=line):
            session.charge(Usage(calls=1), f"first {line}")
            session.charge(Usage(calls=1), f"then {line}")
            session.note(f"line {line}")
            session.charge(Usage(calls=1), f"left {line}")
    session.join()
    session.charge(Usage(repairs=1))
    session.charge(Usage(calls=1), "z")
    assert [step.calls for step in session.trace.steps] == [
        ("first 1", "then 1"),
        ("first 2", "then 2"),
    ]
    assert session.trace.calls == ["a", "left 1", "left 2", "z"]
    session.note("all")
    written = trace_json(session.trace)
    assert (
        written["steps"][-1]["calls"] == ["a", "left 1", "left 2", "z"] and "calls" not in written
    )
    assert (
        schemas.build_dataclass(Trace, {"query_id": "q1", **written}).steps[-1].calls
        == session.trace.steps[-1].calls
    )


def test_a_search_may_name_another_of_the_toolboxs_retrievers(corpus):
    other = build("rank_bm25", corpus)
    session = Toolbox(corpus, build("bm25", corpus), others={"rank_bm25": other}).open(
        Query("q1", "x")
    )
    found = session.search("blue blood", 3, retriever="rank_bm25")
    assert [s.doc_id for s in found] == [hit.doc_id for hit in other.search("blue blood", 3)]
    assert session.trace.steps[-1].retriever == other.name
