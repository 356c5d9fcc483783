"""A paper's table is made on miniatures, beside the paper's figures; the authors' own rankings are read and scored."""

import itertools
import json
import math
import pickle
import random
import shutil
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from sextant import environments
from sextant.environments.base import Judgements
from sextant.evals import import_run, reproduce
from sextant.evals.formats.birco_rankings import find_system
from sextant.evals.papers.sections import sections
from sextant.evals.papers.settings import ReproductionSettings
from sextant.evals.run_folder import load_environment
from sextant.evals.scoring.metrics import Ranking, apply_metric, compute, judge_ranking
from sextant.evals.scoring.random_and_ideal import bound, expected_random_score
from sextant.evals.studies.reproduce import describe_count
from sextant.evals.studies.reproduced_figures import make_panels
from sextant.evals.studies.reproduced_table import ReproducedTable, TableCell
from sextant.tools.errors import NotApplicable

FOLDERS = {"birco/arguana": "arguana", "birco/clinical_trial": "clinical-trial"}


@pytest.fixture
def make(command_of, tmp_path):
    """`sextant.evals.reproduce ARGUMENTS --json`, over miniatures."""
    command = command_of(reproduce)
    given = ("--data", "mini", "--runs", tmp_path / "runs", "--json")
    return lambda *words: command(*words, *given).json


def part(name, conditions, *systems):
    """The table with the cells of some systems only; where none is named, with one cell of each."""
    section = sections()[name]
    cells = [cell for cell in section.cells if cell.system in systems] or {
        one.system: one for one in section.cells
    }.values()
    return ReproducedTable(replace(section, cells=tuple(cells)), conditions)


@pytest.fixture
def conditions(tmp_path):
    return ReproductionSettings(
        data="mini", limit=None, lm="", retriever="", runs=tmp_path / "runs"
    )


@pytest.mark.parametrize("name", sections())
def test_every_system_of_a_table_is_a_row_of_a_study_or_says_why_it_is_none(name, conditions):
    section, table = sections()[name], part(name, conditions)
    assert section.cells or section.about["lacks"]
    for cell in table.section.cells:
        system = section.system(cell) if cell.system else {"name": "a statistic", "bound": ""}
        planned = any(row == system.get("row", system["name"]) for row, _ in table.planned)
        assert planned or cell.lacks or {"bound", "lacks", "mean_of"} & system.keys()


def test_the_table_of_data_says_by_which_rule_triplets_of_doris_mae_are_counted(make):
    found = make("birco/table1")
    [note] = [note for note in found["notes"] if "triplets" in note]
    assert all(count in note for count in ("6,876", "8,887", "3,794"))
    [cell] = [
        cell
        for cell in found["cells"]
        if (cell["task"], cell["metric"]) == ("birco/doris_mae", "triplets")
    ]
    dev = environments.load("birco/doris_mae", "mini", "dev")
    pairs = [
        (better, worse)
        for labels in dev.qrels.values()
        for better, worse in itertools.permutations(labels.values(), 2)
        if worse > max(labels.values()) / 2 and better - worse > 0.25
    ]
    assert cell["ours"] == len(pairs) and cell["published"] == 3000


def test_a_table_stands_beside_the_papers_and_says_first_that_miniatures_are_not_comparable(make):
    found = make("obliq/table4", "--limit", "2", "--lm", "offline", "--retriever", "bm25")
    assert "never comparable" in found["notes"][0]
    cells = {(cell["system"], cell["metric"]): cell for cell in found["cells"]}
    lexical, rewritten = cells["BM25", "R@50"], cells["GPT-5.2 Query Rewriter", "R@50"]
    assert lexical["published"] == 0.008 and lexical["difference"] == pytest.approx(
        lexical["ours"] - 0.008
    )
    assert lexical["remark"] == "" and rewritten["ours"] is not None
    assert (
        rewritten["remark"] == "offline for openai/gpt-5.2; bm25 for api:gemini/gemini-embedding-2"
    )


