"""The report: its figures against scores.csv, what may stand beside them, what is refused; nothing in it runs."""

import base64
import csv
import hashlib
import io
import re

import numpy as np
import pytest
from results import Result
from run_folders import make, pooled, retrieve

from sextant.evals import report as module
from sextant.evals.reporting import report_plots, report_tables, run_groups
from sextant.evals.scoring import scored_run

DOMAINS = ("books", "movies", "people", "medical_case", "legal_document")


@pytest.fixture
def folders(tmp_path):
    """Scored run folders below one folder: a name, its columns, and what the configuration has otherwise."""

    def add(name, columns, config=None, **scores):
        return make(tmp_path / "runs" / name, columns, config, **scores)

    return add


@pytest.fixture
def command(command_of, tmp_path):
    """`sextant report ARGUMENTS`, in this process, into a folder of its own."""

    def given(*arguments: object) -> Result:
        out = [] if "--out" in arguments else ["--out", tmp_path / "report"]
        return command_of(module)(*(arguments or [tmp_path / "runs"]), *out)

    return given


@pytest.fixture
def written(command, tmp_path):
    """The report over all of the test's folders, made once, as a function of a file's name."""
    made = set()

    def read(name="index.html", *arguments):
        if arguments not in made:
            given = command(tmp_path / "runs", *arguments)
            assert given.code == 0, given.err
            made.add(arguments)
        return (tmp_path / "report" / name).read_text(encoding="utf-8")

    return read


def grouped(tmp_path):
    return run_groups.group_runs(scored_run.find_scored_runs([tmp_path / "runs"])[0])[0]


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def full(**others):
    """A run as of the whole fetched release, on the queries that OBLIQ-Bench reports."""
    return {"data": "full", "split": "all"} | others


def test_a_cell_is_the_mean_of_the_run_s_own_table_with_its_interval_and_the_best_is_bold(
    folders, written
):
    folders("a", {"nDCG@10": [0.25, 0.5]})
    folders("b", {"nDCG@10": [0.5, 0.75]}, retrieve())
    cells = {row["system"]: row for row in rows(written("tables/obliq-mini-test.csv"))}
    assert (
        float(cells["multihop over bm25"]["value"]) == 0.375
        and cells["multihop over bm25"]["best"] == ""
    )
    best = cells["retrieve over bm25"]
    assert (float(best["value"]), float(best["low"]), float(best["high"]), best["best"]) == (
        0.625,
        0.615,
        0.635,
        "yes",
    )
    assert best["source"].endswith("/b") and best["queries"] == "2"
    html, markdown = written(), written("report.md")
    assert (
        "<b>0.6250</b>" in html
        and "<b>0.3750</b>" not in html
        and "interval, queries and source are in the CSV file" in html
    )
    assert (
        "| retrieve over bm25 | **0.6250** |" in markdown
        and "| multihop over bm25 | 0.3750 |" in markdown
    )


def test_the_report_of_a_real_run_says_what_it_said(run, command, tmp_path):
    made = run(
        "--program", "retrieve", "--task", "wildchat", "--json", "--runs", tmp_path / "runs"
    ).json
    assert command(tmp_path / "runs", "--metric", "R@10", "--metric", "nDCG@10").code == 0
    text = rows((tmp_path / "report/tables/obliq-mini-test.csv").read_text())
    assert {row["metric"] for row in text} == {"nDCG@10", "R@10"}
    for row in text:
        suffix = "" if row["judgements"] == "gold" else f" [{row['judgements']}]"
        measured = made["metrics"][row["metric"] + suffix]
        assert (float(row["value"]), float(row["high"])) == (measured["mean"], measured["high"])
    assert {row["judgements"] for row in text} == {"gold", "pooled", "gold, equal texts merged"}


def test_what_became_of_relevant_documents_sums_to_one_for_runs_and_over_tasks(
    folders, command, tmp_path
):
    def losses(found, low, never):
        shares = {"10": {"found": found, "ranked_low": low, "never_surfaced": never, "error": 0.0}}
        return {"cutoff": 10, "queries": 2, "documents": {}, "at": shares}

    for task, found, low, never in (("congress", 0.5, 0.25, 0.25), ("wildchat", 0.1, 0.0, 0.9)):
        folders(
            task,
            {"nDCG@10": [0.5, 0.7]},
            {"task": f"obliq/{task}"},
            losses=losses(found, low, never),
        )
    assert command(tmp_path / "runs").code == 0
    table = rows((tmp_path / "report/tables/losses.csv").read_text())
    shares = ("found", "ranked low", "never surfaced")
    assert [(row["task"], row["of"], *(float(row[name]) for name in shares)) for row in table] == [
        ("wildchat", "R@10", 0.1, 0.0, 0.9),
        ("congress", "R@10", 0.5, 0.25, 0.25),
        ("mean of tasks", "R@10", 0.3, 0.125, 0.575),
    ]
    assert "error" not in table[0]  # no document had it


