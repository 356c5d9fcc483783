"""A study: what its file stands for, what is run, what is found again, and what it says in words."""

import csv
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from openai_server import Failure
from run_folders import run_in

from sextant import environments
from sextant.evals import compare as comparing
from sextant.evals import study as module
from sextant.evals.reporting import plots
from sextant.evals.reporting.findings import judge
from sextant.evals.scoring.random_and_ideal import bound
from sextant.evals.studies import results as studies
from sextant.evals.studies import run_cells as work
from sextant.evals.studies import significance, study_file
from sextant.tools.errors import UsageError

ROOT = Path(__file__).parents[4]
GUIDE = (ROOT / "docs/guide/study.md").read_text(encoding="utf-8")
SMALL = {
    "name": "small",
    "tasks": ["congress", "birco/relic"],
    "fixed": {"data": "mini", "limit": 3},
    "rows": {"program": ["retrieve", "score"], "retriever": ["bm25"]},
}


def made(**given):
    return study_file.StudyFile(**SMALL | given)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def small(tmp_path):
    """A study of two programs and two tasks, of three queries each; one of them ranks pools, which one task has."""
    text = """
        name = "small"
        question = "Does scoring help?"
        tasks = ["birco/relic", "congress"]
        fixed = { data = "mini", limit = 3 }
        rows = { program = ["retrieve", "rewrite"] }
        row = [{ name = "pooled", program = "retrieve", retriever = "pool_bm25", seed = [1, 2] }]
    """
    return write(tmp_path / "study.toml", text)


@pytest.fixture
def command(command_of, tmp_path):
    return lambda *words: command_of(module)(*words, "--runs", tmp_path / "runs")


@pytest.fixture
def undrawn(monkeypatch):
    """Leaves out the figures in the widths of papers, which take seconds."""
    monkeypatch.setattr(plots, "COLUMNS", {})


def test_lists_multiply_and_rows_are_named_by_what_differs():
    rows = {"program": ["retrieve", "multihop"], "retriever": ["bm25", "dense"]}
    single = {"program": "multihop", "parameters": {"hops": [1, 2]}}
    named = {
        "name": "two queries",
        "program": "rewrite",
        "query_ids": ["a", "b"],
        "tasks": ["birco/*"],
    }
    found = study_file.expand_cells(
        made(tasks=["congress", "birco/*"], rows=rows, row=[single, named], fixed={"seed": [1, 2]})
    )
    assert list(dict.fromkeys(cell.row for cell in found)) == [
        *("retrieve bm25", "retrieve dense", "multihop bm25", "multihop dense"),
        *("multihop hops=1", "multihop hops=2", "two queries"),
    ]
    assert len(found) == 2 * (6 * 6 + 5) and {cell.request.seed for cell in found} == {1, 2}
    assert found[-1].task == "birco/relic" and found[-1].request.query_ids == ("a", "b")
    assert found[0].task == "obliq/congress"


def test_a_parameter_named_like_an_option_is_named_as_a_parameter():
    rows = {"program": ["rank"], "pool": ["union:300"], "parameters": {"pool": [10, 20]}}
    study = made(tasks=["congress"], rows=rows, row=[])
    rows_named = [cell.row for cell in study_file.expand_cells(study)]
    assert rows_named == ["pool=10", "pool=20"]