def test_a_table_without_a_key_has_all_other_cells_and_the_exit_code_of_a_refusal(
    command_of, monkeypatch, tmp_path
):
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    given = (
        "--data",
        "mini",
        "--limit",
        "1",
        "--lm",
        "offline",
        "--runs",
        tmp_path / "runs",
        "--json",
    )
    done = command_of(reproduce)("obliq/table2", *given)
    cells = done.json["cells"]
    for cell in cells:
        assert (cell["ours"] is not None) == (cell["system"] == "BM25"), cell
    remarks = {cell["remark"] for cell in cells if not cell["ours"]}
    assert done.code == 4 and "$GEMINI_API_KEY" in done.err
    assert "" not in remarks and any("$GEMINI_API_KEY" in remark for remark in remarks)


def test_a_table_is_priced_before_it_is_made_and_says_what_it_leaves_out(make):
    found = make("birco/table9", "--limit", "1", "--dry-run")
    assert (
        found["all"]["queries"] == 0
        and "e5-large-v2 is not on this machine" in found["cells"][0]["why"]
    )
    found = make("birco/table9", "--limit", "1", "--retriever", "bm25", "--dry-run")
    assert found["all"]["queries"] == 4 and not any("why" in cell for cell in found["cells"])


def test_a_system_that_cannot_be_had_says_why_and_bounds_need_no_run(conditions):
    table = part("birco/table5", conditions, "Promptagator", "Maximum Possible")
    for cell in table.cells():
        known = (
            cell.ours == 1.0
            if cell.metric == "nDCG@10"
            else 0 < cell.ours <= 1
            if cell.ours
            else False
        )
        assert known if cell.system != "Promptagator" else "no weights" in cell.remark


@pytest.fixture
def shipped(tmp_path):
    """Rankings as BIRCO ships them: pools shuffled, of two tasks, by the path of their files."""
    made = {}
    for task, folder in FOLDERS.items():
        queries = environments.load(task, "mini").released.queries
        for stem in ("Score_O_GPT4", "E5"):
            lots = random.Random(stem)
            ranks = {
                np.str_(one.query_id): lots.sample(sorted(one.candidates), len(one.candidates))
                for one in queries
            }
            file = tmp_path / "evaluation" / "ranks" / folder / f"{stem}.pickle"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(pickle.dumps(ranks))
            made[task, stem] = ranks
    (tmp_path / "evaluation" / "ranks" / "clinical-trial" / "Tart_O.pickle").write_bytes(
        pickle.dumps(made[min(made)])
    )
    return made


def by_their_script(ranks, task) -> float:
    """Return nDCG@10 as the authors' script has it: linear gains, the mean of 1,000 resamples."""
    qrels, values = environments.load(task, "mini").released.qrels, []
    for query_id, ranking in ranks.items():
        gains = [qrels[query_id][doc_id] for doc_id in ranking[:10]]
        best = sorted(qrels[query_id].values(), reverse=True)[:10]
        dcg, ideal = (
            sum(g / math.log2(at + 2) for at, g in enumerate(some)) for some in (gains, best)
        )
        values.append(dcg / ideal)
    np.random.seed(42)
    means = [np.mean(np.random.choice(values, len(values), replace=True)) for _ in range(1000)]
    return float(np.mean(means))