def test_runs_that_were_scored_with_other_figures_of_searchers_stand_in_one_table(folders, written):
    folders("a", {"nDCG@10": [0.1]}, searchers={"searches": 2.0})
    folders("b", {"nDCG@10": [0.2]}, retrieve(), searchers={"searches": 1.0, "repeats": 0.5})
    table = rows(written("tables/searchers.csv"))
    assert [(row["searches"], row["repeats"]) for row in table] == [("2.0", ""), ("1.0", "0.5")]


def test_tasks_are_columns_and_their_mean_is_there_when_all_are(folders, written, tmp_path):
    suite = ("twitter", "wildchat", "math", "writing")
    for number, task in enumerate(suite):
        folders(task, {"nDCG@10": [0.1 * number, 0.2]}, {"task": f"obliq/{task}"})
    [group] = grouped(tmp_path)
    assert [column.label for column in report_tables.make_tables(group)[0].columns] == list(suite)
    folders("congress", {"nDCG@10": [0.9, 0.7]}, {"task": "obliq/congress"})
    [group] = grouped(tmp_path)
    [row] = report_tables.make_tables(group)[0].rows
    means = [0.1, 0.15, 0.2, 0.25, 0.8]
    assert [cell.value for cell in row.cells] == pytest.approx([*means, np.mean(means)])


def test_systems_of_one_name_are_told_apart_by_what_differs(folders, tmp_path):
    folders("a", {"nDCG@10": [0.1]})
    folders("b", {"nDCG@10": [0.2]}, {"parameters": {"hops": 2}})
    folders("c", {"nDCG@10": [0.2]}, {"parameters": {"hops": 2}, "task": "obliq/writing"})
    folders("d", {"nDCG@10": [0.2]}, {"lm": {"name": "openai/x", "seed": 1}})
    folders("e", {"nDCG@10": [0.2]}, {"lm": {"name": "openai/x", "seed": 2}})
    [group] = grouped(tmp_path)
    assert [row.label for row in report_tables.make_tables(group)[0].rows] == [
        "multihop over bm25, offline, hops=2",
        "multihop over bm25, openai/x, seed=1",
        "multihop over bm25, openai/x, seed=2",
        "multihop over bm25, offline, hops=4",
    ]


def test_runs_that_differ_in_code_alone_are_told_apart_by_its_digest(folders, tmp_path):
    for name, value in (("0a1b", 0.1), ("2c3d", 0.2)):
        folders(name, {"nDCG@10": [value]}, {"code": name})
    [group] = grouped(tmp_path)
    assert [row.label for row in report_tables.make_tables(group)[0].rows] == [
        "multihop over bm25, code=2c3d",
        "multihop over bm25, code=0a1b",
    ]


def test_conditions_are_columns_and_less_flips_are_better(folders, tmp_path):
    wins = {f"Win({k})": [1 - k / 20, None] for k in range(1, 11)}
    for task in DOMAINS[:2]:
        config = {"task": f"multiconir/{task}:complexity"}
        folders(f"a-{task}", {"Win": [0.7, 0.7], **wins}, retrieve(**config))
        flat = {name: [0.4, 0.6] for name in wins}
        folders(f"b-{task}", {"Win": [0.5, 0.5], **flat}, config)
    folders("format-a", {"Flip": [0.1]}, {"task": "multiconir/books:format"})
    folders("format-b", {"Flip": [0.3]}, retrieve(task="multiconir/books:format"))
    complexity, shape = grouped(tmp_path)
    mean = report_tables.make_tables(complexity)[-1]
    assert mean.title == "Win by conditions in the query, mean over 2 domains"
    assert [column.label for column in mean.columns] == [*map(str, range(1, 11)), "Decline"]
    by_label = {row.label: row.cells for row in mean.rows}
    assert (
        by_label["retrieve over bm25"][0].value == pytest.approx(0.95)
        and by_label["retrieve over bm25"][0].best
    )
    assert by_label["retrieve over bm25"][-1].value == pytest.approx(0.45)
    assert not any(
        cells[-1].best for cells in by_label.values()
    )  # a system that wins nothing declines by 0
    assert {row.label: row.cells[0].best for row in report_tables.make_tables(shape)[0].rows} == {
        "retrieve over bm25": False,
        "multihop over bm25": True,
    }


