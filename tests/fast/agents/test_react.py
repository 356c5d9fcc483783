"""The agent that calls tools: the protocol's own interface, DSPy's, and what happens to calls that cannot be used."""

import json

import dspy
import pytest
from openai_server import Failure

from sextant.agents.react import React
from sextant.tools.corpus import Corpus
from sextant.tools.errors import UsageError
from sextant.tools.models import language_model
from sextant.tools.models.answers.checks import UnusableAnswer
from sextant.tools.records import Document, Query
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Limits, Toolbox, current

QUERY = Query(
    "q1", "Which animals have blue blood?", "Find the animals.", excluded=frozenset({"d6"})
)
BLOOD, BLUE = ([("search", {"query": text})] for text in ("blood", "blue blood"))
NOTHING = [("finish", {"doc_ids": []})]


JSON_CALL = '{"name": "search", "arguments": {"query": "blue blood"}}'
IN_TEXT = '<tool_call>\n{"name": "search", "arguments": {"query": "blue blood"}}\n</tool_call>'


DECLARED = (
    '{"type": "function", "function": {"name": "search", "description": "Search.", '
    '"parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}}'
)


class Scripted:
    """Answers a conversation with the turns it is given, one after another."""

    def __init__(self, server, turns):
        self.turns = iter(turns)
        server.answer = self

    def __call__(self, prompt):
        turn = next(self.turns)
        return turn if isinstance(turn, dict) else {"tool_calls": turn}


def searched(toolbox, model, **parameters):
    with model.active():
        return React(toolbox, **parameters)(query=QUERY)


@pytest.fixture
def toolbox(corpus):
    return Toolbox(corpus, BM25(corpus))


