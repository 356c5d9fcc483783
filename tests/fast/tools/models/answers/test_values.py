"""Values that models write in another form than that of their type."""

from typing import Any, Literal

import pydantic
import pytest

from sextant.tools.models.answers.fields import RepairBudget, TooBroken, convert, repair_json


class Verdict(pydantic.BaseModel):
    id: str
    grade: int
    why: str = ""


TEN = {"minimum": 0, "maximum": 10}
WRITTEN: list[tuple[Any, Any, Any]] = [
    (list[str], [101, 102.0, "103"], ["101", "102", "103"]),
    (list[str], '["101"]', ["101"]),
    (list[str], "101, 102", ["101", "102"]),
    (list[str], "- d1\n- d2\n", ["d1", "d2"]),
    (list[str], "1. d1\n2. d2", ["d1", "d2"]),
    (list[str], "[1] > [2]", ["1", "2"]),
    (list[str], "boats, bridges and old trams", ["boats, bridges and old trams"]),
    (list[str], [{"doc_id": 101}, {"id": "d2"}], ["101", "d2"]),
    (list[str], {"doc_ids": ["d1"]}, ["d1"]),
    (list[str], None, []),
    (list[str], "None", []),
    (list[str], '```json\n["d1"]\n```', ["d1"]),
    (list[int], "1, 2", [1, 2]),
    (float, "8/10", 8.0),
    (float, "0.8/1", 0.8),
    (float, "**8.5**", 8.5),
    (float, "Score: 8", 8.0),
    (float, "8 (it fits well)", 8.0),
    (float, "8 out of 10", 8.0),
    (int, "3.0", 3),
    (bool, "yes", True),
    (bool, "No, it is about trams.", False),
    (Literal["yes", "no"], "Yes.", "yes"),
    (Verdict, {"doc_id": 101, "Grade": "2/3"}, Verdict(id="101", grade=2)),
    (list[Verdict], {"verdicts": [{"id": 1, "grade": 1}]}, [Verdict(id="1", grade=1)]),
    (dict[str, float], '{"d1": "0.5"}', {"d1": 0.5}),
]
MANY_THINGS: list[tuple[Any, Any]] = [
    (float, "between 3 and 5"), (float, "3 - 5"), (float, "1,000"), (float, "8 or 9"), (float, "80%"), (float, "eight"),
    (int, "3.5"), (bool, "no idea"),
    (bool, "not sure"), (Literal["yes", "no"], "perhaps"), (list[str], [["a", "b"]]), (list[str], [True]), (str, {}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "written", "meant"), WRITTEN)
def test_a_value_in_another_form_is_made_into_its_type(kind, written, meant):
    assert convert(kind, written) == meant and type(convert(kind, written)) is type(meant)


@pytest.mark.parametrize(("kind", "written"), MANY_THINGS)
def test_what_may_mean_several_things_is_not_taken(kind, written):
    with pytest.raises(ValueError):  # pydantic's, too
        convert(kind, written)


@pytest.mark.parametrize(("written", "score"), [("8/10", 8), ("4/5", 8), ("0.8/1", 8), ("8", 8)])
def test_a_score_of_another_scale_is_one_of_the_scale_that_was_asked_for(written, score):
    assert convert(float, written, TEN) == score


def test_repairs_of_one_text_share_what_they_may_read():
    budget = RepairBudget()
    assert repair_json('{"a": 1', budget) == {"a": 1}
    budget.left = 3
    with pytest.raises(TooBroken):
        repair_json('{"a": 1', budget)


@pytest.mark.parametrize(
    ("text", "expected"), [("```json\n[1]\n```", [1]), ("``` [1] ```", [1]), ("```[1]```", [1])]
)
def test_a_fence_is_taken_off(text, expected):
    assert convert(list[int], text) == expected
