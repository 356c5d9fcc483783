"""Answers that cannot be used: asked for once more with what was wrong, then a fault of the system, counted by kind."""

import re
from pathlib import Path

import dspy
import pytest
from conftest import on_congress

from sextant.evals import run_folder
from sextant.programs.multihop import ReadPassages
from sextant.tools.models import language_model
from sextant.tools.models.answers.checks import (
    InvalidAnswer,
    UnusableAnswer,
    filled,
    require_in_range,
    require_known_ids,
)
from sextant.tools.models.model_spec import DEFAULTS, ModelSettings
from sextant.tools.models.prompting import Passage, ask
from sextant.tools.models.tokens import count_prompt_tokens
from sextant.tools.records import Query, Usage
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox

SHOWN = ["d1", "d2"]
SHORTEST_ANSWER = 64  # tokens that a prompt leaves at least
GOOD = {"selected": '["d2"]', "observations": "blue"}
INPUTS = {
    "objective": "",
    "description": "blue blood",
    "notes": [],
    "passages": [Passage(id=doc_id, text="blue") for doc_id in SHOWN],
}

_FORM = '[[ ## selected ## ]]\n["d1"]\n\n[[ ## observations ## ]]\na draft\n\n[[ ## completed ## ]]'
BRIEF = "Keep the answer short"
CUT_IN_LAST_FIELD = {
    "raw": '[[ ## selected ## ]]\n["d2"]\n\n[[ ## observations ## ]]\nbl',
    "finish": "length",
}
# (what the model says, the kind of unusable that it is, words of what it is told)
UNUSABLE = {
    "no fields": ({"raw": "Certainly! Here are my thoughts."}, "unparsable", "all of the fields"),
    "a field is missing": ({"selected": '["d2"]'}, "unparsable", "all of the fields"),
    "another type": (
        {"selected": '{"d2": {}}', "observations": "blue"},
        "wrong type",
        "selected is not of the type",
    ),
    "words for ids": (
        {"selected": "the second", "observations": "blue"},
        "unknown ids",
        "'the second'",
    ),
    "only unknown ids": ({"selected": '["d9"]', "observations": "blue"}, "unknown ids", "'d9'"),
    "some unknown ids": (
        {"selected": '["d1", "d9"]', "observations": "blue"},
        "unknown ids",
        "'d9'",
    ),
    "an empty answer": ({"raw": ""}, "empty", "it is empty"),
    "an empty field": (
        {"selected": '["d2"]', "observations": " "},
        "empty",
        "observations is empty",
    ),
    "cut off": ({"raw": "[[ ## selected ## ]]\n[", "finish": "length"}, "cut off", BRIEF),
    "thoughts that were cut off": (
        {"raw": f"<think>\n{_FORM}", "finish": "length"},
        "cut off",
        BRIEF,
    ),
    "thoughts alone": ({"raw": f"<think>\n{_FORM}\n</think>"}, "empty", "it is empty"),
    "nested too deep": (
        {**GOOD, "selected": "[" * 4000 + "]" * 4000},
        "wrong type",
        "not of the type",
    ),
    "too many stray quotes": (
        {**GOOD, "selected": '["' + 'a "b ' * 4_000},
        "wrong type",
        "not of the type",
    ),
    "refused in words": (
        {"raw": "I'm sorry, but I can't help with that."},
        "refused",
        "only to be judged",
    ),
    "refused as it is typeset": (
        {"raw": "I\u2019m sorry, I can\u2019t."},
        "refused",
        "only to be judged",
    ),
    "refused by the protocol": ({"refusal": "no"}, "refused", "only to be judged"),
    "filtered": ({"raw": "", "finish": "content_filter"}, "refused", "only to be judged"),
}
# The ids of the part that is used if the second answer is no better.
PARTLY_USABLE = {"some unknown ids": ["d1"], "another type": ["d2"]}


@pytest.fixture
def opened(corpus):
    return Toolbox(corpus, BM25(corpus)).open(Query("q1", "blue blood"))


def read(server, settings=DEFAULTS):
    with language_model.connect(server.spec, settings=settings).active():
        return ask(
            dspy.Predict(ReadPassages),
            require_known_ids("selected", SHOWN),
            filled("observations"),
            **INPUTS,
        )