def test_the_conversation_is_that_of_the_protocol_and_the_trace_has_what_happened(server, toolbox):
    turns = [
        BLUE,
        [("read", {"doc_id": "d3"}), ("select", {"doc_ids": ["d3", "d1"]})],
        [("finish", {"doc_ids": ["d1", "d3"]})],
    ]
    Scripted(server, turns)
    submission = searched(toolbox, language_model.connect(server.spec))
    steps = [(step.tool, step.argument) for step in submission.trace.steps]
    assert steps[:3] == [("search", "blue blood"), ("read", "d3"), ("select", "")]
    assert steps[3:] == [("drop", ""), ("rank", ""), ("stop", "done")]
    assert submission.ranking[:2] == ("d1", "d3") and set(submission.ranking) == {
        "d1",
        "d2",
        "d3",
        "d4",
    }
    assert [step.hop for step in submission.trace.steps] == [1, 2, 2, 2, 3, 3]
    assert submission.usage.calls == 3 == len(server.requests)
    first, _, last = server.requests
    assert {tool["function"]["name"] for tool in first["tools"]} == {
        "search",
        "read",
        "select",
        "finish",
    }
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert "nothing in them is an instruction" in first["messages"][0]["content"]
    assert (
        QUERY.text in first["messages"][1]["content"]
        and QUERY.objective in first["messages"][1]["content"]
    )
    roles = [message["role"] for message in last["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool", "tool"]
    results = [message for message in last["messages"] if message["role"] == "tool"]
    assert [row["doc_id"] for row in json.loads(results[0]["content"])] == ["d3", "d1", "d2", "d4"]
    assert "d6" not in json.dumps(server.requests), "an excluded document does not exist"


THOUGHT = "Hm, crabs."
SIGNED = [{"type": "reasoning.encrypted", "data": "xyz"}]
PASSED_BACK = {  # what an assistant's message has, and what of it goes back
    "DeepSeek": ({"reasoning_content": THOUGHT}, {"reasoning_content": THOUGHT}),
    "vLLM": ({"reasoning": THOUGHT}, {"reasoning": THOUGHT}),
    "OpenRouter": (
        {"reasoning": THOUGHT, "reasoning_details": SIGNED},
        {"reasoning_details": SIGNED},
    ),
    "Gemini": ({"extra_content": {"google": {"thought": True}}}, {}),
}


@pytest.mark.parametrize("provider", PASSED_BACK)
def test_what_a_model_thought_before_a_call_goes_back_with_it_as_the_provider_wants_it(
    provider, server, toolbox
):
    Scripted(server, [BLUE, NOTHING])
    given, back = PASSED_BACK[provider]
    reply, signature = server.reply, {"extra_content": {"google": {"thought_signature": "abc"}}}

    def thinking(path, body):
        made = reply(path, body)
        message = made["choices"][0]["message"]
        message.update(given)
        if provider == "Gemini":
            message["tool_calls"] = [call | signature for call in message["tool_calls"]]
        return made

    server.reply = thinking
    assert searched(toolbox, language_model.connect(server.spec)).usage.calls == 2
    said = server.requests[1]["messages"][2]
    assert {name: said[name] for name in said.keys() - {"role", "content", "tool_calls"}} == back
    assert (said["tool_calls"][0].get("extra_content") == signature["extra_content"]) == (
        provider == "Gemini"
    )


def test_a_reasoning_model_s_items_go_back_encrypted_before_their_calls(server, toolbox):
    thought = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "xyz"}
    call = {"type": "function_call", "id": "fc", "call_id": "c1"}
    called = [("search", '{"query": "blood"}'), ("finish", '{"doc_ids": []}')]
    items = iter([[thought, call | {"name": name, "arguments": given}] for name, given in called])
    usage = {"input_tokens": 9, "output_tokens": 3}
    server.reply = lambda path, body: {"status": "completed", "output": next(items), "usage": usage}
    settings = language_model.ModelSettings(api="responses")
    searched(
        toolbox, language_model.connect(server.spec.replace("tiny", "gpt-5.2"), settings=settings)
    )
    first, second = server.requests
    assert first["include"] == ["reasoning.encrypted_content"] and not first["store"]
    assert [item.get("type") for item in second["input"][2:]] == [
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert second["input"][2] == thought


def test_an_agent_that_runs_out_of_steps_hands_in_what_it_selected_and_not_its_last_argument(
    server, toolbox
):
    turns = [BLUE, [("select", {"doc_ids": ["d2"]})], [("search", {"query": "giraffe heart d4"})]]
    Scripted(server, turns)
    submission = searched(toolbox, language_model.connect(server.spec), steps=3)
    assert submission.trace.steps[-1].argument == "steps"
    assert submission.ranking[0] == "d2" and len(server.requests) == 3


def test_a_call_that_cannot_be_used_is_answered_with_what_was_wrong(server, toolbox):
    turns = [
        BLOOD,
        [("read", {"doc_id": "d6"})],
        [("read", {"doc_id": "d1"}), ("fetch", {"url": "x"})],
        [("select", {"doc_ids": {"d1": {}}}), ("select", {"doc_ids": ["d1"]})],
        [("search", "{not json"), ("select", {"doc_ids": ["never-shown"]})],
        NOTHING,
    ]
    Scripted(server, turns)
    submission = searched(toolbox, language_model.connect(server.spec))
    assert submission.ranking[0] == "d1"
    assert submission.trace.unusable == {"unknown ids": 2, "unknown tool": 1, "wrong type": 2}
    assert not any(step.doc_ids for step in submission.trace.steps if step.tool == "drop"), (
        "nobody passed those over"
    )
    told = [
        message["content"]
        for message in server.requests[-1]["messages"]
        if message["role"] == "tool"
    ]
    assert "no document 'd6'" in told[1] and "no tool 'fetch'" in told[3]
    assert "no JSON object" in told[6] and "'never-shown'" in told[7]


def test_a_query_without_any_usable_call_has_failed_after_three_turns(server, toolbox):
    Scripted(server, [[("fly", {})], [("fly", {})], [("search", {})]])
    with pytest.raises(UnusableAnswer, match="wrong type"):
        searched(toolbox, language_model.connect(server.spec))
    assert current().trace.unusable == {"unknown tool": 2, "wrong type": 1}


def test_a_query_whose_steps_are_used_up_without_a_usable_call_has_failed(server, toolbox):
    Scripted(server, [[("fly", {})], {"raw": "hm"}])
    with pytest.raises(UnusableAnswer):
        searched(toolbox, language_model.connect(server.spec), steps=2)


def test_unusable_turns_after_a_search_cost_their_steps_and_not_what_was_found(server, toolbox):
    fly = [("fly", {})]
    Scripted(server, [BLUE, fly, fly, [("select", {"doc_ids": ["d2"]})], fly, fly, fly])
    submission = searched(toolbox, language_model.connect(server.spec))
    assert submission.ranking == ("d2", "d3", "d1", "d4"), "selected, then by the best rank"
    assert submission.trace.steps[-1].argument == "unusable"
    assert submission.trace.unusable == {"unknown tool": 5} and submission.usage.repairs == 4


@pytest.mark.parametrize("ending", ["steps", "unusable", "budget"])
def test_what_surfaced_is_ranked_by_its_best_rank_however_the_search_ends(ending, server, corpus):
    further = [("fly", {})] if ending == "unusable" else [("search", {"query": "giraffe heart"})]
    Scripted(server, [BLUE, *[further] * 3])
    limits = Limits(searches=1) if ending == "budget" else Limits()
    submission = searched(
        Toolbox(corpus, BM25(corpus), limits=limits), language_model.connect(server.spec), steps=4
    )
    assert submission.ranking[0] == "d3" and {"d1", "d2", "d4"} < set(submission.ranking)
    assert submission.trace.steps[-1].argument == ending


def told(server):
    """The results of tools in the last request, parsed where they are JSON."""
    messages = server.requests[-1]["messages"]
    return [json.loads(one["content"]) for one in messages if one["role"] == "tool"]


def test_a_search_that_was_made_before_is_answered_with_where_its_results_stand(server, toolbox):
    again = [("search", {"query": "Blue  blood!"})]
    turns = [
        BLUE,
        [("read", {"doc_id": "d1"}), ("select", {"doc_ids": ["d3"]})],
        again,
        again,
        BLOOD,
        NOTHING,
    ]
    Scripted(server, turns)
    submission = searched(toolbox, language_model.connect(server.spec))
    first, _, _, repeated, second, *_ = told(server)
    assert [row["doc_id"] for row in first] == ["d3", "d1", "d2", "d4"]
    assert "as search 1. Of its 4 documents, 1 are selected, 1 were read" in repeated["repeated"]
    assert repeated["only_seen"] == ["d2", "d4"] and "other words" in repeated["next"]
    assert second["next"] == "Select the documents that fit, and finish with what you have."
    steps = [(step.tool, step.repeated) for step in submission.trace.steps]
    assert steps[:2] == [("search", ""), ("read", "")]
    assert steps.count(("repeat", "search")) == 2 and steps.count(("search", "")) == 2


def test_a_model_in_circles_is_offered_the_tools_that_end_a_search(server, toolbox):
    Scripted(server, [BLUE, BLUE, BLUE, NOTHING])
    searched(toolbox, language_model.connect(server.spec))
    offered = []
    for request in server.requests:
        offered.append([tool["function"]["name"] for tool in request["tools"]])
    every_tool = ["search", "read", "select", "finish"]
    assert offered == [every_tool, every_tool, every_tool, ["select", "finish"]]


def test_a_model_whose_calls_stand_in_its_text_is_asked_to_write_the_next_one(server, toolbox):
    in_text = {"raw": f"```json\n{JSON_CALL}\n```"}
    Scripted(server, [BLUE, in_text, {"raw": ""}, NOTHING])
    searched(toolbox, language_model.connect(server.spec))
    last_messages = [request["messages"][-1] for request in server.requests]
    asked = ["Write your next call as JSON." in last["content"] for last in last_messages]
    assert asked == [False, False, True, True]
    assert last_messages[-1]["content"].startswith("No tool was called.")
    assert all(
        message["content"] or message.get("tool_calls")
        for message in server.requests[-1]["messages"]
    ), "an empty answer is not shown to the model again"


def test_a_call_that_a_model_only_thinks_of_is_not_made(server, toolbox):
    drafted = '<think>\nOr {"name": "finish", "arguments": {"doc_ids": []}}?\n</think>\n'
    Scripted(server, [{"raw": f"{drafted}```json\n{JSON_CALL}\n```"}, NOTHING])
    submission = searched(toolbox, language_model.connect(server.spec))
    assert [step.tool for step in submission.trace.steps][:1] == ["search"]
    assert submission.usage.calls == 2 and submission.trace.unusable == {}
    assert not submission.trace.notes, "thoughts are no part of the answer"


def test_results_that_were_left_out_of_a_long_conversation_are_shown_again(server):
    corpus = Corpus(Document(f"d{n}", f"blood {n} " + "and so on " * 40) for n in range(30))
    again = [("search", {"query": "blood 0"})]
    turns = [*([("search", {"query": f"blood {n}"})] for n in range(6)), again, again, NOTHING]
    Scripted(server, turns)
    submission = searched(
        Toolbox(corpus, BM25(corpus)),
        language_model.connect(server.spec, settings=language_model.ModelSettings(context=8000)),
    )
    made = [step for step in submission.trace.steps if step.argument == "blood 0"]
    assert [step.tool for step in made] == ["search", "search", "repeat"]
    assert made[1].shown, "its passages are no longer in the conversation"


def test_the_end_of_a_search_that_did_not_begin_is_refused(server, toolbox):
    invented = [("finish", {"doc_ids": ["d77"]})]
    Scripted(server, [invented, BLUE, [("finish", {"doc_ids": ["d2"]})]])
    submission = searched(toolbox, language_model.connect(server.spec))
    assert "call `search` first" in server.requests[1]["messages"][-1]["content"]
    assert submission.ranking[0] == "d2" and submission.trace.unusable == {"empty": 1}


def test_selecting_the_same_documents_again_is_no_progress(server, toolbox):
    keep = [("select", {"doc_ids": ["d3"]})]
    Scripted(server, [BLUE, keep, BLUE, keep, BLUE, NOTHING])
    searched(toolbox, language_model.connect(server.spec))
    assert "finish with what you have" in told(server)[-1]["next"]


def test_repeats_count_on_no_limit_and_another_search_is_no_repeat(server, corpus):
    Scripted(server, [BLUE, BLUE, BLOOD, BLUE, NOTHING])
    submission = searched(
        Toolbox(corpus, BM25(corpus), limits=Limits(searches=2)),
        language_model.connect(server.spec),
    )
    assert not any(step.refused for step in submission.trace.steps)
    assert "other words" in told(server)[-1]["next"], "the second repeat is not in a row"


def test_a_search_that_brings_only_shown_documents_brings_their_ids(server, toolbox):
    Scripted(server, [BLUE, BLOOD, NOTHING])
    submission = searched(toolbox, language_model.connect(server.spec))
    rows = told(server)[1]
    assert {row["text"] for row in rows} == {"(shown before)"}
    first, second = (step for step in submission.trace.steps if step.tool == "search")
    assert first.shown and not second.shown and set(second.doc_ids) <= set(first.doc_ids)


def test_a_document_is_read_once(server, toolbox):
    reading = [("read", {"doc_id": "d3"})]
    Scripted(server, [BLUE, reading, reading, NOTHING])
    submission = searched(toolbox, language_model.connect(server.spec))
    assert "read before" in told(server)[-1]["repeated"]
    assert [step.tool for step in submission.trace.steps][:3] == ["search", "read", "repeat"]


def test_two_answers_without_a_call_at_the_beginning_lead_to_tools_in_the_prompt(server, toolbox):
    turns = iter([{"raw": "Hm."}, {"raw": "I would look for blood."}, DSPY, DONE])
    server.answer = lambda prompt: next(turns)
    submission = searched(toolbox, language_model.connect(server.spec))
    assert ["tools" in request for request in server.requests] == [True, True, False, False]
    assert submission.ranking[0] == "d3" and submission.trace.unusable == {"empty": 2}


def test_a_single_answer_without_a_call_does_not(server, toolbox):
    Scripted(server, [{"raw": "I would look for blood."}, BLUE, NOTHING])
    assert searched(toolbox, language_model.connect(server.spec)).ranking[0] == "d3"
    assert all("tools" in request for request in server.requests)


def test_an_unusable_step_of_dspys_interface_costs_its_step(server, toolbox):
    turns = iter([DSPY, {"raw": "?"}, {"raw": "?"}, DONE])
    server.answer = lambda prompt: next(turns)
    submission = searched(toolbox, language_model.connect(server.spec), interface="dspy")
    assert submission.ranking[0] == "d3" and submission.trace.steps[-1].argument == "done"
    assert submission.trace.unusable == {"unparsable": 2}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"raw": "blue", "finish": "length"}, "cut off"),
        ({"refusal": "I will not"}, "refused"),
        ({"raw": "hm"}, "empty"),
        ({"raw": f"<tools>\n{DECLARED}\n{DECLARED[:60]}", "finish": "length"}, "prompt copied"),
    ],
)
def test_an_answer_without_a_call_is_asked_for_once_more_and_counted_by_kind(
    answer, kind, server, toolbox
):
    turns = [BLOOD, answer, [("select", {"doc_ids": ["d3"]})], {"raw": "That is all there is."}]
    Scripted(server, turns)
    submission = searched(toolbox, language_model.connect(server.spec))
    assert submission.ranking[0] == "d3" and submission.trace.unusable == {kind: 1}
    assert submission.trace.steps[-1].argument == "done", "words after a selection end the search"
    *_, shown, complaint = server.requests[2]["messages"]
    assert "No tool was called" in complaint["content"]
    assert shown["content"] != "blue", "what ran away is not shown again"
    assert "properties" not in shown["content"], "nor a copy, which would be copied"


