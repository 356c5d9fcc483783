"""The programs that rewrite once and search once: what is asked, what of the answer is searched with, and how."""

import pytest

from programs import lm
from programs.asking import UnusableAnswer
from programs.lenses import LENSES
from programs.query_to_answer import INSTRUCTION as OF_AN_ANSWER
from programs.query_to_answer import QueryToAnswer
from programs.query_to_doc import INSTRUCTION as OF_A_DOCUMENT
from programs.query_to_doc import QueryToDoc
from programs.reasoning_trace import INSTRUCTION as OF_A_TRACE
from programs.reasoning_trace import KEPT, ReasoningTrace
from programs.rewrite import Rewrite
from programs.rewriting import ANSWER, REASONING_ANSWER, room
from tools.errors import UnknownName
from tools.records import Query
from tools.retrievers.bm25 import BM25
from tools.session import Toolbox

QUERY = Query("q1", "I remember an animal whose blood is not red.", "Find pages about animals.")
FIELDS = {
    "analysis": "they want an animal",
    "brainstorming": "giraffe, crab",
    "problem": "which pigment",
    "contents": "copper",
    "answer": "an octopus",
    "document": "# Octopus\n\nIts haemocyanin is blue.",
    "rewritten": "horseshoe crabs",
}
PROGRAMS = [QueryToAnswer, QueryToDoc, ReasoningTrace]


@pytest.fixture
def toolbox(corpus):
    return Toolbox(corpus, BM25(corpus))


def answering(**fields):
    """A model that fills exactly the fields asked for."""

    def answer(prompt):
        asked = prompt.rpartition("Respond with the corresponding output fields")[2]
        return {name: text for name, text in (FIELDS | fields).items() if f"[[ ## {name} ## ]]" in asked}

    return answer


def answered(program, server, query=QUERY, **fields):
    server.answer = answering(**fields)
    with lm.connect(server.spec).active():
        return program(query=query)


def prompt(request):
    return "\n\n".join(str(message["content"]) for message in request["messages"])


@pytest.mark.parametrize(
    ("program", "text", "instruction"),
    [
        (QueryToAnswer, FIELDS["answer"], OF_AN_ANSWER),
        (QueryToDoc, FIELDS["document"], OF_A_DOCUMENT),
        (ReasoningTrace, "\n\n".join(FIELDS[name] for name in KEPT), OF_A_TRACE),
    ],
)
def test_one_call_and_one_search_with_what_is_kept_and_the_instruction_of_its_kind(
    program, text, instruction, toolbox, server
):
    submission = answered(program(toolbox), server)
    search, stop = submission.trace.steps
    assert (search.tool, search.argument, search.instruction, search.hop) == ("search", text, instruction, 1)
    assert stop.tool == "stop" and submission.ranking == search.doc_ids
    assert len(server.requests) == search.usage.calls == 1


def test_the_three_instructions_differ():
    assert len({OF_AN_ANSWER, OF_A_DOCUMENT, OF_A_TRACE}) == 3


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_thinking_comes_before_what_is_kept_and_query_and_objective_are_in_the_prompt(program, toolbox, server):
    answered(program(toolbox), server)
    asked = prompt(server.requests[0])
    assert QUERY.text in asked and QUERY.objective in asked
    order = list(program(toolbox).write.signature.output_fields)
    assert len(order) >= 3 and order[-1] in ("answer", "document")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_query_without_an_objective_is_searched_without_an_instruction(program, toolbox, server):
    submission = answered(program(toolbox), server, Query("q1", QUERY.text))
    assert submission.trace.steps[0].instruction == ""


class Told(BM25):
    """A retriever that remembers with which instruction it was asked."""

    def search(self, text, k, *, instruction="", **scope):
        self.told = instruction
        return super().search(text, k, instruction=instruction, **scope)


@pytest.mark.parametrize(("objective", "told"), [("", ""), ("Find pages.", OF_AN_ANSWER)])
def test_the_retriever_is_told_the_rewritings_instruction_and_never_the_objective(objective, told, corpus, server):
    index = Told(corpus)
    answered(QueryToAnswer(Toolbox(corpus, index)), server, Query("q1", QUERY.text, objective))
    assert index.told == told


