"""From Python: functions and tasks that are objects, results that print as tables, one experiment."""

import dataclasses
import functools
import sys
from pathlib import Path

import matplotlib.figure
import pytest
from langgraph.graph import START, MessagesState, StateGraph

from sextant import environments, evals
from sextant.evals import behaviour, compare, curves, evaluate, experiment, study
from sextant.tools.errors import SextantError, UsageError

pandas = pytest.importorskip("pandas")
DEPTH = 20


def answer(query, search):
    """Search once."""
    return [hit.doc_id for hit in search(query, DEPTH)]


def rewrite(query, search):
    """Search for the beginning of a query."""
    return answer(" ".join(query.split()[:5]), search)


@pytest.fixture
def runs(tmp_path):
    return {"runs": tmp_path / "runs", "limit": 4, "split": "dev"}


@pytest.fixture
def systems(runs):
    return [
        evaluate(program=program, task="congress", **runs)
        for program in ("retrieve", answer, rewrite)
    ]


def test_the_package_lists_what_can_be_called_and_the_modules_stay_modules():
    assert {"behaviour", "compare", "curves", "evaluate", "experiment", "study"} <= {*dir(evals)}
    assert compare.parser().prog == "sextant compare"
    assert callable(evals.study) and evals.study.run


def test_a_function_is_a_program_and_ranks_what_it_returns(systems):
    floor, answered, _ = systems
    assert answered.metrics["R@10"] == floor.metrics["R@10"]


def test_an_object_is_a_new_run_at_each_call_and_the_result_says_so(runs, systems):
    again = evaluate(program=answer, task="congress", **runs)
    assert again.folder != systems[1].folder
    assert "answer is an object without a name" in str(again)
    assert "without a name" not in str(systems[0])


class Searcher:
    """Searches for a text in place of each query."""

    def __init__(self, instead):
        self.instead = instead

    def __call__(self, query, search):
        return search(self.instead or query, DEPTH)


class Versioned(Searcher):
    def fingerprint(self):
        return f"searches for {self.instead}"


def make_graph(instead):
    def think(state):
        return {"doc_ids": []}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_edge(START, "think")
    return graph.compile()


@pytest.mark.parametrize(
    "make",
    [
        Searcher,
        lambda instead: lambda query, search: search(instead or query, DEPTH),
        lambda instead: functools.partial(answer, query=instead),
        make_graph,
    ],
    ids=["instance", "closure", "partial", "graph"],
)
def test_objects_that_may_differ_are_two_runs_and_objects_of_one_name_are_one(runs, make):
    first, second = [evaluate(program=make(text), task="congress", **runs) for text in ("a", "")]
    assert first.folder != second.folder
    named = [
        evaluate(program=make(text), task="congress", name=name, **runs)
        for text, name in (("a", "v1"), ("a", "v1"), ("", "v2"))
    ]
    assert named[0].folder == named[1].folder != named[2].folder
    assert named[0].metrics == named[1].metrics and "without a name" not in str(named[0])


def test_a_fingerprint_tells_an_object_from_another(runs):
    texts = ("zebra", "zebra", "")
    folders = [evaluate(program=Versioned(text), task="congress", **runs).folder for text in texts]
    assert folders[0] == folders[1] != folders[2]
    with pytest.raises(UsageError, match="fingerprint of Searcher is 3"):
        bad = Searcher("")
        bad.fingerprint = 3
        evaluate(program=bad, task="congress", **runs)


def test_an_object_runs_in_this_process_alone(runs):
    with pytest.raises(UsageError, match="runs in this process"):
        evaluate(program=answer, task="congress", workers=2, **runs)


def test_a_task_may_be_loaded_and_changed_before_it_is_asked(runs):
    task = environments.load("congress", split="dev")
    mine = dataclasses.replace(task, task="mine", data="notebook", queries=task.queries[:3])
    for given in (mine, lambda: mine):
        result = evaluate(program=answer, task=given, runs=runs["runs"])
        assert result.json()["queries"] == 3 and result.json()["task"] == "own/mine"
    named = evaluate(program="retrieve", task="congress", **runs)
    loaded = evaluate(program="retrieve", task=task, **runs)
    assert named.folder == loaded.folder


def test_tables_name_a_function_as_it_is_called(systems):
    names = compare(systems)["systems"]
    programs = [system["name"].removesuffix(" over bm25") for system in names]
    assert programs == ["retrieve", "answer", "rewrite"]


