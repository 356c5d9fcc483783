"""Plots of tables and places: drawn for every kind, the same bytes for the same data, with the names as text."""

import pytest

from sextant.evals.papers.figures import arrange_panels, gap_points, save_figure
from sextant.evals.reporting.plots import KINDS, draw_table, project, svg

OURS = {"BM25": {"books": 0.5, "films": None}, "$k$ <dense>": {"books": 0.25, "films": 1.0}}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_drawn_with_a_panel_for_each_part_and_gaps_where_nothing_was_measured(kind):
    panels = {"published": OURS | {"E5": {"books": 0.1}}, "ours": OURS}
    drawn, again = (svg(draw_table(kind, panels, "R@10"), "Table 6") for _ in range(2))
    assert drawn == again
    for name in ("published", "ours", "films", "E5", "BM25", "&lt;dense&gt;"):
        assert name in drawn


def cells(*rows):
    names = ("system", "task", "metric", "published", "ours")
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_a_figure_is_made_of_the_cells_of_its_table_and_kept_with_them(tmp_path):
    made = cells(
        ("BM25", "crumb/*", "nDCG@10", 0.128, 0.1),
        ("BM25 | Query-to-Doc", "crumb/*", "nDCG@10", 0.2, None),
        ("E5", "crumb/*", "nDCG@10", None, 0.3),
    )
    how = {"kind": "bars", "rows": "variant", "columns": "base"}
    assert arrange_panels(made, how) == {
        "published": {"as it is": {"BM25": 0.128}, "Query-to-Doc": {"BM25": 0.2}},
        "ours": {"as it is": {"BM25": 0.1, "E5": 0.3}},
    }
    found = {"name": "crumb/figure3", "title": "By rewriting", "cells": made}
    table, drawing, paper = save_figure(found, how, tmp_path / "made")
    before = paper.read_bytes()
    assert (
        before.startswith(b"%PDF")
        and save_figure(found, how, tmp_path / "made")[2].read_bytes() == before
    )
    assert table.read_text().splitlines()[:2] == [
        "system,task,metric,published,ours",
        "BM25,crumb/*,nDCG@10,0.128,0.1",
    ]
    assert "Query-to-Doc" in drawing.read_text()


def test_a_gap_is_between_the_ceiling_and_the_best_of_the_others_by_the_last_judgements(tmp_path):
    made = cells(
        ("BM25", "obliq/math", "nDCG@10", 0.1, 0.5),
        ("E5", "obliq/math", "nDCG@10", 0.2, None),
        ("Oracle", "obliq/math", "nDCG@10", 0.7, None),
        ("Oracle", "obliq/math", "nDCG@10", 0.8, None),
        ("Oracle+Soln", "obliq/math", "nDCG@10", 0.9, None),
        ("BM25", "obliq/writing", "nDCG@10", 0.3, None),
    )
    assert gap_points(made, "Oracle") == [{"id": "math", "kind": "published", "x": 0.8, "y": 0.2}]
    how = {"kind": "gaps", "x": "Oracle"}
    _, drawing, _ = save_figure(
        {"name": "obliq/figure1", "title": "Gaps", "cells": made}, how, tmp_path
    )
    assert "nDCG@10 of Oracle" in drawing.read_text() and "math" in drawing.read_text()


def test_curves_over_sizes_of_pools_go_on_as_projections_where_a_model_ranked_no_larger_one():
    shares = {"25": 0.9, "50": 0.6, "100": 0.5, "200": 0.4}
    tables = {
        "ours": {"GPT, gold": shares, "GPT, found": shares, "Gemini, gold": shares | {"400": 0.1}}
    }
    drawn = svg(draw_table("pools", tables, "R@10"), "Figure 3")
    assert "projected" in drawn and "documents in the pool" in drawn
    assert "projected" not in svg(
        draw_table("pools", {"ours": {"GPT, gold": shares}}, "R@10"), "Figure 3"
    )
    known = [(float(size), share) for size, share in shares.items()]
    assert project(known, 400) == pytest.approx(0.3) and project(known, 1e9) == 0