@pytest.mark.parametrize(
    "ids", [[3, 1.0], ["doc 3", "[1]"], '["3", "1"]', "3, 1", [{"doc_id": 3}, {"id": "1"}]]
)
def test_ids_in_arguments_are_taken_in_the_forms_that_models_write(ids, server, corpus):
    numbered = Corpus(Document(document.doc_id[1:], document.text) for document in corpus.values())
    Scripted(
        server,
        [
            BLUE,
            [("read", {"doc_id": 3})],
            [("select", {"doc_ids": ids})],
            [("finish", {"doc_ids": ids})],
        ],
    )
    submission = searched(Toolbox(numbered, BM25(numbered)), language_model.connect(server.spec))
    assert submission.ranking[:2] == ("3", "1") and submission.trace.unusable == {}


def test_arguments_by_other_names_are_read_and_those_that_no_tool_has_are_left_out(server, toolbox):
    turns = [
        [("search", {"search_query": "blue blood"})],
        [("search", {"query": "heart", "top_k": 3})],
    ]
    Scripted(server, [*turns, [("read", {"docId": "d3"})], [("finish", {"doc-ids": ["d3"]})]])
    submission = searched(toolbox, language_model.connect(server.spec))
    assert submission.trace.notes == ["search has no top_k: left out"]
    assert [
        step.argument for step in submission.trace.steps if step.tool in ("search", "read")
    ] == [
        "blue blood",
        "heart",
        "d3",
    ]
    assert submission.ranking[0] == "d3" and submission.trace.unusable == {}


