"""Text for a terminal is fitted to its width, and no word of it is broken or lost."""

import io
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sextant.tools.platform.result_table import (
    Cell,
    CommandLine,
    DefinitionList,
    ResultTable,
    render_terminal,
    tabulate,
)
from sextant.tools.platform.terminal import first_sentence
from sextant.tools.platform.wrapping import command_lines, paragraph

WORDS = st.text("abcdefghij", min_size=1, max_size=9)
SENTENCES = st.lists(WORDS, min_size=1, max_size=8).map(" ".join)
WIDE = ResultTable(
    "Sixty metrics",
    ["system", *(f"metric {number}" for number in range(60))],
    [[f"system {letter}", *(f"0.{number:04}" for number in range(60))] for letter in "abc"],
)


@st.composite
def tables(draw):
    columns = draw(st.integers(1, 5))
    row = st.lists(SENTENCES, min_size=columns, max_size=columns)
    rows = draw(st.lists(row, min_size=1, max_size=6))
    names = draw(st.sets(st.integers(0, columns - 1))) | {0}
    return ResultTable(draw(SENTENCES), draw(row), rows, sorted(names))


@given(tables(), st.integers(60, 120))
def test_no_line_of_a_table_is_wider_than_the_terminal_if_its_words_are_not(table, width):
    short = [[word.split()[0] for word in row] for row in table.rows]
    fitting = ResultTable(table.title, table.heads, short, table.names)
    assert all(len(line) <= width for line in fitting.to_terminal(width).splitlines())


@given(tables(), st.integers(60, 120))
def test_every_word_of_a_table_is_printed_whole(table, width):
    printed = re.findall(r"\w+", table.to_terminal(width))
    for text in (table.title, *table.heads, *(cell for row in table.rows for cell in row)):
        for word in text.split():
            assert word in printed


def test_two_tables_have_one_empty_line_between_them():
    table = ResultTable("", ["system", "mean"], [["bm25", "0.25"]])
    text = render_terminal([table, table, "a line", table], 40)
    lines = text.split("\n")
    assert lines.count("") == 6, "above and below each table, and at the end"
    assert "\n\n\n" not in text
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_terminal_without_unicode_gets_the_same_table(monkeypatch):
    table = ResultTable("", ["system", "mean"], [["bm25", "0.25"]])
    whole = table.to_terminal().splitlines()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    plain = table.to_terminal().splitlines()
    assert [line for line in plain if "-" not in line] == [
        line for line in whole if "─" not in line
    ]


def test_figures_break_between_words_where_a_table_is_too_wide():
    heads = ["", *(f"system {number}" for number in range(4))]
    lines = ResultTable("", heads, [["metric", *["0.1234 [0.1, 0.2]"] * 4]]).to_terminal(50)
    assert max(map(len, lines.splitlines())) <= 50 and lines.count("0.1234") == 4


def test_a_file_or_a_pipe_gets_a_row_of_a_table_in_a_line(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert len(WIDE.to_terminal().splitlines()) == 8


@pytest.mark.parametrize("width", [40, 80])
def test_a_list_has_its_texts_beside_the_names_and_below_long_ones(width):
    items = [("short", "a text of some words " * 6), ("a-name-of-more-than-24-characters", "text")]
    lines = render_terminal([DefinitionList(items)], width).splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("  short  a text")
    assert all(line.startswith("         ") for line in lines[1:-2])
    assert lines[-2:] == ["  a-name-of-more-than-24-characters", "         text"]


def test_a_command_that_is_too_wide_stands_below_its_lead_and_can_be_copied():
    command = "sextant run --program multihop --task congress"
    assert command_lines("next:", command, None) == [f"next: {command}"]
    lines = command_lines("a/long/path/of/a/file.toml: edit it, then", command, 40)
    assert lines == [
        "a/long/path/of/a/file.toml: edit it,",
        "  then",
        f"    {command}",
    ]
    printed = render_terminal([CommandLine("   ", f"hf download a; {command}")], 40)
    assert printed == f"    hf download a; {command}\n"


def test_a_path_in_a_line_is_never_broken():
    path = "/a/path/" + "of-many-parts/" * 9
    assert path in paragraph(f"run: {path}", 40)


def test_a_broken_line_goes_on_further_in():
    assert paragraph("one two three", 8) == "one two\n  three"
    assert paragraph("  one two three", 10) == "  one two\n  three"


def test_the_first_sentence_of_a_docstring_stands_in_a_line():
    assert first_sentence("Go up\nand down. Then stop.\n\nNo more.") == "Go up and down."
    assert first_sentence("Go up") == "Go up"
    assert first_sentence(None) == ""


def test_a_table_is_html_in_a_notebook_and_text_of_the_data_is_no_markup():
    table = ResultTable("<b>", ["a", "b"], [["<script>", Cell("0.5000", 0.5, bold=True)]])
    html = table._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html
    assert "<b>0.5000</b>" in html and "<caption>&lt;b&gt;</caption>" in html


def test_a_data_frame_and_csv_have_the_values_behind_the_texts():
    pandas = pytest.importorskip("pandas")
    table = ResultTable("", ["system", "mean"], [["x", Cell("0.1235", 0.12345)], ["y", "-"]])
    frame = table.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["mean"].tolist() == [0.12345, "-"]
    assert table.to_csv() == "system,mean\nx,0.12345\ny,-\n"


def test_rows_make_columns_of_what_they_have_and_all_of_it_in_the_csv():
    rows = [
        {"system": "a", "of tasks": 1, "mean": Cell("0.5", 0.51), "note": "", "run": "x"},
        {"system": "b", "of tasks": 2, "mean": Cell("0.6", 0.61), "note": "", "run": "y"},
    ]
    table = tabulate("T", rows, in_file=1)
    assert table.heads == ["system", "of tasks", "mean"] and list(table.names) == [0]
    assert table.rows == [["a", "1", "0.5"], ["b", "2", "0.6"]]
    assert table.to_csv() == "system,of tasks,mean,note,run\na,1,0.51,,x\nb,2,0.61,,y\n"


def test_latex_has_no_folder_of_this_machine_and_ids_as_they_are(tmp_path):
    names = ["/m/02mjmr", f"/{'x' * 300}/y", "a/b", f"over {tmp_path}/own.py:Own"]
    table = ResultTable(f"of ({tmp_path})", ["query"], [[name] for name in names])
    shown = ["/m/02mjmr", f"/{'x' * 300}/y", "a/b", "over own.py:Own"]
    lines = table.to_latex().splitlines()
    assert [line.removesuffix(" \\\\") for line in lines if line.endswith("\\\\")] == [
        "query",
        *shown,
    ]
    assert f"\\caption{{of ({tmp_path.name})}}".replace("_", "\\_") in lines


def test_the_csv_of_a_table_may_say_more_and_nothing_in_it_is_a_formula():
    more = [["system", "run"], ["=1+1", "-2+3"], ["@SUM(1)", "-0.5 (-1 to 1)"], ["-", -0.5]]
    table = ResultTable("", ["system"], [["a"]], csv_rows=more)
    lines = table.to_csv().splitlines()
    assert lines == ["system,run", "'=1+1,'-2+3", "'@SUM(1),-0.5 (-1 to 1)", "-,-0.5"]
