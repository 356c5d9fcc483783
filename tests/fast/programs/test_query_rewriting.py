"""The programs that rewrite once and search once: what is asked, what of the answer is searched with, and how."""

import pytest
from openai_server import prompts

from sextant.programs.query_rewriting import QueryToAnswer, QueryToDoc, ReasoningTrace, Rewrite
from sextant.tools.models import language_model
from sextant.tools.models.answers.checks import UnusableAnswer
from sextant.tools.records import Query
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox

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
        return {
            name: text for name, text in (FIELDS | fields).items() if f"[[ ## {name} ## ]]" in asked
        }

    return answer


def answered(program, server, query=QUERY, **fields):
    server.answer = answering(**fields)
    with language_model.connect(server.spec).active():
        return program(query=query)


def test_a_rationale_is_asked_for_except_for_a_stance_and_is_not_searched_for(toolbox, server):
    submission = answered(Rewrite(toolbox), server, rationale="They mean crabs.")
    assert submission.trace.notes == ["rationale: They mean crabs."]
    assert submission.trace.steps[-2].argument == FIELDS["rewritten"]
    answered(Rewrite(toolbox, lens="stance"), server)
    assert ["rationale" in prompt for prompt in prompts(server)] == [True, False]


def test_an_authors_hand_is_asked_for_by_the_papers_features_without_themes_or_later_searches(
    toolbox, server
):
    answered(Rewrite(toolbox, lens="authorship"), server)
    [prompt] = prompts(server)
    assert all(word in prompt for word in ("vocabulary", "the build of its sentences", "tone"))
    assert "theme" not in prompt and "Later searches" not in prompt


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (QueryToAnswer, FIELDS["answer"]),
        (QueryToDoc, FIELDS["document"]),
        (ReasoningTrace, "\n\n".join(FIELDS[name] for name in ReasoningTrace.kept)),
        (Rewrite, FIELDS["rewritten"]),
    ],
)
def test_one_call_and_one_search_with_what_is_kept_and_the_instruction_of_its_kind(
    program, text, toolbox, server
):
    submission = answered(program(toolbox), server)
    search, stop = submission.trace.steps
    assert (search.tool, search.argument, search.hop) == ("search", text, 1)
    assert search.instruction == getattr(program, "instruction", "")
    assert stop.tool == "stop" and submission.ranking == search.doc_ids
    assert len(server.requests) == search.usage.calls == 1
    if program is not Rewrite:
        # Each field has a marker, and so has the end.
        markers = 16 * (len(program.signature.output_fields) + 1)
        assert server.requests[0]["max_tokens"] == 8192 + markers, "CRUMB, section 4.4"
        assert server.requests[0]["temperature"] == 0.0


def test_the_instruction_of_a_rewritten_query_is_a_parameter(toolbox, server):
    submission = answered(QueryToAnswer(toolbox, instruction="Find its like."), server)
    assert submission.trace.steps[0].instruction == "Find its like."


@pytest.mark.parametrize(
    ("program", "kept"),
    [
        (QueryToAnswer, "answer"),
        (QueryToDoc, "document"),
        (ReasoningTrace, "problem"),
        (Rewrite, "rewritten"),
    ],
)
def test_a_blank_text_is_requested_once_more_and_never_used(program, kept, toolbox, server):
    with pytest.raises(UnusableAnswer, match=f"empty: {kept} is empty"):
        answered(program(toolbox), server, **{kept: "  "})
    assert len(server.requests) == 2
    assert f"{kept} is empty" in prompts(server)[1]


def test_a_reasoning_model_gets_the_room_that_it_needs_and_takes_the_call(toolbox, server):
    server.answer = answering()
    with language_model.connect("gpt-5.2@" + server.spec.partition("@")[2]).active():
        QueryToAnswer(toolbox)(query=QUERY)
    [request] = server.requests
    assert request["max_completion_tokens"] == 16_384
    assert "max_tokens" not in request and "temperature" not in request


@pytest.mark.parametrize("program", [Rewrite, *PROGRAMS])
def test_offline_has_an_answer_to_a_query_whose_words_no_document_has(program, toolbox, corpus):
    with language_model.connect("offline", statistics=BM25(corpus).statistics).active():
        submission = program(toolbox)(query=Query("q1", "Zyzzyva?"))
    assert "Zyzzyva?" in submission.trace.steps[0].argument