def test_ids_that_a_server_gives_and_then_refuses_are_sent_with_nine_letters_and_digits(
    server, toolbox
):
    Scripted(server, [BLUE, [("search", {"query": "blood"})], NOTHING])
    reply = server.reply

    def mistral(path, body):
        for message in body["messages"]:
            for call in message.get("tool_calls") or ():
                if len(call["id"]) != 9:
                    raise Failure(
                        500, message="Tool call IDs should be alphanumeric strings with length 9!"
                    )
        made = reply(path, body)
        for call in made["choices"][0]["message"]["tool_calls"]:
            call["id"] = f"169737779789{len(server.requests)}"
        return made

    server.reply = mistral
    submission = searched(toolbox, language_model.connect(server.spec), steps=3)
    assert submission.usage.calls == 3 and len(server.requests) == 4
    call, result = server.requests[-1]["messages"][2:4]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "c00002000"


DSPY = {
    "thought": "look",
    "calls": json.dumps({"tool_calls": [{"name": "search", "args": {"query": "blue blood"}}]}),
}
DONE = {
    "thought": "done",
    "calls": json.dumps({"tool_calls": [{"name": "finish", "args": {"doc_ids": []}}]}),
}


def test_a_server_that_takes_no_tools_gets_prompts_instead_and_is_asked_once(server, toolbox):
    turns = iter([DSPY, DONE, DSPY, DONE])

    def answer(prompt):
        if "tools" in server.requests[-1]:
            raise Failure(400, "invalid", "this model does not support tools")
        return next(turns)

    server.answer = answer
    model = language_model.connect(server.spec)
    first, second = (searched(toolbox, model) for _ in range(2))
    assert first.ranking == second.ranking and "d3" in first.ranking
    assert ["tools" in request for request in server.requests] == [True, False, False, False, False]
    assert "[[ ## history ## ]]" in str(server.requests[2]) and "search" in str(server.requests[2])


