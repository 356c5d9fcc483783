"""Values that models write in another form than that of their type, and ids in another than that they have."""

import enum
from typing import Any, Literal

import pydantic
import pytest

from sextant.tools.models.answers.values import Ids, convert


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


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
    (float, "1,000", 1000.0),
    (int, "3.0", 3),
    (bool, "yes", True),
    (bool, "No, it is about trams.", False),
    (Literal["yes", "no"], "Yes.", "yes"),
    (Colour, "Red", Colour.RED),
    (str | None, "none", None),
    (Verdict, {"doc_id": 101, "Grade": "2/3"}, Verdict(id="101", grade=2)),
    (list[Verdict], {"verdicts": [{"id": 1, "grade": 1}]}, [Verdict(id="1", grade=1)]),
    (dict[str, float], '{"d1": "0.5"}', {"d1": 0.5}),
]
MANY_THINGS: list[tuple[Any, Any]] = [
    (float, "between 3 and 5"), (float, "8 or 9"), (float, "80%"), (float, "eight"), (int, "3.5"), (bool, "no idea"),
    (bool, "not sure"), (Literal["yes", "no"], "perhaps"), (list[str], [["a", "b"]]), (list[str], [True]), (str, {}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "written", "meant"), WRITTEN)
def test_a_value_in_another_form_is_made_into_its_type(kind, written, meant):
    assert convert(kind, written) == meant and type(convert(kind, written)) is type(meant)


@pytest.mark.parametrize(("kind", "written"), MANY_THINGS)
def test_what_may_mean_several_things_is_not_taken(kind, written):
    with pytest.raises(ValueError):  # pydantic's, too
        convert(kind, written)


@pytest.mark.parametrize(
    ("written", "score"), [("8/10", 8), ("4/5", 8), ("0.8/1", 8), ("80%", 8), ("8", 8)]
)
def test_a_score_of_another_scale_is_one_of_the_scale_that_was_asked_for(written, score):
    assert convert(float, written, TEN) == score


SHOWN = ["101", "102", "DOC-3", "051", "d 1", "7", "a/b"]
MEANT = {
    "101": [
        "101",
        101,
        101.0,
        "101.0",
        "[101]",
        "101.",
        "doc 101",
        "Document 101",
        "id=101",
        "#101",
        " '101' ",
    ],
    "102": ["102: a title with 7 in it", "doc_id: 102 (0.7)", {"doc_id": 102}, "102 - The tram"],
    "DOC-3": ["doc-3", "DOC-3,", "doc - 3"],
    "051": [51, "51", "0051"],
    "d 1": ["d1", "D  1"],
}


@pytest.mark.parametrize(
    ("doc_id", "written"), [(doc_id, one) for doc_id, many in MEANT.items() for one in many]
)
def test_an_id_is_found_among_those_shown_by_whatever_it_was_written_as(doc_id, written):
    assert Ids(SHOWN).find(written) == doc_id


def test_what_may_be_two_ids_or_none_is_not_taken_for_one():
    ids = Ids(["51", "051", "0051", "7"])
    assert ids.find("51") == "51" and ids.find("00051") is None
    for words in ("the 7 boats", "boats", "7 boats", "70", {"a": 1, "b": 2}, ["7", "51"]):
        assert ids.find(words) is None
    assert ids.read(["7, 51", "boats", 7.0]) == ["7", "51", "boats", "7"]