def test_published_rows_stand_beside_the_full_release_with_paper_table_and_row(folders, written):
    folders("a", {"nDCG@10": [0.1, 0.2], "R@100": [0.1, 0.2]}, full())
    text = rows(written("tables/obliq-full-all.csv"))
    paper = {
        row["system"]: row
        for row in text
        if row["kind"] == "published" and row["metric"] == "nDCG@10"
    }
    bm25 = paper["BM25 (OBLIQ-Bench, Table 4)"]
    assert bm25["source"] == "OBLIQ-Bench, Table 4, row Congress Hearings BM25"
    best = [row for row in paper.values() if row["best"]]
    rest = [float(row["value"]) for row in paper.values() if "bound" not in row["note"]]
    assert [float(row["value"]) for row in best] == [max(rest)]
    oracle = paper["Oracle GPT-5.2 Tournament (OBLIQ-Bench, Table 4)"]
    assert float(oracle["value"]) > max(rest) and not oracle["best"]  # a bound takes no part
    html = written()
    assert "(OBLIQ-Bench, Table 4)" in html and "No published figures" not in html
    assert "published" in written("plots/obliq-full-all-plot.svg")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"split": "all"},
        full(data="folder"),
        full(split="test"),
        full(asked={"limit": 5, "query_ids": []}),
        full(asked={"limit": None, "query_ids": ["q0"]}),
    ],
    ids=str,
)
def test_they_never_stand_beside_anything_else_and_it_says_why(folders, written, tmp_path, config):
    folders("a", {"nDCG@10": [0.1, 0.2]}, config)
    [group] = grouped(tmp_path)
    made = report_tables.make_tables(group)
    assert made and not any(table.of_kind("published") for table in made)
    assert "No published figures: " in written()


def test_a_system_has_a_row_for_each_table_of_a_paper(folders, tmp_path):
    for task in ("doris_mae", "arguana", "whatsthatbook", "clinical_trial", "relic"):
        folders(
            task,
            {"nDCG@10": [0.1], "R@5": [0.2]},
            {"task": f"birco/{task}", "data": "full", "split": "test"},
        )
    [group] = grouped(tmp_path)
    labels = [
        row.label for row in report_tables.make_tables(group, ["nDCG@10"])[0].of_kind("published")
    ]
    for system in ("MonoT5", "Rank+O Llama2-7b"):
        assert [label for label in labels if label.startswith(f"{system} (")] == [
            f"{system} (BIRCO, Table 5)",
            f"{system} (BIRCO, Table 7)",
        ]
    assert len(labels) == len(set(labels))


def test_crumb_s_figures_stand_beside_the_judgements_that_the_paper_uses(folders, tmp_path):
    columns = {"nDCG@10": [0.1], "nDCG@10 [passage]": [0.2]}
    config = {"task": "crumb/clinical_trial", "data": "full", "max_p": True, "depth": 2000}
    folders("a", columns, config, judgements="document")
    [group] = grouped(tmp_path)
    table = report_tables.make_tables(group)[0]
    assert [column.judgements for column in table.columns] == ["document", "passage"]
    assert all(row.cells[0] and not row.cells[1] for row in table.of_kind("published"))
    assert table.of_kind("published")


def test_runs_without_scores_are_listed_with_the_reason_and_failed_queries_are_counted(
    folders, written, command
):
    folders("a", {"nDCG@10": [0.1, 0.0]}, failed=1)
    scores = folders("b", {"nDCG@10": [0.1, 0.0]}, retrieve()) / "scores.json"
    scores.unlink()
    path = folders("c", {"nDCG@10": [0.1, 0.0]}, {"task": "obliq/writing"})
    table = path / "scores.csv"
    table.write_text(table.read_text().replace("q1,0.0,", "q1,0.0,Timeout: the model hung"))
    html = written()
    assert "Left out" in html and "all queries of" in html
    assert "1 of 2 queries failed and count 0, e.g. Timeout: the model hung" in html
    given = command()
    assert "left out: " in given.out and "1 folder left out" in given.out