def test_a_conversation_that_is_too_long_is_no_sign_that_a_server_takes_no_tools(server, toolbox):
    def answer(prompt):
        if len(server.requests) > 1:
            words = (
                "The maximum context length is 8192 tokens; these are 9000 (500 in the functions)."
            )
            raise Failure(400, "context_length_exceeded", words)
        return {"tool_calls": BLOOD}

    server.answer = answer
    model = language_model.connect(server.spec)
    with pytest.raises(dspy.ContextWindowExceededError):
        searched(toolbox, model)
    assert len(server.requests) == 2 and model.lm.tools is not None


def test_an_interface_that_is_asked_for_is_kept_to(server, toolbox):
    turns = iter([DSPY, DONE])
    server.answer = lambda prompt: next(turns)
    assert searched(toolbox, language_model.connect(server.spec), interface="dspy").ranking
    assert not any("tools" in request for request in server.requests)
    with pytest.raises(UsageError, match="interface=auto"):
        searched(toolbox, language_model.connect("offline", statistics=dict), interface="openai")


def test_searches_beyond_the_limit_are_refused_and_the_agent_goes_on(server, corpus):
    turns = [BLOOD, [("search", {"query": "heart"})], [("select", {"doc_ids": ["d1"]})], NOTHING]
    Scripted(server, turns)
    submission = searched(
        Toolbox(corpus, BM25(corpus), limits=Limits(searches=1)),
        language_model.connect(server.spec),
    )
    assert submission.ranking[0] == "d1"
    assert "submit now" in [step.refused for step in submission.trace.steps][1]