def test_a_request_for_a_short_answer_names_no_number_that_could_be_its_score(server, opened):
    server.answer_in_turn(UNUSABLE["cut off"][0], GOOD)
    assert read(server).selected == ["d2"]
    request = server.requests[1]["messages"][-1]["content"]
    line = next(line for line in request.splitlines() if line.startswith(BRIEF))
    assert not re.search(r"\d", line)


@pytest.mark.parametrize("name", ["some unknown ids", "no fields"])
def test_a_repair_for_which_the_window_has_no_room_is_not_sent(name, server, opened):
    bad, kind, _ = UNUSABLE[name]
    server.answer_in_turn(GOOD)
    read(server)
    full = count_prompt_tokens(server.requests[0]["messages"]) + SHORTEST_ANSWER
    server.answer_in_turn(bad, GOOD)
    if name in PARTLY_USABLE:
        assert read(server, ModelSettings(context=full)).selected == PARTLY_USABLE[name]
        assert opened.trace.used_in_part == {kind: 1}
    else:
        with pytest.raises(UnusableAnswer):
            read(server, ModelSettings(context=full))
        assert opened.trace.unusable == {kind: 1}
    assert (opened.usage.calls, opened.usage.repairs) == (2, 0)
    assert any("the prompt is full" in step.argument for step in opened.trace.steps)


REQUIREMENTS = "Respond with the corresponding output fields"
NOT_SHOWN = ("cut off", "empty")


