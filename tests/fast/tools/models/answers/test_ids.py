"""Ids that a model writes in another form than that they have are found among those it was shown."""

import pytest

from sextant.tools.models.answers.checks import Ids

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


@pytest.mark.parametrize(
    ("written", "doc_id"), [("007", "7"), ("7.0", "7"), ("0", "0"), ("00", "0"), ("7.50", None)]
)
def test_numbers_are_ids_without_zeros_that_do_not_count(written, doc_id):
    assert Ids({"7", "0"}).find(written) == doc_id


def test_a_short_number_in_a_sentence_is_an_id_only_behind_a_word_for_one():
    ids = Ids(["2", "15", "1024"])
    assert ids.find_in_text("of the 15 passages I keep passage 2, and [15]") == ["2", "15"]
    assert ids.find_in_text("of 15, none") == [] and ids.find_in_text("it is 1024.") == ["1024"]
