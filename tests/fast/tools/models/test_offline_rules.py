"""The rules of the engine without a model. Left out: what programs make of their answers."""

from sextant.tools.models.offline_rules import list_criteria
from sextant.tools.text import TermStatistics

STATISTICS = TermStatistics(10, 8.0, {"ferry": 2, "fog": 3, "harbour": 4})


def test_a_description_is_cut_at_marks_lines_and_conjunctions():
    text = "the ferry, in fog\nand  the harbour"
    assert set(list_criteria({"description": text}, STATISTICS)) == {
        "the ferry",
        "in fog",
        "and  the harbour",
    }
    assert list_criteria({"description": "fog  and   harbour"}, STATISTICS) == ["fog", "harbour"]


def test_a_description_with_a_long_run_of_blanks_is_cut_in_linear_time():
    """Quadratic time would take hours."""
    blanks = " " * 1_000_000
    criteria = list_criteria({"description": f"fog{blanks}ferry"}, STATISTICS)
    assert criteria == [f"fog{blanks}ferry"]