def test_the_guides_file_is_the_study_that_it_says(tmp_path):
    file = write(tmp_path / "study.toml", re.findall(r"```toml\n(.*?)```", GUIDE, re.S)[0])
    found = study_file.expand_cells(study_file.read_study(file))
    assert len({cell.row for cell in found}) == 5 and len({cell.task for cell in found}) == 3
    every = tomllib.loads(re.findall(r"```toml\n(.*?)```", GUIDE, re.S)[1])["row"]
    assert len({row["name"] for row in every}) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rows": {"retreiver": "bm25", "program": "retrieve"}}, "did you mean 'retriever'"),
        ({"rows": {"program": "retreive"}}, "row 'retreive': no program is called"),
        (
            {"row": [{"name": "one", "program": "rank"}] * 2, "rows": {}},
            "two rows are called 'one'",
        ),
        (
            {"row": [{"name": "one", "program": "rank", "k": [5, 9]}], "rows": {}},
            "two rows are called 'one'",
        ),
        ({"compare": {"baseline": "retreive"}}, "no row of the study is called 'retreive'"),
        ({"compare": {"metric": "nDGC@10"}}, "nDGC@10"),
        ({"fixed": {"budget_usd": 3}}, r"budget_usd is no field of a row .* \[budget\]"),
        ({"row": [{"program": "rank", "tasks": ["writing"]}]}, "no task of the study is called"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_is(given, said):
    with pytest.raises(UsageError, match=said):
        study_file.expand_cells(made(**given))


def test_a_study_ends_in_tables_and_words_and_runs_nothing_again(command, small, tmp_path):
    before = run_in(tmp_path, "--program", "retrieve", "--task", "congress", "--limit", 3)
    was = (before / "outcomes.jsonl").stat().st_mtime_ns
    ahead = command(small, "--dry-run", "--json").json
    assert [one["state"] for one in ahead["cells"]] == [
        *("3 to ask, 0 there", "there", "3 to ask, 0 there", "3 to ask, 0 there"),
        *("3 to ask, 0 there", "does not apply", "3 to ask, 0 there", "does not apply"),
    ]
    assert ahead["rows"]["rewrite"]["calls"] == 6 and not (tmp_path / "runs/studies").exists()

    first = command(small)
    page = tmp_path / "runs/studies/small"
    assert first.code == 0 and str(page / "index.html") in first.out, first.err
    assert "pooled, obliq/congress: does not apply\n" in first.err
    assert "pool_bm25 ranks candidate pools" in " ".join(first.out.split())
    assert (before / "outcomes.jsonl").stat().st_mtime_ns == was
    kept = {path.relative_to(page): path.read_bytes() for path in page.rglob("*") if path.is_file()}
    runs = {path: path.read_bytes() for path in (tmp_path / "runs").glob("*/*/outcomes.jsonl")}
    assert len(runs) == 5  # the engine without a model has no seed
    again = command(small, "--dry-run", "--json").json
    states = ["there" if "to ask" in one["state"] else one["state"] for one in ahead["cells"]]
    assert [one["state"] for one in again["cells"]] == states

    text = kept[Path("report.md")].decode()
    assert "Does scoring help?" in text and "�" not in text and "Floor and ceiling" in text
    tables = {path.stem for path in kept if path.suffix == ".csv"} - {
        "study-queries",
        "study-seconds",
    }
    assert tables == {path.stem for path in kept if path.suffix == ".tex"}
    for width in ("acl-column", "acl-page", "acm-column", "acm-page"):
        assert kept[Path(f"plots/study-means-{width}.pdf")].startswith(b"%PDF")
        assert b"<svg" in kept[Path(f"plots/study-means-{width}.svg")]
    table = kept[Path("tables/study.csv")].decode()
    assert "birco/relic, obliq/congress" in table and "cannot be told from retrieve" in text
    floor = bound("random", "nDCG@10", environments.load("birco/relic", "mini").asking(limit=3))
    assert f"computed,Random,birco/relic,,nDCG@10,{floor!r}," in table
    assert "computed,Maximum possible,birco/relic,,nDCG@10,1.0," in table
    assert f"| Random (computed from the judgements, not run) | {floor:.4f} |" in text
    for told in (first.out, kept[Path("tables/study.tex")].decode()):
        assert "Maximum possible (computed from the judgements, not run)" in told


@pytest.mark.usefixtures("undrawn")
def test_a_task_whose_metric_counts_all_of_its_documents_is_not_tested(command, tmp_path):
    text = """
        name = "deep"
        tasks = ["congress"]
        fixed = {{ data = "mini", limit = 4 }}
        rows = {{ program = ["retrieve", "multihop"] }}
        compare = {{ metric = "{metric}" }}
    """
    for metric, tested in (("R@1000", False), ("R@100", True)):
        done = command(write(tmp_path / "study.toml", text.format(metric=metric)), "--json")
        note = "obliq/congress: not tested, as a ranking may have all of the corpus of 288 documents: R@1000"
        assert done.code == 0 and len(done.json["tests"]) == tested, done.err
        assert (note in done.json["findings"]) is not tested


@pytest.mark.usefixtures("undrawn")
def test_over_a_pool_the_floor_and_the_ceiling_are_those_of_the_pool(command, tmp_path):
    text = """
        name = "pools"
        tasks = ["congress"]
        fixed = { data = "mini", program = "rewrite" }
        row = [{ name = "whole" }, { name = "few", pool = "union:9" }]
    """
    for _ in range(2):  # the second time the runs are there
        assert command(write(tmp_path / "study.toml", text)).code == 0
        table = (tmp_path / "runs/studies/pools/tables/study.csv").read_text()
        names = {row["system"]: float(row["value"]) for row in csv.DictReader(table.splitlines())}
        assert names["Maximum possible"] == 1 > names["Maximum possible, pool union:9(bm25)"] > 0
        assert names["few"] <= names["Maximum possible, pool union:9(bm25)"]


@pytest.mark.usefixtures("undrawn")
def test_a_paper_gets_a_table_of_a_study_and_the_values_of_its_queries(command, tmp_path):
    text = """
        name = "two_rows"
        tasks = ["congress"]
        fixed = { data = "mini", limit = 4 }
        [[row]]
        program = "retrieve"
        [[row]]
        name = 'a & 5 % #_~^\\ {x} $'
        program = "multihop"
        [[row]]
        program = "HERE/own.py:answer"
        """
    own = "def answer(query, search):\n    return [hit.doc_id for hit in search(query)]\n"
    write(tmp_path / "own.py", own)
    names = ("retrieve", r"a & 5 % #_~^\ {x} $", f"{tmp_path}/own.py:answer")
    file = write(tmp_path / "study.toml", text.replace("HERE", str(tmp_path)))
    everything = command(file, "--latex").out
    folder = tmp_path / "runs/studies/two_rows/tables"
    for text in (everything, *(path.read_text() for path in folder.glob("*.tex"))):
        assert str(tmp_path) not in text
        lines = [line for line in text.splitlines() if not line.startswith("%")]
        bare = re.sub(r"\\[{}&]", "", "\n".join(lines))
        assert bare.count("{") == bare.count("}") and "\\label{tab:" in bare
        assert not re.search(r"(?<!\\)[%#_~^$]", bare.replace("$+$", "").replace("$-$", ""))
    escaped = r"a \& 5 \% \#\_\textasciitilde{}\textasciicircum{}\textbackslash{} \{x\} \$ & "
    assert everything.count(f"\n{escaped}") == 3
    assert everything.count("in brackets the 95 \\% interval") == 1
    assert "\\label{tab:study-cost}" in everything
    with (folder / "study-queries.csv").open() as lines:
        values = list(csv.DictReader(lines))
    assert [(value["row"], value["task"]) for value in values] == [
        (row, "obliq/congress") for row in names for _ in range(4)
    ]
    for row in names:
        of_row = [value for value in values if value["row"] == row]
        [scores] = (tmp_path / "runs").glob(f"*/{of_row[0]['run']}/scores.csv")
        with scores.open() as lines:
            metrics = [value.items() - {("error", "")} for value in csv.DictReader(lines)]
        assert all(metrics[place] <= value.items() for place, value in enumerate(of_row))
        mean = sum(float(value["nDCG@10"]) for value in of_row) / 4
        words = ("--latex", "--only", "study", "--caption", "5 %", "--percent", "--digits", 1)
        printed = command(file, *words).out
        assert "\\caption{5 \\%}" in printed and "tab:study-cost" not in printed
        shown = escaped if row == names[1] else f"{row.rpartition('/')[2]} & "
        assert re.search(rf"\n{re.escape(shown)}.*{100 * mean:.1f}", printed)
    unknown = command(file, "--latex", "--only", "nothing")
    assert unknown.code == 2 and "study, study-tests, study-cost" in unknown.err


@pytest.mark.usefixtures("undrawn")
def test_every_form_of_a_study_says_how_its_rows_differ_from_the_papers(command, tmp_path):
    text = """
        name = "pools"
        tasks = ["congress"]
        fixed = { data = "mini", limit = 2 }
        rows = { program = ["retrieve", "tournament"], pool = "oracle:20" }
        """
    file = write(tmp_path / "pools.toml", text)
    done = command(file, "--runs", tmp_path / "runs")
    folder = tmp_path / "runs" / "studies" / "pools"
    forms = {
        "terminal": done.out,
        "page": (folder / "index.html").read_text(),
        "Markdown": (folder / "report.md").read_text(),
        "LaTeX": (folder / "tables" / "study.tex").read_text(),
        "CSV": (folder / "tables" / "runs.csv").read_text(),
    }
    for form, text in forms.items():
        words = " ".join(text.split())
        assert "tournament differs from the paper" in words, form
        assert "hidden:20 hides that" in words, form


def test_a_row_whose_weights_are_not_there_is_announced_and_the_others_are_made(command, tmp_path):
    text = """
        name = "weights"
        tasks = ["congress"]
        fixed = { data = "mini", limit = 2, program = "retrieve" }
        rows = { retriever = ["dense:intfloat/e5-large-v2", "bm25"] }
    """
    file = write(tmp_path / "study.toml", text)
    for words in (("--dry-run",), ()):
        done = command(file, *words)
        assert done.code == 3 and "1 cell of 2 unfinished" in done.err
        assert "e5-large-v2 is not on this machine" in done.out
    assert (
        "e5-large-v2 is not on this machine"
        in (tmp_path / "runs/studies/weights/report.md").read_text()
    )
    assert len(list((tmp_path / "runs").glob("*/*/scores.json"))) == 1


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("error", ["UsageError", "ValueError"])
def test_a_retriever_of_ones_own_that_cannot_be_built_is_a_fault_and_not_unfit(
    error, command, tmp_path
):
    own = write(
        tmp_path / f"raises_{error}.py",
        f"""
from sextant.tools.errors import UsageError
from sextant.tools.retrievers.base import Retriever


class Mine(Retriever):
    def __init__(self, corpus):
        raise {error}("the index of Mine is not there")

    def _search_many(self, searches, k):
        return []
""",
    )
    text = f"""
        name = "own"
        tasks = ["congress"]
        fixed = {{ data = "mini", limit = 2, program = "retrieve" }}
        row = [{{ retriever = "bm25" }}, {{ retriever = "{own}:Mine" }}]
    """
    study = write(tmp_path / "study.toml", text)
    ahead = command(study, "--dry-run", "--json").json
    assert "does not apply" not in {cell["state"] for cell in ahead["cells"]}
    done = command(study)
    assert done.code == 2 and "does not apply" not in done.err
    assert "1 cell of 2 unfinished" in done.err and "the index of Mine is not there" in done.out


@pytest.mark.parametrize(
    "asked", ["pool:oracle", "retriever:pool_bm25", "qrels:pooled", "runs:file", "runs:link"]
)
def test_only_a_refusal_of_the_task_is_no_failure_of_a_study(asked, tmp_path):
    field, _, value = asked.partition(":")
    row = {
        "pool": 'pool = "oracle:50"',
        "retriever": 'retriever = "pool_bm25"',
        "qrels": 'qrels = "pooled"',
    }
    text = f"""
        name = "few"
        tasks = ["birco/relic", "congress"]
        fixed = {{ data = "mini", limit = 2, program = "retrieve" }}
        row = [{{ name = "bare" }}, {{ name = "other", {row.get(field, "k = 900")} }}]
    """
    runs = tmp_path / "runs"
    cells = study_file.expand_cells(
        study_file.read_study(write(tmp_path / "study.toml", text)), runs
    )
    if value == "file":
        runs.write_text("where folders are to be")
    elif value == "link":
        runs.symlink_to("runs")  # to itself
    made = work.run_cells(cells)
    states = [one.state for one in made]
    expected = {"qrels": 2, "runs": 0}  # no task of these has pooled judgements
    assert states.count("does not apply") == expected.get(field, 1)
    if field == "runs":
        error = work.explain_cells(made)
        assert states.count("unfinished") == 4 and error.exit_code != 0 and str(runs) in str(error)


def test_a_folder_of_ones_own_stands_beside_miniatures(tmp_path):
    own = tmp_path / "mine"
    (own / "qrels").mkdir(parents=True)
    write(
        own / "corpus.jsonl",
        '{"_id": "d1", "text": "an octopus"}\n{"_id": "d2", "text": "a squid"}\n',
    )
    write(own / "queries.jsonl", '{"_id": "q1", "text": "octopus"}\n')
    write(own / "qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    text = f"""
        name = "both"
        tasks = ["congress", "{own}"]
        fixed = {{ data = "mini", limit = 2 }}
        rows = {{ program = ["retrieve"] }}
    """
    made, problem = run_cells(write(tmp_path / "study.toml", text), tmp_path / "runs")
    assert problem is None and [one.cell.request.data for one in made] == ["mini", None]
    assert all(one.run for one in made)


def run_cells(file, runs):
    """What came of the cells of a study, without its report, and the error."""
    made = work.run_cells(study_file.expand_cells(study_file.read_study(file), runs))
    return made, work.explain_cells(made)


def test_a_retriever_that_is_refused_keeps_no_other_retriever_of_the_same_model_from_being_run(
    server, tmp_path
):
    def refuse(texts):
        raise Failure(401, "invalid_api_key", "wrong key")

    server.embed = refuse
    api = f"api:{server.spec}"
    text = f"""
        name = "refused"
        tasks = ["congress", "birco/relic"]
        fixed = {{ data = "mini", limit = 2, program = "retrieve" }}
        rows = {{ retriever = ["{api}", "fusion(bm25,{api})", "dense:intfloat/e5-large-v2", "bm25"] }}
    """
    made, problem = run_cells(write(tmp_path / "study.toml", text), tmp_path / "runs")
    assert problem.exit_code == 4 and "6 cells of 8 unfinished" in str(problem)
    assert "wrong key" in str(problem)
    refused = [str(one.problem) for one in made if one.problem]
    assert sum("wrong key" in reason for reason in refused) == 4
    assert sum("e5-large-v2 is not on this machine" in reason for reason in refused) == 2
    assert [one.cell.request.retriever for one in made if one.run] == ["bm25", "bm25"]
    assert len(server.requests) == 1  # a second cell of this retriever asks in vain


@pytest.mark.parametrize(("limit", "code"), [("", 4), ("[budget]\ncalls = 1", 8)])
def test_what_stops_a_model_stops_neither_finished_cells_nor_those_that_send_nothing(
    limit, code, server, tmp_path
):
    def study(rows):
        text = f"""
            name = "model"
            tasks = ["congress"]
            fixed = {{ data = "mini", limit = 2, program = "rewrite" }}
            row = [{rows}]
            {limit}
        """
        return write(tmp_path / "study.toml", "\n".join(line.strip() for line in text.splitlines()))

    asked = f'{{ name = "asked", lm = "{server.spec}" }}'
    other = f'{{ name = "other", lm = "{server.spec}", temperature = 0.5 }}'
    offline = '{ name = "offline", program = "retrieve" }'
    if not limit:
        run_cells(study(asked), tmp_path / "runs")
    sent = len(server.requests)

    def refuse(prompt):
        raise Failure(401, "invalid_api_key", "wrong key")

    server.answer = server.answer if limit else refuse
    made, problem = run_cells(study(", ".join([other, asked, offline])), tmp_path / "runs")
    assert problem.exit_code == code
    assert [bool(one.run) for one in made] == [False, not limit, True]
    assert len(server.requests) - sent <= 2


def draw(seed, *effects):
    """Values of three rows: a baseline, a program with these effects on its tasks, and one without any."""
    generator = np.random.default_rng(seed)
    values = {}
    for place, effect in enumerate(effects):
        base = generator.beta(1, 1.5, many := 25 + 10 * place)
        noise = generator.normal(0, 0.15, (2, many)) * (generator.random((2, many)) < 0.7)
        columns = {"bm25": base, "multihop": base + effect + noise[0], "rewrite": base + noise[1]}
        values[f"task{place}"] = {
            row: dict(enumerate(column.tolist())) for row, column in columns.items()
        }
    return values


def test_a_planted_difference_is_said_and_none_where_there_is_none():
    tests = test_rows(draw(1, 0.2, -0.2, 0.0), "bm25")
    found = {(test.row, test.tasks): test for test in tests if test.significant}
    assert found.keys() == {("multihop", ("task0",)), ("multihop", ("task1",))}
    assert [test.result.difference > 0 for test in found.values()] == [True, False]
    assert {test.result.tests for test in tests} == {8}
    helped = test_rows(draw(1, 0.2, 0.2, 0.2), "bm25")
    assert say(helped[0]) == "better"

    nothing = test_rows(draw(2, 0.0, 0.0), "bm25")
    assert {say(test) for test in nothing} == {"no difference shown"}
    few = {"task": {"bm25": {"a": 0.0, "b": 0.1}, "rank": {"a": 0.5, "b": 0.9}}}
    [test] = test_rows(few, "bm25")
    assert say(test) == "no difference shown" and test.result.detectable is None


def test_rows(values, baseline):
    return significance.test_rows(values, baseline, dict.fromkeys(values, "nDCG@10"))


test_rows.__test__ = False


def say(test):
    return judge(test.result._asdict() | {"metric": test.metric})


def test_over_tasks_each_task_counts_once_and_less_may_be_better():
    one = {f"q{n}": 0.0 for n in range(4)}
    values = {
        "large": {"a": one | {"q9": 0.5}, "b": dict.fromkeys(one, -0.2) | {"q9": 0.3}},
        "small": {"a": {"q": 0.5, "r": 0.5}, "b": {"q": 0.1, "r": 0.1}},
    }
    flips = {"large": "Flip", "small": "Flip"}
    over, large, small = significance.test_rows(values, "a", flips)
    results = [test.result for test in (over, large, small)]
    assert [round(result.difference, 9) for result in results] == [0.3, 0.2, 0.4]
    # All signs are alike in two assignments.
    ps = [2 / 2**7, 2 / 2**5, 2 / 2**2]
    assert [result.p for result in results] == ps and results[0].queries == 7
    assert [result.p_holm for result in results] == [3 * ps[0], 2 * ps[1], ps[2]]


METRICS = ("nDCG@10", "nDCG@50", "Win", "Flip", "Triplets")


@pytest.mark.parametrize("seed", range(30))
def test_a_mean_over_tasks_is_of_one_kind_of_metric_and_agrees_with_its_test(seed):
    generator = np.random.default_rng(seed)
    tasks = [f"task{place}" for place in range(generator.integers(2, 6))]
    metrics = {task: str(generator.choice(METRICS)) for task in tasks}
    values = {}
    for task in tasks:
        many = int(generator.integers(3, 40))
        values[task] = {
            row: dict(enumerate(generator.random(many).tolist()))
            for row in ("base", "first", "second")
        }
    study = study_file.StudyFile(**SMALL)
    results = studies.StudyResults(
        study,
        [],
        {(row, task): [] for row in ("base", "first", "second") for task in tasks},
        metrics,
        values,
        "base",
        significance.test_rows(values, "base", metrics),
        {},
    )
    table = studies.lay_out(results)
    over_tasks = {(test.row, test.tasks): test for test in results.tests if len(test.tasks) > 1}
    means = [column for column in table.columns if len(column.tasks) > 1]
    assert {column.tasks for column in means} == {tasks for _, tasks in over_tasks}
    cells = {row.label: dict(zip(table.columns, row.cells, strict=True)) for row in table.rows}
    for column in table.columns:
        kinds = {metrics[task].partition("@")[0] for task in column.tasks}
        assert len(kinds) == 1
        sign = -1 if kinds == {"Flip"} else 1
        worth = {row: sign * cells[row][column].value for row in cells}
        assert cells[max(worth, key=worth.get)][column].best
        for test in results.tests:
            if test.tasks == column.tasks:
                assert test.result.difference == pytest.approx(worth[test.row] - worth["base"])


def test_with_a_thousand_tests_a_clear_difference_is_still_found():
    generator = np.random.default_rng(1)
    values = {"task": {"base": dict.fromkeys(range(40), 0.0)}}
    for row in range(1000):
        shift = 1.0 if row == 0 else 0.0
        values["task"][f"row{row}"] = dict(enumerate(generator.normal(shift, 0.5, 40).tolist()))
    tests = test_rows(values, "base")
    assert [test.row for test in tests if test.significant] == ["row0"]


@pytest.mark.usefixtures("undrawn")
def test_a_study_of_a_program_that_fails_says_so_and_does_not_praise_it(command, tmp_path):
    broken = write(
        tmp_path / "broken.py", "def answer(query, search, read):\n    raise RuntimeError('no')\n"
    )
    text = f"""
        name = "broken"
        tasks = ["multiconir/books:format", "multiconir/people:format"]
        fixed = {{ data = "mini" }}
        compare = {{ baseline = "bm25", metric = "Flip" }}
        row = [{{ name = "bm25", program = "retrieve" }}, {{ name = "fails", program = "{broken}:answer" }}]
    """
    done = command(write(tmp_path / "study.toml", text))
    assert done.code == 7 and "   better\n" not in done.out and " -0.7" in done.out
    assert "Failed answers, which have the worst value of each metric: fails 8 of 8" in done.out


@pytest.mark.usefixtures("undrawn")
def test_failures_of_several_seeds_are_counted_in_answers_and_not_in_queries(
    command, server, tmp_path, command_of
):
    thirds = write(
        tmp_path / "thirds.py",
        "def answer(query, search, read):\n"
        "    if len(query) % 3:\n"
        "        raise RuntimeError('no')\n"
        "    return [hit.doc_id for hit in search(query)]\n",
    )
    text = f"""
        name = "seeds"
        tasks = ["congress"]
        fixed = {{ data = "mini", limit = 5, lm = "{server.spec}", seed = [1, 2, 3] }}
        compare = {{ baseline = "bm25" }}
        row = [{{ name = "bm25", program = "retrieve" }}, {{ name = "fails", program = "{thirds}:answer" }}]
    """
    done = command(write(tmp_path / "study.toml", text))
    found = {path.parent for path in (tmp_path / "runs").rglob("outcomes.jsonl")}
    folders = sorted(folder for folder in found if not folder.name.startswith("retrieve"))
    rows = [
        json.loads(line)
        for folder in folders
        for line in (folder / "outcomes.jsonl").read_text().splitlines()
    ]
    failed = sum(row["error"] is not None for row in rows)
    assert len(folders) == 3 and len(rows) == 15 and 0 < failed < 15
    assert f"fails {failed} of 15\n" in done.out
    with (tmp_path / "runs/studies/seeds/tables/study.csv").open() as file:
        [cell] = [
            row
            for row in csv.DictReader(file)
            if row["system"] == "fails" and row["task"] == "obliq/congress"
        ]
    assert [cell[name] for name in ("queries", "failed", "answers")] == ["5", str(failed), "15"]
    run = min(found - {*folders})
    compared = command_of(comparing)(run, *folders)
    assert f"{failed} of 15 answers (5 queries, 3 runs)" in compared.out, compared