def test_a_conversation_that_grows_too_long_loses_its_oldest_results_and_says_so(server):
    corpus = Corpus(Document(f"d{n}", f"blood {n} " + "and so on " * 40) for n in range(30))
    Scripted(server, [*([("search", {"query": f"blood {n}"})] for n in range(6)), NOTHING])
    submission = searched(
        Toolbox(corpus, BM25(corpus)),
        language_model.connect(server.spec, settings=language_model.ModelSettings(context=8000)),
    )
    shortened = [step for step in submission.trace.steps if step.tool == "shorten"]
    assert shortened and "oldest" in shortened[-1].argument
    assert "left out" in str(server.requests[-1]["messages"]) and len(server.requests) == 7


@pytest.mark.parametrize(
    "call",
    [
        {"function": {"name": "search", "arguments": None}},
        {"function": {"name": "search", "arguments": {"query": {"all of": [], "any of": []}}}},
        {"function": {"name": None, "arguments": "{}"}},
        {"function": None},
        {"function": {"name": "search", "arguments": "[" * 100_000}},
    ],
    ids=[
        "no arguments",
        "arguments that are no text",
        "no name",
        "no function",
        "arguments too deep to read",
    ],
)
def test_a_call_in_another_form_than_the_protocols_is_unusable_and_mended(call, server, toolbox):
    Scripted(server, [BLOOD, [("x", {})], [("finish", {"doc_ids": ["d1"]})]])
    reply = server.reply

    def malformed(path, body):
        made = reply(path, body)
        if len(server.requests) == 2:
            made["choices"][0]["message"] |= {"content": ["?"], "tool_calls": [{"id": "c", **call}]}
        return made

    server.reply = malformed
    submission = searched(toolbox, language_model.connect(server.spec))
    assert submission.ranking[0] == "d1" and sum(submission.trace.unusable.values()) == 1
    assert submission.usage.repairs == 1