def test_the_authors_own_rankings_fill_their_rows_as_their_script_scores_them(
    shipped, conditions, command_of, tmp_path
):
    ranks = (tmp_path / "evaluation", "--from", "birco-ranks", "--data", "mini")
    imported = command_of(import_run)(*ranks, "--runs", conditions.runs, "--json")
    done = imported.json
    left_out = [row["run"] for row in done if "Tart_O" in row["file"]]
    assert (
        imported.code == 3
        and "1 of 5 files refused" in imported.err
        and "Tart_O.pickle" in imported.err
    )
    assert len(done) == 5 and "of other queries than birco/clinical_trial" in left_out[0]

    made = list(part("birco/table7", conditions, "Score+O GPT4", "E5-L-v2", "Random").cells())
    found = {(cell.task, cell.system): cell for cell in made if cell.metric == "nDCG@10"}
    for task in FOLDERS:
        for stem, system in (("Score_O_GPT4", "Score+O GPT4"), ("E5", "E5-L-v2")):
            cell, mean = found[task, system], by_their_script(shipped[task, stem], task)
            assert (cell.ours, cell.remark) == (
                pytest.approx(mean),
                "the authors' own ranking",
            )


def reciprocal_rank_and_precision(ranking, grades):
    """Return the reciprocal rank of the highest grade in the first ten, and the average precision."""
    top = [doc_id for doc_id, grade in grades.items() if grade == max(grades.values())]
    relevant = [doc_id for doc_id, grade in grades.items() if grade > 0]
    ranks = [rank for rank, doc_id in enumerate(ranking[:10], start=1) if doc_id in top]
    places = [rank for rank, doc_id in enumerate(ranking, start=1) if doc_id in relevant]
    precisions = [count / rank for count, rank in enumerate(places, start=1)]
    return 1 / min(ranks) if ranks else 0.0, sum(precisions) / len(relevant)


def test_metrics_that_only_a_table_has_are_computed_from_the_rankings_as_plain_means(
    shipped, conditions, command_of, tmp_path
):
    ranks = (tmp_path / "evaluation", "--from", "birco-ranks", "--data", "mini")
    command_of(import_run)(*ranks, "--runs", conditions.runs, "--json")
    cells = list(part("birco/table8", conditions, "E5-v2").cells())
    ours = {(cell.task, cell.metric): cell.ours for cell in cells}
    for task in FOLDERS:
        qrels = environments.load(task, "mini").released.qrels
        rows = shipped[task, "E5"].items()
        values = [reciprocal_rank_and_precision(ranking, qrels[query]) for query, ranking in rows]
        reciprocal, precision = map(fmean, zip(*values, strict=True))
        assert ours[task, "TopRR@10"] == pytest.approx(reciprocal)
        assert ours[task, "AP"] == pytest.approx(precision)


def test_every_form_of_a_table_has_the_deviations_of_its_rows_below_it(command_of, tmp_path):
    given = ("--lm", "offline", "--retriever", "bm25", "--data", "mini", "--limit", "1")
    text = command_of(reproduce)("obliq/table4", *given, "--runs", tmp_path).out
    folder = tmp_path / "studies" / "obliq-table4"
    table = folder / "tables" / "obliq-table4"
    pages = {
        "terminal": text,
        "page": (folder / "index.html").read_text(),
        "Markdown": (folder / "report.md").read_text(),
        "CSV": table.with_suffix(".csv").read_text(),
        "LaTeX": table.with_suffix(".tex").read_text(),
    }
    for form, page in pages.items():
        for program in ("multihop", "rewrite", "tournament"):
            assert f"{program} differs from the paper" in page.replace("&#39;", "'"), form
        assert "hidden:300 hides that" in page, form
        assert "never comparable" in page or form == "CSV"


def test_solutions_of_the_users_own_make_the_row_that_no_release_can(conditions, tmp_path):
    name = "Oracle GPT-5.2 Tournament+Soln"
    [cell, *_] = part("obliq/table3", conditions, name).cells()
    assert cell.ours is None and "--solutions FILE" in cell.remark
    file = tmp_path / "solutions.jsonl"
    file.write_text('{"_id": "any", "solution": "Let x be 1."}\n')
    own = {"lm": "offline", "retriever": "bm25", "limit": 1, "solutions": file}
    [cell, *_] = part("obliq/table3", replace(conditions, **own), name).cells()
    assert cell.ours is not None and f"solutions of {file}" in cell.remark