@pytest.mark.parametrize("call", [curves, behaviour, compare])
def test_a_call_without_a_run_says_what_to_name(call):
    with pytest.raises(SextantError, match=r"name .*run folders"):
        call()


def test_what_is_no_task_is_refused(runs):
    with pytest.raises(UsageError, match=r"no list; environments\.load"):
        evaluate(program=answer, task=["congress"], **runs)


def test_a_result_prints_as_the_command_does_and_is_html_and_a_data_frame(systems):
    result = systems[0]
    assert f"run: {result.folder}" in str(result) and repr(result) == str(result)
    assert "<table>" in result._repr_html_()
    frame = result.to_pandas().set_index("metric")
    assert frame.loc["nDCG@10", "mean"] == result.metrics["nDCG@10"].mean


def test_a_data_frame_without_pandas_names_the_extra_that_brings_it(systems, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"the package pandas.*\[notebook\]"):
        systems[0].to_pandas()


def test_a_text_in_place_of_a_list_is_one_name(systems, runs):
    metrics = compare(*systems[:2], metrics="nDCG@3").to_pandas()["metric"]
    assert metrics.tolist() == ["nDCG@3"]
    with pytest.raises(UsageError, match="two systems or more"):
        experiment("retrieve", "congress", **runs)


def test_compare_takes_results_and_folders(systems):
    first, second, _ = systems
    result = compare(first, str(second.folder))
    assert result["baseline"] == str(first.folder)
    assert "against baseline" in str(result)
    frame = result.to_pandas()
    assert frame["metric"].tolist()[0] == "nDCG@10"
    assert frame["p"].dtype == float and frame["p"].isna().any(), "R@1000 is not tested"
    assert isinstance(result.plot(), matplotlib.figure.Figure)


def test_curves_and_behaviour_are_tables_and_curves_a_plot(systems):
    folders = [result.folder for result in systems]
    drawn = curves(*folders, by="searches")
    assert len(drawn.plot().axes) == 1 and {*drawn.to_pandas()["axis"]} == {"searches"}
    counted = behaviour(*folders)
    frame = counted.to_pandas()
    assert "searches of a query" in str(counted) and len(frame.columns) == 4
    assert {dtype.kind for dtype in frame.dtypes[1:]} == {"f"}
    with pytest.raises(UsageError, match="no plot"):
        counted.plot()


def test_a_figure_shows_itself_in_a_notebook(systems):
    assert compare(*systems).plot()._repr_png_().startswith(b"\x89PNG")


def test_an_experiment_is_one_table_with_p_against_the_baseline(runs, systems):
    result = experiment(
        ["retrieve", answer, {"program": rewrite}],
        "congress",
        baseline=1,
        names=["floor", "mine", "short"],
        **runs,
    )
    frame = result.to_pandas().set_index("system")
    assert [*frame.index] == ["mine", "floor", "short"]
    expected = compare(systems[1], systems[0], systems[2])
    rows = {(row["run"], row["metric"]): row for row in expected["comparisons"]}
    row = rows[str(systems[2].folder), "nDCG@10"]
    assert frame.loc["short", "nDCG@10"] == pytest.approx(row["mean"])
    assert frame.loc["short", "nDCG@10 p"] == row["p_holm"]
    assert pandas.isna(frame.loc["mine", "nDCG@10 p"])


def test_an_experiment_of_one_system_or_of_two_equal_ones_is_refused(runs):
    with pytest.raises(UsageError, match="two systems or more"):
        experiment(["retrieve"], "congress", **runs)
    with pytest.raises(UsageError):
        experiment(["retrieve", "retrieve"], "congress", **runs)
    with pytest.raises(UsageError, match="give 0 to 1"):
        experiment(["retrieve", "multihop"], "congress", baseline=2, **runs)


def test_a_study_is_a_table_and_a_plot(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(
        'name = "s"\nquestion = "?"\ntasks = ["congress"]\n[fixed]\ndata = "mini"\nlimit = 3\n'
        '[rows]\nprogram = ["retrieve"]\nretriever = ["bm25", "rank_bm25"]\n'
        '[compare]\nbaseline = "bm25"\n'
    )
    result = study(file, tmp_path / "runs")
    frame = result.to_pandas()
    assert {*frame["system"][:2]} == {"bm25", "rank_bm25"}
    assert isinstance(result.plot(), matplotlib.figure.Figure)
    assert Path(result["report"]).exists()
