"""Plots of tables and places: drawn for every kind, the same bytes for the same data, with the names as text."""

import pytest

from evals.showing.plots import KINDS, points_svg, table_svg

OURS = {"BM25": {"books": 0.5, "films": None}, "$k$ <dense>": {"books": 0.25, "films": 1.0}}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_drawn_with_a_panel_for_each_part_and_gaps_where_nothing_was_measured(kind):
    drawn = table_svg(kind, {"published": OURS | {"E5": {"books": 0.1}}, "ours": OURS}, "R@10", "Table 6")
    assert drawn == table_svg(kind, {"published": OURS | {"E5": {"books": 0.1}}, "ours": OURS}, "R@10", "Table 6")
    for name in ("published", "ours", "films", "E5", "BM25", "&lt;dense&gt;"):
        assert name in drawn


def test_places_are_drawn_with_a_marker_for_each_kind():
    drawn = points_svg({"query": [(0.0, 0.0)], "hard negative": [(1.0, 2.0), (2.0, 1.0)]}, "Figure 4")
    assert "hard negative" in drawn and "query" in drawn
