"""Plots of tables and places: the same bytes for the same data, with the names as text."""

import pytest

from sextant.evals.reporting.plots import Panel, Point, Series, draw_panels, svg
from sextant.evals.studies.reproduced_figures import draw_figure, make_panels
from sextant.evals.studies.reproduced_table import TableCell


@pytest.mark.parametrize("kind", ["points", "line", "dashed", "steps", "front", "hollow"])
def test_a_panel_is_drawn_for_each_part_and_names_are_text(kind):
    series = [Series("$k$ <dense>", [Point(0, 0.5, 0.4, 0.6), Point(1, 0.25)], 9, kind)]
    panels = [Panel("", "R@10", series, {0: "books", 1: "films"}, title=title) for title in "ab"]
    drawn, again = (svg(draw_panels(panels), "Table 6") for _ in range(2))
    assert drawn == again and drawn.count("books") == 2
    for name in ("films", "$k$ &lt;dense&gt;", "R@10"):
        assert name in drawn


def cells(*rows):
    names = ("system", "task", "metric", "published", "ours")
    return [TableCell(**dict(zip(names, row, strict=True)), split="test") for row in rows]


def shown(panels):
    """title -> series -> (tick, value)"""
    return {
        panel.title: {
            series.label: [(panel.ticks[point.x], point.y) for point in series.points]
            for series in panel.series
        }
        for panel in panels
    }


def test_a_figure_is_made_of_the_cells_of_its_table():
    made = cells(
        ("BM25", "crumb/*", "nDCG@10", 0.128, 0.1),
        ("BM25 | Query-to-Doc", "crumb/*", "nDCG@10", 0.2, None),
        ("E5", "crumb/*", "nDCG@10", None, 0.3),
    )
    how = {"kind": "points", "rows": "variant", "columns": "base"}
    assert shown(make_panels(made, how)) == {
        "published": {"as it is": [("BM25", 0.128)], "Query-to-Doc": [("BM25", 0.2)]},
        "ours": {"as it is": [("BM25", 0.1), ("E5", 0.3)]},
    }
    drawn = draw_figure("crumb-figure3", "By rewriting", made, how)
    assert drawn.keys() == {"crumb-figure3.svg", "crumb-figure3.pdf"}
    assert drawn["crumb-figure3.pdf"].startswith(b"%PDF")
    assert drawn == draw_figure("crumb-figure3", "By rewriting", made, how)
    assert "Query-to-Doc" in drawn["crumb-figure3.svg"]
    assert draw_figure("crumb-figure3", "By rewriting", made, {}) == {}


def test_a_change_is_drawn_of_systems_that_have_both_values():
    made = cells(
        ("A", "crumb/x", "R@10", 0.5, 0.4),
        ("A | generic", "crumb/x", "R@10", 0.25, None),
    )
    how = {"kind": "points", "rows": "base", "columns": "task", "change": "generic"}
    assert shown(make_panels(made, how)) == {"published": {"A": [("x", -0.25)]}}


def test_a_gap_is_between_the_ceiling_and_the_best_of_the_others_by_the_last_judgements():
    made = cells(
        ("BM25", "obliq/math", "nDCG@10", 0.1, 0.5),
        ("E5", "obliq/math", "nDCG@10", 0.2, None),
        ("Oracle", "obliq/math", "nDCG@10", 0.7, None),
        ("Oracle", "obliq/math", "nDCG@10", 0.8, None),
        ("Oracle+Soln", "obliq/math", "nDCG@10", 0.9, None),
        ("BM25", "obliq/writing", "nDCG@10", 0.3, None),
    )
    [panel] = make_panels(made, {"kind": "gaps", "x": "Oracle"})
    [series] = panel.series
    assert series.label == "published" and series.points == [Point(0.8, 0.2, label="math")]
    assert panel.x == "nDCG@10 of Oracle"


def test_sizes_of_pools_are_places_on_the_axis():
    made = cells(
        ("GPT | 100", "obliq/math", "R@10", None, 0.5),
        ("GPT | 25", "obliq/math", "R@10", None, 0.9),
    )
    [panel] = make_panels(made, {"kind": "pools", "rows": "base", "columns": "variant"})
    assert panel.series[0].points == [Point(25, 0.9), Point(100, 0.5)]
    assert "documents in the pool" in svg(draw_panels([panel]), "Figure 3")