def test_runs_over_different_data_are_refused_in_one_column_unless_forced(
    folders, command, written
):
    a, b = (
        folders("a", {"nDCG@10": [0.1]}),
        folders("b", {"nDCG@10": [0.2]}, retrieve(data_fingerprint="f" * 16)),
    )
    given = command()
    assert (
        given.code == 2 and str(a) in given.err and str(b) in given.err and "--force" in given.err
    )
    html = written("index.html", "--force")
    assert "Forced: " in html and "f" * 16 in html
    assert "Forced" in command("--force", a, b).out


def test_a_folder_of_the_user_s_is_not_overwritten_and_an_earlier_report_is(
    folders, command, tmp_path
):
    folders("a", {"nDCG@10": [0.1]})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("words")
    given = command(tmp_path / "runs", "--out", tmp_path / "mine")
    assert given.code == 2 and "choose another --out" in given.err
    assert command(tmp_path / "runs", "--out", tmp_path / "mine" / "thesis.tex").code == 2
    folders("b", {"R@10": [0.1]}, {"task": "crumb/legal_qa"})
    for place, there in ((tmp_path / "runs", True), (tmp_path / "runs" / "a", False)):
        assert command(place).code == 0
        assert bool(list((tmp_path / "report" / "tables").glob("crumb-*"))) == there


def test_only_named_metrics_are_shown_and_an_unknown_one_is_refused(folders, command, tmp_path):
    folders("a", {"nDCG@10": [0.1], "R@10": [0.2], "RR@10": [0.3]})
    assert command(tmp_path / "runs", "--metric", "RR@10").code == 0
    assert {path.name for path in (tmp_path / "report" / "tables").iterdir()} == {
        "obliq-mini-test.csv",
        "runs.csv",
    }
    for name, words in (
        ("nDGC@1", "metrics are nDCG"),
        ("nDCG@1", "cannot be computed"),
        ("Flip", "no such comp"),
    ):
        given = command(tmp_path / "runs", "--metric", name)
        assert given.code in (2, 3) and words in given.err and given.err.count("\n") == 1


def test_a_sweep_has_a_line_for_each_system_and_kind_of_pool(folders, tmp_path):
    for size, value in ((50, 0.4), (100, 0.5), (400, 0.6)):
        folders(f"o{size}", {"nDCG@10": [0.0], "R@10": [value + 0.2]}, pooled("oracle", size))
        folders(f"u{size}", {"nDCG@10": [0.0], "R@10": [value]}, pooled("union", size))
    folders("r", {"nDCG@10": [0.0], "R@10": [0.1]}, pooled("union", 50, program="retrieve"))
    [group] = grouped(tmp_path)
    tables = report_tables.make_tables(group, ["R@10"])
    assert [table.is_ordered for table in tables] == [False, True]
    table = tables[1]
    assert [column.label for column in table.columns] == ["50", "100", "400"]
    values = {
        row.label: [cell and round(cell.value, 4) for cell in row.cells] for row in table.rows
    }
    assert values == {
        "tournament over bm25, oracle pool": [0.6, 0.7, 0.8],
        "retrieve over bm25, union pool": [0.1, None, None],
        "tournament over bm25, union pool": [0.4, 0.5, 0.6],
    }
    drawn = report_plots.plot_table(group, table)
    assert drawn.svg.count("stroke-dasharray") >= 2  # the unions
    assert [row.label for row in tables[0].rows] == [
        *(f"tournament over bm25, union pool of {size}" for size in (400, 100, 50)),
        "retrieve over bm25, union pool of 50",
        *(f"tournament over bm25, oracle pool of {size}" for size in (400, 100, 50)),
    ]


