"""The length of a good answer, which each predictor of a program states: what is sent, reserved and
asked again."""

import dspy
import pytest

from sextant.programs.multihop import HopReader
from sextant.programs.query_rewriting import QueryToDoc
from sextant.tools.models import language_model
from sextant.tools.models.model_spec import ModelSettings
from sextant.tools.models.prompting import Passage, ask, max_answer_tokens, predict
from sextant.tools.models.run_resources import RunResources
from sextant.tools.records import Query
from sextant.tools.session import Toolbox

LIMIT = 50 + 2 * 16  # tokens of `_summarise`, with the marker of its field and of the end
CUT_IN_THOUGHTS = {"raw": "<think>Well, let me see", "finish": "length"}
THOUGHTFUL = {"raw": "<think>Well.</think>[[ ## summary ## ]]\na ferry"}


def _summarise(text="A ferry.", tokens=50):
    return ask(predict("text -> summary", tokens), text=text)


def _limits(server):
    return [request["max_tokens"] for request in server.requests]


@pytest.fixture
def connect(server, place):
    server.answer = lambda prompt: {"summary": "a ferry"}

    def connect(**given):
        settings = ModelSettings(**given)
        model = language_model.connect(server.spec, RunResources(), settings=settings)
        model.resources.open(place)
        return model

    return connect


def test_a_reading_may_name_every_passage_with_its_whole_id():
    reader = HopReader(0, "").read_passages
    ids = [f"CHRG-117hhrg{number}-12" for number in range(25)]
    passages = [Passage(id=doc_id, text="") for doc_id in ids]
    few = max_answer_tokens(reader, {"passages": passages[:5]})
    many = max_answer_tokens(reader, {"passages": passages})
    assert many - few == sum(len(doc_id) + 10 for doc_id in ids[5:])
    assert max_answer_tokens(dspy.Predict("text -> summary"), {}) is None


def test_a_request_has_the_limit_of_its_signature_and_never_more_than_the_users(connect, server):
    for settings in ({}, {"max_tokens": 60}):
        with connect(**settings).active():
            _summarise("A ferry.")
            _summarise("A bridge.", tokens=9000)
    assert _limits(server) == [LIMIT, 9032, 60, 60]


def test_the_limit_of_a_signature_is_not_in_the_key(connect, server):
    for tokens in (50, 500, 9000):
        with connect().active():
            assert _summarise(tokens=tokens).summary == "a ferry"
    assert len(server.requests) == 1


def test_a_call_with_a_limit_of_its_own_keeps_it(connect, server):
    with connect().active():
        dspy.Predict("text -> summary", max_tokens=7)(text="A ferry.")
        dspy.Predict("text -> summary")(text="A ferry.")
    assert _limits(server) == [7, 4096]


def test_crumbs_rewriters_may_write_as_much_as_in_the_paper(documents_of_a_task):
    writer = QueryToDoc(documents_of_a_task).write
    assert max_answer_tokens(writer, {}) >= 8192


@pytest.fixture
def documents_of_a_task(corpus):
    from sextant.tools.retrievers.base import NullRetriever  # its package loads slowly

    return Toolbox(corpus, NullRetriever())


def test_an_answer_that_is_cut_in_its_thoughts_is_asked_for_with_all_the_room(connect, server):
    server.answer_in_turn(CUT_IN_THOUGHTS, THOUGHTFUL, THOUGHTFUL)
    model = connect()
    toolbox = Toolbox({}, None)
    with model.active():
        session = toolbox.open(Query("q", "text"))
        assert _summarise().summary == "a ferry"
        _summarise("A bridge.")
    assert _limits(server) == [LIMIT, 4096, 4096]
    usage_totals = model.resources.usage_totals
    assert (usage_totals.sent, usage_totals.answered) == (3, 3)
    assert (session.usage.calls, session.usage.output_tokens) == (
        3,
        usage_totals.usage.output_tokens,
    )
    with connect().active():
        toolbox.open(Query("q", "text"))
        assert _summarise().summary == "a ferry"
        _summarise("A bridge.")
    assert len(server.requests) == 3, "both answers are found, though the model is known to think"


def test_thoughts_that_the_server_hides_are_known_by_an_empty_answer(connect, server):
    server.answer_in_turn({"raw": "", "finish": "length"}, {"summary": "a ferry"})
    with connect().active():
        assert _summarise().summary == "a ferry"
    assert _limits(server) == [LIMIT, 4096]


def test_an_answer_without_thoughts_that_is_cut_is_not_asked_for_with_more_room(connect, server):
    server.answer = lambda prompt: {"raw": "[[ ## summary", "finish": "length"}
    with connect().active(), pytest.raises(Exception, match="cut off"):
        _summarise()
    assert _limits(server) == [LIMIT, LIMIT], "the answer and its repair"


@pytest.mark.parametrize(
    "settings", [{"reasoning_effort": "low"}, {"extra_body": {"reasoning": {"effort": "low"}}}]
)
def test_a_model_that_is_told_to_think_has_all_the_room_from_the_start(connect, server, settings):
    server.answer = lambda prompt: THOUGHTFUL
    with connect(**settings).active():
        _summarise()
        _summarise("A bridge.")
    known = "reasoning_effort" in settings
    assert _limits(server) == [4096 if known else LIMIT, 4096]