def test_models_are_told_of_the_task_in_the_papers_words_or_in_ours_and_the_row_says_so(conditions):
    systems = {system["name"]: system for system in sections()["crumb/table8"].systems}
    rewritten = systems["GTE Qwen 7B | Query-to-Answer"]
    settings, remark = conditions.fields(rewritten)
    assert (settings["instruction"], remark) == ("paper", "")
    table4 = {"instruction": "Given an answer to a question find supporting/relevant items"}
    assert settings["parameters"] == table4
    settings, remark = replace(conditions, instruction="ours").fields(rewritten)
    assert (settings["instruction"], settings["parameters"]) == ("ours", {})
    assert remark.startswith("our words for what")
    generic = systems["GTE Qwen 7B | generic"]
    ours, remark = replace(conditions, instruction="ours").fields(generic)
    assert (ours, remark) == conditions.fields(generic) and remark == ""


def test_a_run_searches_under_what_the_paper_prints_of_its_task(make, command_of, tmp_path):
    given = ("--lm", "offline", "--retriever", "bm25", "--limit", "1")
    found = make("birco/table6", *given)
    assert not any("told of the task" in cell["deviations"] for cell in found["cells"])
    [file] = tmp_path.glob("runs/birco-arguana/score-*/config.json")
    query = load_environment(json.loads(file.read_text())).queries[0]
    assert query.objective.startswith("This information retrieval (IR) task has a debate format")
    found = make("birco/table6", *given, "--instruction", "ours")
    ours = [cell for cell in found["cells"] if cell["ours"] is not None]
    assert ours and all("our words for" in cell["remark"] for cell in ours)


def test_a_task_without_a_printed_text_refuses_the_papers(command_of):
    for task in ("obliq/math", "obliq/congress"):
        with pytest.raises(NotApplicable, match="leave out --instruction paper"):
            environments.load(task, "mini", instruction="paper")
    for task in ("crumb/set_ops:document", "multiconir/books:format", "birco/relic:corpus"):
        [text] = {
            query.objective
            for query in environments.load(task, "mini", instruction="paper").queries
        }
        assert text == environments.find_paper_instruction(task) != ""


def test_a_figure_over_tasks_takes_the_users_own_and_a_table_does_not(
    conditions, command_of, own_task, tmp_path
):
    own = replace(conditions, lm="offline", retriever="bm25", tasks=(str(own_task),), limit=1)
    section = replace(sections()["obliq/figure1"], cells=())
    cells = list(ReproducedTable(section, own).cells())
    assert {cell.task for cell in cells} == {"own/own"}
    assert len(cells) == 8 and all(cell.ours is not None for cell in cells)
    how = {"kind": "gaps", "x": "Oracle GPT-5.2 Tournament"}
    assert make_panels(cells, how)[0].series[0].points[0].label == "own"
    refused = command_of(reproduce)("obliq/table2", "--task", own_task, "--runs", tmp_path)
    assert refused.code == 2 and "obliq/figure1" in refused.err


@pytest.fixture
def own_task(tmp_path):
    """A folder with five documents and a query for each."""
    folder = tmp_path / "own"
    (folder / "qrels").mkdir(parents=True)
    words = ("apple", "budget", "cat", "debate", "elephant")
    for name in ("corpus", "queries"):
        rows = [f'{{"_id": "{word}", "text": "{word} words"}}\n' for word in words]
        (folder / f"{name}.jsonl").write_text("".join(rows))
    grades = [f"{word}\t{word}\t1\n" for word in words]
    head = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / "test.tsv").write_text(head + "".join(grades))
    return folder


def test_only_values_that_round_alike_count_as_the_papers():
    cells = [
        TableCell("x", "t", "m", "test", published=0.0, ours=ours)
        for ours in (0.0, 0.0004, -0.0005, 0.0006, None)
    ]
    assert "3 of 4 values of ours are the paper's" in describe_count([], cells)