def test_what_a_document_is_reaches_the_prompt(toolbox, server):
    answered(QueryToDoc(toolbox, document="a page of a bestiary"), server)
    answered(QueryToDoc(toolbox), server)
    assert ["a page of a bestiary" in prompt(request) for request in server.requests] == [True, False]


@pytest.mark.parametrize(
    ("program", "kept"), [(QueryToAnswer, "answer"), (QueryToDoc, "document"), (ReasoningTrace, "contents")]
)
def test_a_blank_text_is_asked_for_once_more_and_never_searched_with(program, kept, toolbox, server):
    with pytest.raises(UnusableAnswer, match=f"empty: {kept} is empty"):
        answered(program(toolbox), server, **{kept: "  "})
    assert len(server.requests) == 2
    assert f"{kept} is empty" in prompt(server.requests[1])


def test_thinking_may_be_blank_because_a_model_can_have_thought_unseen(toolbox, server):
    submission = answered(QueryToAnswer(toolbox), server, analysis="", brainstorming="")
    assert submission.trace.steps[0].argument == FIELDS["answer"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_model_may_write_8192_tokens_at_temperature_0(program, toolbox, server):
    answered(program(toolbox), server)
    [request] = server.requests
    assert (request["max_completion_tokens"], request["temperature"]) == (8192, 0.0)


def test_a_reasoning_model_gets_the_room_that_it_needs_and_takes_the_call(toolbox, server):
    server.answer = answering()
    with lm.connect("gpt-5.2@" + server.spec.partition("@")[2]).active():
        QueryToAnswer(toolbox)(query=QUERY)
    [request] = server.requests
    assert request["max_completion_tokens"] == REASONING_ANSWER
    assert "max_tokens" not in request and "temperature" not in request


@pytest.mark.parametrize(("window", "tokens"), [(None, ANSWER), (200_000, ANSWER), (8000, 3600)])
def test_an_answer_is_half_of_the_window_at_most(window, tokens, server):
    with lm.connect(server.spec, settings=lm.Settings(context=window)).active():
        assert room() == tokens


def test_rewrite_searches_with_the_rewriting_and_the_objective_as_its_instruction(toolbox, server):
    search = answered(Rewrite(toolbox), server).trace.steps[0]
    assert (search.argument, search.instruction, search.hop) == (FIELDS["rewritten"], "", 1)


@pytest.mark.parametrize("lens", ["", *LENSES])
def test_rewrite_is_told_the_searching_advice_of_its_lens_and_of_no_other(lens, toolbox, server):
    answered(Rewrite(toolbox, lens=lens), server)
    asked = " ".join(prompt(server.requests[0]).split())
    assert [name for name in LENSES if LENSES[name].search in asked] == ([lens] if lens else [])


def test_an_unknown_lens_is_refused_when_rewrite_is_made(toolbox):
    with pytest.raises(UnknownName, match="stance"):
        Rewrite(toolbox, lens="stanse")


def test_a_blank_rewriting_is_unusable(toolbox, server):
    with pytest.raises(UnusableAnswer, match="rewritten is empty"):
        answered(Rewrite(toolbox), server, rewritten=" ")
    assert len(server.requests) == 2


@pytest.mark.parametrize("program", [Rewrite, *PROGRAMS])
def test_offline_has_an_answer_to_a_query_whose_words_no_document_has(program, toolbox, corpus):
    with lm.connect("offline", statistics=BM25(corpus).statistics).active():
        submission = program(toolbox)(query=Query("q1", "Zyzzyva?"))
    assert "Zyzzyva?" in submission.trace.steps[0].argument


def test_offline_puts_more_weight_on_the_heavier_words_of_a_document(toolbox, corpus):
    with lm.connect("offline", statistics=BM25(corpus).statistics).active():
        text = QueryToDoc(toolbox)(query=Query("q1", "the blood of a giraffe")).trace.steps[0].argument
    assert text.count("giraffe") == 2 and text.count("blood") == 1