@pytest.mark.parametrize(("bad", "kind", "told"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_answer_is_requested_once_more_and_counted(bad, kind, told, server, opened):
    server.answer_in_turn(bad, GOOD)
    assert read(server).selected == ["d2"]
    assert opened.trace.unusable == {kind: 1} and opened.trace.used_in_part == {}
    assert (opened.usage.calls, opened.usage.repairs) == (2, 1)
    first, second = [request["messages"] for request in server.requests]
    request = second[-1]["content"]
    assert told in request and "The ids for selected: d1, d2" in request
    assert request.rpartition("\n\n")[2].startswith(REQUIREMENTS), "its words are no answer's"
    shown = "" if "<think>" in bad.get("raw", "") or kind in NOT_SHOWN else bad.get("raw", "")
    if kind in NOT_SHOWN or bad.get("raw") == "":
        assert second[:-1] == first[:-1] and request.startswith(first[-1]["content"])
    else:
        assert second[:-2] == first and second[-2]["role"] == "assistant"
        assert shown in second[-2]["content"]
    assert "a draft" not in str(second), "thoughts are not shown again"


@pytest.mark.parametrize(
    ("bad", "kind", "told"),
    [UNUSABLE[name] for name in UNUSABLE if name not in PARTLY_USABLE],
)
def test_a_second_unusable_answer_ends_the_call(bad, kind, told, server, opened):
    server.answer_in_turn(bad, bad)
    with pytest.raises(UnusableAnswer, match=kind):
        read(server)
    assert opened.trace.unusable == {kind: 2} and len(server.requests) == 2


@pytest.mark.parametrize("name", PARTLY_USABLE)
def test_a_part_of_the_second_unusable_answer_is_used(name, server, opened):
    bad, kind, _ = UNUSABLE[name]
    server.answer_in_turn(bad, bad)
    assert read(server).selected == PARTLY_USABLE[name]
    assert opened.trace.unusable == {kind: 1} and opened.trace.used_in_part == {kind: 1}
    assert opened.trace.steps[-1].tool == "salvage" and kind in opened.trace.steps[-1].argument


def test_a_part_of_the_first_answer_is_used_if_the_second_has_none(server, opened):
    server.answer_in_turn(UNUSABLE["some unknown ids"][0], UNUSABLE["no fields"][0])
    assert read(server).selected == ["d1"]
    assert opened.trace.unusable == {"unparsable": 1} and len(server.requests) == 2
    assert opened.trace.used_in_part == {"unknown ids": 1} and opened.trace.invented_ids == 1


def test_a_copy_of_the_request_for_a_repair_is_no_answer(server, opened):
    def answer_then_copy(prompt):
        return copied(prompt) if "does not fit" in prompt else UNUSABLE["some unknown ids"][0]

    server.answer = answer_then_copy
    assert read(server).selected == ["d1"]
    assert opened.trace.unusable == {"prompt copied": 1}


def test_a_field_that_can_be_gone_without_costs_no_repair_if_it_copies_the_prompt(server, opened):
    instructions = " ".join(ReadPassages.instructions.split())
    server.answer_in_turn({"selected": '["d2"]', "observations": instructions})
    with language_model.connect(server.spec).active():
        answer = ask(
            dspy.Predict(ReadPassages),
            require_known_ids("selected", SHOWN),
            fallback={"selected": [], "observations": ""},
            **INPUTS,
        )
    assert (answer.selected, answer.observations) == (["d2"], "")
    assert len(server.requests) == 1 and opened.trace.used_in_part == {"prompt copied": 1}


def test_a_field_that_is_checked_is_asked_for_again_if_it_copies_the_prompt(server, opened):
    description = ReadPassages.output_fields["selected"].json_schema_extra["desc"]
    server.answer_in_turn({"selected": description, "observations": "blue"}, GOOD)
    assert read(server).selected == ["d2"] and len(server.requests) == 2
    assert opened.trace.unusable == {"prompt copied": 1}


def copied(prompt: str):
    """An answer with the words of the last request in place of ids."""
    words = prompt.rpartition("This answer does not fit")[2].partition("\n")[0]
    return {"selected": f"This answer does not fit{words}", "observations": "blue"}


def test_an_answer_with_its_last_line_is_whole_whatever_the_server_says_of_its_end(server, opened):
    server.answer_in_turn({**GOOD, "finish": "length"})
    assert read(server).selected == ["d2"] and opened.trace.unusable == {}


WRITTEN = [
    "[2, 1]",
    '["doc 2", "[1]"]',
    "2.0, 1.0",
    "- 2\n- 1",
    "2 and 1",
    '[{"doc_id": 2}, {"id": "1"}]',
]


@pytest.mark.parametrize("written", WRITTEN)
def test_ids_are_found_in_whatever_form_a_model_writes_them(written, server, corpus):
    server.answer_in_turn({"selected": written, "observations": "blue"})
    passages = [Passage(id=doc_id, text="blue") for doc_id in ("1", "2")]
    with language_model.connect(server.spec).active():
        check = require_known_ids("selected", ["1", "2"])
        assert ask(
            dspy.Predict(ReadPassages), check, **{**INPUTS, "passages": passages}
        ).selected == ["2", "1"]


@pytest.mark.parametrize(
    ("check", "good", "bad", "said"),
    [
        (filled("x"), ["", "blue"], ([], [""], [" ", "\n"]), "x is empty"),
        (require_in_range("x", 0, 10), 10, (-1, 10.5, float("nan")), "from 0 to 10"),
    ],
)
def test_a_list_of_blank_texts_is_empty_and_a_number_out_of_range_is_of_the_wrong_type(
    check, good, bad, said
):
    check({"x": good})
    for value in bad:
        with pytest.raises(InvalidAnswer, match=said):
            check({"x": value})


def test_what_cannot_be_used_is_counted_by_kind_in_the_run_and_its_query_scores_nothing(
    run, server
):
    server.answer = lambda prompt: (
        {"raw": ""} if "## hop ##" in prompt else {"raw": "I can't do that."}
    )
    arguments = (
        *on_congress("multihop", 2),
        "--lm",
        server.spec,
    )
    result = run(*arguments, "--json")
    unusable = {"empty": 16, "refused": 4}
    assert result.code == 7 and result.json["failed"] == 2 and result.json["unusable"] == unusable
    assert (result.json["owed"], result.json["metrics"]["nDCG@10"]["mean"]) == (0, 0)
    for outcome in run_folder.read_outcomes(Path(result.json["run"])).values():
        assert outcome["error"].startswith("UnusableAnswer: empty")
        assert outcome["trace"]["steps"][-1]["argument"] == "error"
    assert "20 of 20 answers could not be used: 16 empty, 4 refused" in run(*arguments).out


def test_a_cut_answer_is_used_as_far_as_it_goes_also_when_it_was_given_before(
    server, corpus, place
):
    server.answer_in_turn(CUT_IN_LAST_FIELD)
    for _ in range(2):
        session = Toolbox(corpus, BM25(corpus)).open(Query("q1", "blue blood"))
        model = language_model.connect(server.spec)
        model.begin(place, Usage())
        with model.active():
            answer = ask(dspy.Predict(ReadPassages), **INPUTS)
        assert (answer.selected, answer.observations) == (["d2"], "bl")
        assert len(server.requests) == 1 and session.trace.used_in_part == {"cut off": 1}
    kept = model.resources.ledger.answers.query("SELECT finish FROM calls ORDER BY id")
    assert kept == [("length",)]