def test_a_ranking_with_an_unknown_document_is_refused_by_the_name_of_the_users_file(
    shipped, command_of, tmp_path
):
    for file in (tmp_path / "evaluation/ranks").glob("*/*.pickle"):
        if file.parent.name != "arguana":
            file.unlink()
    (tmp_path / "evaluation/ranks/arguana/E5.pickle").rename(
        file := tmp_path / "evaluation/ranks/arguana/mine.pickle"
    )
    ranks = pickle.loads(file.read_bytes())
    next(iter(ranks.values())).append("nobody")
    file.write_bytes(pickle.dumps(ranks))
    given = (
        tmp_path / "evaluation",
        "--from",
        "birco-ranks",
        "--data",
        "mini",
        "--runs",
        tmp_path / "runs",
    )
    done = command_of(import_run)(*given)
    assert (
        done.code == 3
        and str(file) in done.err
        and "nobody" in done.err
        and "ranks.trec" not in done.out + done.err
    )
    refused, imported = sorted(done.out.splitlines(), reverse=True)
    assert "Score_O_GPT4.pickle: " in imported and "no system of Table 7" not in imported
    assert refused.startswith("refused: ") and "no system of Table 7" in refused


# The names of all files of evaluation/ranks in the release, each once.
_RELEASED = {
    "GPT-4_reason_O": "Reason+O GPT4",
    "GPT-4_score_O": "Score+O GPT4",
    "GPT-4_subtask_O": "Subtask+O GPT4",
    "Monot5": "MonoT5",
    "RankLlama": "RankLLaMA",
    "Rankgpt_GPT-4": "Rank GPT4",
    "Rankgpt_GPT-4_O": "Rank+O GPT4",
    "Rankgpt_StripedHyena": "Rank StripedHyena",
    "Rankgpt_StripedHyena_O": "Rank+O StripedHyena",
    "Rankgpt_llama13b": "Rank Llama2-13b",
    "Rankgpt_llama13b_O": "Rank+O Llama2-13b",
    "Rankgpt_llama70b": "Rank Llama2-70b",
    "Rankgpt_llama70b_O": "Rank+O Llama2-70b",
    "Rankgpt_llama7b": "Rank Llama2-7b",
    "Rankgpt_llama7b_O": "Rank+O Llama2-7b",
    "Rrankgpt_llama13b_O": "Rank+O Llama2-13b",
    "Rrankgpt_llama7b": "Rank Llama2-7b",
    "StripedHyena_7B_reason_O": "Reason+O StripedHyena",
    "StripedHyena_7B_score_O": "Score+O StripedHyena",
    "StripedHyena_7B_subtask_O": "Subtask+O StripedHyena",
    "Tart": "TART",
    "Tart_O": "TART+O",
    "e5_rank": "E5-L-v2",
    "llama_13b_reason_O": "Reason+O Llama2-13b",
    "llama_13b_score_O": "Score+O Llama2-13b",
    "llama_13b_subtask_O": "Subtask+O Llama2-13b",
    "llama_70b_reason_O": "Reason+O Llama2-70b",
    "llama_70b_score_O": "Score+O Llama2-70b",
    "llama_70b_subtask_O": "Subtask+O Llama2-70b",
    "llama_7b_reason_O": "Reason+O Llama2-7b",
    "llama_7b_score_O": "Score+O Llama2-7b",
    "llama_7b_subtask_O": "Subtask+O Llama2-7b",
    "llama_7b_test_score_O": "Score+O Llama2-7b",
    "roberta_rank": "RoBERTa-L",
    "simcse_rank": "SIMCSE",
    "splade++_rank": "SPLADE++",
    "spladev2_rank": "SPLADE-v2",
}


@pytest.mark.parametrize("stem", [*_RELEASED])
def test_each_ranking_of_the_release_is_taken_for_its_row(stem):
    assert find_system(stem) == _RELEASED[stem]


