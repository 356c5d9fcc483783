"""The part of an answer that is used: whole fields, whole items before a cut, shown ids inside wrong values."""

from typing import Literal

import dspy
import pydantic
import pytest

from sextant.tools.models.answers.checks import (
    CallContext,
    LastAnswer,
    PredictorCall,
    changed_call,
    copies_prompt,
    ends_inside_list,
    filled,
    require_in_range,
    require_known_ids,
    require_known_row_ids,
    state_most_items,
)
from sextant.tools.models.answers.salvage import salvage
from sextant.tools.models.prompting import Adapter, Passage


class Row(pydantic.BaseModel):
    id: str
    grade: int


class Read(dspy.Signature):
    """Read passages."""

    passages: list[Passage] = dspy.InputField()
    selected: list[str] = dspy.OutputField(desc="ids of passages to keep")
    rows: list[Row] = dspy.OutputField()
    score: float = dspy.OutputField()
    words: str = dspy.OutputField()


SHOWN = ["d1", "d12", "d2"]
TEXTS = ["the blood of an octopus is blue", "a heart pumps the blood", "a heart pumps the blood"]
PASSAGES = [Passage(id=doc_id, text=text) for doc_id, text in zip(SHOWN, TEXTS, strict=True)]
EMPTY = {"selected": [], "rows": [], "score": None, "words": ""}
WHOLE = {"selected": '["d1"]', "rows": '[{"id": "d2", "grade": 1}]', "score": "4", "words": "blue"}


def written(**fields):
    return "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items())


def part(text, *, cut=True, names=tuple(WHOLE), fallback=EMPTY):
    """The values of the usable part; None if there is none."""
    signature = Read
    for name in Read.output_fields.keys() - set(names):
        signature = signature.delete(name)
    checks = [require_known_ids("selected", SHOWN), require_known_row_ids("rows", SHOWN)]
    call = PredictorCall(Adapter(), signature, {"passages": PASSAGES})
    context = CallContext(
        checks=tuple(check for check in checks if check.ids.keys() <= set(names)),
        fallback=fallback,
        predictor_call=call,
        answer=LastAnswer(text, "length" if cut else "stop"),
    )
    with changed_call(**{name: getattr(context, name) for name in context.__slots__}):
        found = salvage(signature, context, None, is_cut=cut)
    return found and found.values


CUT_LISTS = {
    '["d2", "d1': ["d2"],
    '["d2", "d1"': ["d2", "d1"],
    '["d2", "d1",': ["d2", "d1"],
    "- d2\n- d1": ["d2"],
    "- d2\n- d1\n": ["d2", "d1"],
    "d2, d1": ["d2"],
    '["d1': None,
    "[": None,
    "": None,
}


@pytest.mark.parametrize("value", CUT_LISTS)
def test_a_list_has_its_whole_items_before_the_cut(value):
    text = f"[[ ## selected ## ]]\n{value}"
    assert part(text, names=["selected"]) == (
        {"selected": CUT_LISTS[value]} if CUT_LISTS[value] else None
    )


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ('[{"id": "d2", "grade": 1}, {"id": "d1", "gra', ["d2"]),
        ('[{"id": "d2", "grade": 1}, {"id": "d1", "grade": 1', ["d2"]),
        ('[{"id": "d2", "grade": 1}, {"id": "d1", "grade": 1}', ["d2", "d1"]),
    ],
)
def test_a_list_of_objects_has_those_that_were_closed_before_the_cut(value, ids):
    found = part(f"[[ ## rows ## ]]\n{value}", names=["rows"])
    assert [row.id for row in found["rows"]] == ids


def test_a_text_is_used_up_to_the_cut_without_the_beginning_of_a_marker():
    text = written(words="the blood of\nan octopus")
    for end in ("", "\n\n[[", "\n\n[[ ## sco", "\n\n[[ ## score ## ]"):
        assert part(text + end, names=["words", "score"], fallback=EMPTY | {"score": []})[
            "words"
        ].startswith("the blood of\nan octopus")


def test_a_number_in_which_the_answer_was_cut_off_is_not_used():
    assert part("[[ ## score ## ]]\n1", names=["score"]) is None
    assert part("[[ ## score ## ]]\n1\n", names=["score"]) == {"score": 1.0}


def test_a_json_object_that_was_cut_off_is_used_as_far_as_it_goes():
    text = '{"selected": ["d1", "d2"], "words": "blue bl'
    assert part(text, names=["selected", "words"]) == {
        "selected": ["d1", "d2"],
        "words": "blue bl",
    }