def test_search_and_verification_of_each_task_are_a_point_below_the_tables(folders, tmp_path):
    folders("floor", {"nDCG@10": [0.1, 0.3]}, {"program": "retrieve"})
    folders("agent", {"nDCG@10": [0.2, 0.4]})
    folders("oracle", {"nDCG@10": [0.9, 0.7]}, pooled("oracle", 300))
    # A bare retriever over a pool verifies nothing.
    folders("bare", {"nDCG@10": [1.0, 1.0]}, pooled("oracle", 300, program="retrieve"))
    folders("alone", {"nDCG@10": [0.5, 0.5]}, {"task": "obliq/math"})
    plot = report_plots.plot_gap(grouped(tmp_path))
    assert "congress" in plot.svg and "math" not in plot.svg
    assert "over a pool with all that is relevant" in plot.svg
    runs = grouped(tmp_path)[0].of_task("obliq/congress")
    assert report_plots.best_mean(runs, "nDCG@10", [""]) == pytest.approx(0.3)
    assert report_plots.best_mean(runs, "nDCG@10", ["oracle", "hidden"]) == pytest.approx(0.8)


def test_tasks_of_one_short_name_are_told_apart_in_the_file_of_bounds(folders, written):
    names = ["birco/clinical_trial", "crumb/clinical_trial"]
    for name in names:
        run = name.replace("/", "-")
        folders(run, {"nDCG@10": [0.5, 0.7]}, {"task": name})
        folders(f"{run}-floor", {"nDCG@10": [0.1, 0.3]}, {"task": name, "program": "retrieve"})
    assert [row["full task"] for row in rows(written("tables/gap.csv"))] == names


def test_the_same_runs_make_the_same_bytes_in_any_order(folders, command, tmp_path):
    paths = [
        folders("a", {"nDCG@10": [0.1, 0.4], "R@10": [0, 1.0]}),
        folders("b", {"nDCG@10": [0.2, 0.3], "R@10": [0, 1.0]}, retrieve()),
        folders("c", {"nDCG@10": [0.2, 0.3], "R@10": [0, 0.5]}, pooled("oracle", 20)),
    ]
    made = []
    for name, order in (("one", paths), ("two", paths[::-1])):
        assert command(*order, "--out", tmp_path / name).code == 0
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        made.append({str(path.relative_to(tmp_path / name)): path.read_bytes() for path in files})
    assert made[0] == made[1] and len(made[0]) > 5


HOSTILE = "<script>alert(1)</script>|`x`*[y](javascript:z)\x1b[31m\u202e"


def test_hostile_names_stay_text_in_every_file(folders, command, tmp_path):
    folders(
        "a", {"nDCG@10": [0.1]}, {"program": f"=cmd|'/c calc'!A1{HOSTILE}", "lm": {"name": HOSTILE}}
    )
    folders(
        "b",
        {"nDCG@10": [0.1]},
        {"retriever": {"name": "@SUM(1)"}, "task": "obliq/<img src=x onerror=y>"},
    )
    (folders("c", {"nDCG@10": [0.1]}, retrieve()) / "scores.csv").write_text(f"query_id,{HOSTILE}")
    assert command().code == 0
    html = (tmp_path / "report" / "index.html").read_text()
    assert html.count("<script") == 1 and "<img src=x" not in html and "&lt;script&gt;" in html
    markdown = re.sub(r"```.*?```", "", (tmp_path / "report" / "report.md").read_text(), flags=re.S)
    assert "<script" not in markdown and "[y](javascript" not in markdown and "<img" not in markdown
    for path in (tmp_path / "report").rglob("*.*"):
        assert not {"\x1b", "\u202e"} & set(path.read_text()), path
    for table in re.findall(r"(?:^\|.*\n)+", markdown, re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table
    cells = (cell for path in (tmp_path / "report" / "tables").iterdir() for cell in _cells(path))
    assert all(
        not re.match(r"[=+\-@\t\r]", cell) or re.fullmatch(r"[+-]?\d.*", cell) for cell in cells
    )


def _cells(path):
    with path.open(newline="") as file:
        return [cell for row in csv.reader(file) for cell in row]


def test_the_page_s_policy_allows_its_own_style_and_script_and_nothing_else(folders, written):
    folders("a", {"nDCG@10": [0.1]})
    html = written()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    [style] = re.findall(r"<style>(.*?)</style>", html, re.S)
    [program] = re.findall(r"<script>(.*?)</script>", html, re.S)
    of_program, of_style = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (program, style)
    )
    assert policy.replace("&#39;", "'").startswith(
        f"default-src 'none'; script-src 'sha256-{of_program}'; style-src 'sha256-{of_style}'; img-src data:"
    )
    html = html.replace(program, "", 1)
    assert not re.search(
        r"<script\s|\son\w+=|\sstyle=|https?://", re.sub(r'"data:[^"]*"', "", html)
    )