@pytest.mark.parametrize(
    "stem", ["mine", "score_O", "llama_34b_score_O", "e5_O", "GPT-4_rank_vote"]
)
def test_a_ranking_of_no_row_is_taken_for_none(stem):
    assert find_system(stem) == ""


@pytest.mark.parametrize("grades", [[1, 0, 0, 0, 0], [2, 1, 0.5, 0, 0], [0, 0, 0, 0, 0]])
def test_chance_is_the_mean_over_all_orders_of_a_pool(grades):
    pool = {f"d{number}": grade for number, grade in enumerate(grades)}
    judgements = Judgements({"q": pool})
    every = [judge_ranking(order, judgements, "q") for order in itertools.permutations(pool)]
    for k in (1, 3, 10):
        assert expected_random_score(f"nDCG@{k}", every[0], 5) == pytest.approx(
            fmean(apply_metric(f"nDCG@{k}", one) for one in every)
        )
        if any(grades):
            recalls = [apply_metric(f"R@{k}", one) for one in every]
            assert expected_random_score(f"R@{k}", every[0], 5) == pytest.approx(fmean(recalls))


@pytest.mark.parametrize("task", ["paper_retrieval", "doris_mae"])  # one has units, one has grades
def test_bounds_of_a_pool_that_lacks_relevant_documents_are_the_mean_and_the_most_over_its_orders(
    task,
):
    whole = environments.load(task, "mini")
    judgements, others = whole.judgements[whole.headline], sorted(whole.documents)
    unit_of, pools = judgements.unit_of or str, {}
    for query in (
        queries := [one for one in whole.queries if len(judgements.recalled(one.query_id)) > 1][:2]
    ):
        first = {unit_of(one): one for one in others}  # a document of each unit
        some = [
            first[unit] for unit in sorted(judgements.recalled(query.query_id)) if unit in first
        ][:1]
        pools[query.query_id] = [*some, *[one for one in first.values() if one not in some][:4]]
    pooled = tuple(replace(query, candidates=frozenset(pools[query.query_id])) for query in queries)
    environment = replace(whole, queries=pooled)
    for metric in ("nDCG@2", "nDCG@10", "R@3", "R@10"):
        values = [
            [
                compute(metric, one, {one: Ranking(order)}, environment)
                for order in itertools.permutations(pool)
            ]
            for one, pool in pools.items()
        ]
        assert bound("random", metric, environment) == pytest.approx(fmean(map(fmean, values)))
        assert bound("maximum", metric, environment) == pytest.approx(fmean(map(max, values)))
    assert 0 < bound("maximum", "R@10", environment) < 1


def test_the_reciprocal_rank_that_birco_counts_is_of_the_highest_grade():
    judgements = Judgements({"q": {"a": 1.0, "b": 2.0, "c": 2.0}})
    assert apply_metric("TopRR@10", judge_ranking(["x", "a", "c"], judgements, "q")) == 1 / 3
    assert apply_metric("TopRR@2", judge_ranking(["x", "a", "c"], judgements, "q")) == 0.0


def test_the_list_says_what_data_each_table_needs_and_what_cannot_be_made(command_of):
    done = command_of(reproduce)("--json").json["sections"]
    known = {row["name"]: row for row in done}
    figure3 = {"obliq/twitter", "obliq/math", "obliq/congress"}
    assert known["obliq/figure3"]["data"].keys() == figure3
    assert known["birco/figure2"]["why"] and "$500" in known["birco/table5"]["price"]


def test_tasks_whose_data_is_not_there_say_so_in_their_cells_and_the_others_are_made(
    conditions, tmp_path
):
    shutil.copytree(
        environments.MINI / "crumb" / "stack_exchange", tmp_path / "data" / "stack_exchange"
    )
    table = ReproducedTable(
        sections()["crumb/table1"], replace(conditions, data=str(tmp_path / "data"))
    )
    for cell in table.cells():
        there = cell.task == "crumb/stack_exchange"
        assert (cell.ours is not None) == there and ("holds no" in cell.remark) != there