def test_the_first_of_several_json_objects_is_used():
    text = '{"selected": ["d1"], "words": "blue"}\n{"selected": ["d2"], "words": "red"}\n{"sel'
    assert part(text, names=["selected", "words"]) == {"selected": ["d1"], "words": "blue"}


SENTENCES = {
    "The passages d1 and d12 fit.": ["d1", "d12"],
    "Passage [d12] fits best (see d2).": ["d12", "d2"],
    "the passage that tells of a heart": None,
    "d3 and d123": None,
    '{"d2": {}}': ["d2"],
}


@pytest.mark.parametrize("value", SENTENCES)
def test_shown_ids_inside_a_wrong_value_are_used(value):
    expected = SENTENCES[value]
    found = part(written(selected=value), cut=False, names=["selected"])
    assert found == ({"selected": expected} if expected else None)


@pytest.mark.parametrize("name", WHOLE)
def test_a_missing_field_is_empty_if_its_fallback_is_an_empty_text_or_list(name):
    text = written(**{field: value for field, value in WHOLE.items() if field != name})
    found = part(text, cut=False)
    if name == "score":
        assert found is None, "a number is needed"
    else:
        assert found[name] == EMPTY[name]
    assert part(text, cut=False, fallback={}) is None, (
        "a user's own call says nothing of its fields"
    )


def test_an_answer_of_which_nothing_is_the_models_own_has_no_usable_part():
    assert part("Certainly!", cut=False, fallback=EMPTY | {"score": ""}) is None


def test_copies_of_the_prompt_are_no_values():
    descriptions = ("ids of passages to keep", "{selected}")
    for value in descriptions:
        assert copies_prompt(Read, value) and copies_prompt(Read, [value])
        assert part(written(selected=value), cut=False, names=["selected"]) is None
    assert not copies_prompt(Read, "the ids of passages to keep warm in winter are unknown to us")
    assert not copies_prompt(Read, "blue") and not copies_prompt(Read, 4.0)


def test_a_row_with_a_reference_or_a_description_of_the_schema_is_a_copy():
    class Condition(pydantic.BaseModel):
        search: str = pydantic.Field(description="a search text for it")
        role: Literal["must", "not"]

    class Split(dspy.Signature):
        conditions: list[Condition] = dspy.OutputField()

    for words in ("#/$defs/Condition", "A search text for it"):
        copy = Condition(search=words, role="must")
        assert copies_prompt(Split, [copy, copy])
        assert not copies_prompt(Split, [copy, Condition(search="blue", role="must")])


def test_a_copied_remark_beside_a_search_costs_the_row_nothing():
    class Condition(pydantic.BaseModel):
        search: str = pydantic.Field(description="a search text for it")
        reading: str = pydantic.Field(description="how it is to be understood")

    class Split(dspy.Signature):
        conditions: list[Condition] = dspy.OutputField()

    copied = "how it is to be understood"
    assert not copies_prompt(Split, [Condition(search="blue", reading=copied)])
    assert copies_prompt(Split, [Condition(search="a search text for it", reading=copied)])
    assert copies_prompt(Split, [Condition(search="#/$defs/Condition", reading="a colour")])


def test_a_check_of_a_field_that_is_needed_holds_for_a_part_as_well():
    class Write(dspy.Signature):
        kind: Literal["a", "b"] = dspy.OutputField()
        text: str = dspy.OutputField()

    context = CallContext(
        checks=(filled("text"),),
        fallback={"kind": "", "text": "the description"},
        answer=LastAnswer(written(kind="a", text=" "), "length"),
    )
    assert salvage(Write, context, None, is_cut=True) is None


def test_a_part_without_a_field_whose_length_alone_is_stated_is_as_good():
    class Score(dspy.Signature):
        quotes: list[str] = dspy.OutputField()
        score: float = dspy.OutputField()

    checks = (require_in_range("score", 0, 10), state_most_items("quotes", 3))
    for fields, has_checked in (({"score": 4}, True), ({"quotes": '["blue"]'}, False)):
        context = CallContext(
            checks=checks,
            fallback={"quotes": [], "score": 0.0},
            answer=LastAnswer(written(**fields), "stop"),
        )
        usable = salvage(Score, context, None, is_cut=False)
        assert (usable is not None and usable.has_checked_fields) is has_checked


def test_an_answer_ends_inside_a_list_whatever_its_server_says():
    assert ends_inside_list('[[ ## selected ## ]]\n["d1", "d')
    assert ends_inside_list('```json\n{"selected": ["d1"')
    for whole in ('[[ ## selected ## ]]\n["d1"]', '```json\n{"a": 1}\n```', "d1, d2", ""):
        assert not ends_inside_list(whole)
