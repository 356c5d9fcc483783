"""From Python: functions and tasks that are objects, results that print as tables, one experiment."""

import dataclasses
import functools
import sys
from pathlib import Path

import matplotlib.figure
import pytest
from langgraph.graph import START, MessagesState, StateGraph

import environments
import evals
from evals import behaviour, compare, curves, evaluate, experiment, study
from evals.running import object_programs
from tools.errors import SextantError, UsageError
from tools.plugins import display_name

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
    assert compare.parser().prog.endswith("evals.compare")
    assert callable(evals.study) and evals.study.run


def test_a_function_is_a_program_and_ranks_what_it_returns(runs, systems):
    floor, answered, _ = systems
    assert answered.metrics["R@10"] == floor.metrics["R@10"]
    again = evaluate(program=answer, task="congress", **runs)
    assert again.folder == answered.folder


def test_a_function_whose_source_or_values_change_makes_another_run(monkeypatch):
    name = object_programs.register(rewrite)
    assert name == object_programs.register(rewrite)
    assert name.partition("@")[0] == display_name(name).partition("@")[0] == "rewrite"
    # `rewrite` calls `answer`, which reads DEPTH.
    monkeypatch.setitem(answer.__globals__, "DEPTH", 30)
    assert object_programs.register(rewrite) != name
    monkeypatch.undo()
    assert object_programs.register(rewrite) == name
    assert object_programs.register(functools.cache(rewrite)) == name
    assert object_programs.register(answer) != name


def test_a_function_without_a_source_is_told_apart_by_its_code():
    spaces = [{}, {}]
    for space, depth in zip(spaces, (10, 20), strict=True):
        exec(f"def answer(query, search): return search(query, {depth})", space)
    first, other = [object_programs.register(space["answer"]) for space in spaces]
    assert first != other


def test_graphs_are_told_apart_by_the_functions_in_them():
    def make(number):
        def think(state):
            return {"messages": [str(number)]}

        graph = StateGraph(MessagesState)
        graph.add_node("think", think)
        graph.add_edge(START, "think")
        return graph

    assert object_programs.register(make(1)) == object_programs.register(make(1))
    assert object_programs.register(make(1)) != object_programs.register(make(2))
    compiled = [make(number).compile() for number in (1, 2)]
    assert object_programs.register(compiled[0]) != object_programs.register(compiled[1])


def test_an_object_runs_in_this_process_alone(runs):
    with pytest.raises(UsageError, match="runs in this process"):
        evaluate(program=answer, task="congress", workers=2, **runs)


def test_a_task_may_be_loaded_and_changed_before_it_is_asked(runs):
    task = environments.load("congress", split="dev")
    mine = dataclasses.replace(task, task="mine", data="notebook", queries=task.queries[:3])
    for given in (mine, lambda: mine):
        result = evaluate(program=answer, task=given, runs=runs["runs"])
        assert result.json()["queries"] == 3 and result.json()["task"] == "own/mine"
    named = evaluate(program=answer, task="congress", **runs)
    loaded = evaluate(program=answer, task=task, **runs)
    assert named.folder == loaded.folder


def test_tables_name_a_function_without_its_digest(systems):
    names = compare(systems)["systems"]
    assert [system["name"] for system in names] == ["retrieve", "answer", "rewrite"]


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
    assert "run 1 against baseline" in str(result)
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
