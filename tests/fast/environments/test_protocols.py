"""Whole runs on tasks of every benchmark, against what independent code makes of the same files."""

import csv
import json
import math
import shutil
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import pytrec_eval
from rank_bm25 import BM25Okapi

from sextant import environments
from sextant.environments import crumb, multiconir
from sextant.evals import score
from sextant.evals.run_folder import load_environment
from sextant.tools.errors import DataError, SextantError, UsageError
from sextant.tools.platform.cli import run_command
from sextant.tools.platform.files import sextant_home


@pytest.fixture
def retrieve(run):
    def call(task, *words):
        return run(
            "--program", "retrieve", "--task", task, "--data", "mini", "--split", "all", *words
        )

    return call


def trec(result) -> dict[str, dict[str, float]]:
    with (Path(result["run"]) / "run.trec").open() as file:
        run = pytrec_eval.parse_run(file)
    # An id with a blank in it, which math has, is percent-encoded there.
    return {
        query_id: {unquote(doc_id): score for doc_id, score in scores.items()}
        for query_id, scores in run.items()
    }


def outcomes(result) -> dict[str, dict]:
    rows = map(json.loads, (Path(result["run"]) / "outcomes.jsonl").read_text().splitlines())
    return {row["query_id"]: row for row in rows}


def evaluated(run, qrels, measures) -> dict[str, float]:
    grades = {
        q: {doc_id: int(grade) for doc_id, grade in judged.items()} for q, judged in qrels.items()
    }
    values = pytrec_eval.RelevanceEvaluator(grades, measures).evaluate(run)
    names = {name for value in values.values() for name in value}
    return {name: sum(value[name] for value in values.values()) / len(qrels) for name in names}


@pytest.mark.parametrize("task", ["math", "writing"])
def test_what_a_query_masks_is_never_handed_in(retrieve, task):
    masks = {
        query.query_id: query.excluded for query in environments.load(task, "mini", "all").queries
    }
    for query_id, outcome in outcomes(retrieve(task, "--json").json).items():
        assert masks[query_id] and not masks[query_id] & set(outcome["ranking"])


def test_gold_and_pooled_are_both_reported_and_either_may_lead_without_a_second_run(
    retrieve, capsys
):
    gold, pooled = (
        retrieve("math", "--json").json,
        retrieve("math", "--json", "--qrels", "pooled").json,
    )
    assert (gold["judgements"], pooled["judgements"]) == ("gold", "pooled") and gold[
        "run"
    ] == pooled["run"]
    judgements = environments.load("math", "mini", "all").judgements
    for name, led in (("gold", gold), ("pooled", pooled)):
        theirs = evaluated(trec(led), judgements[name].qrels, {"ndcg_cut.10", "recall.100"})
        assert led["metrics"]["nDCG@10"]["mean"] == pytest.approx(theirs["ndcg_cut_10"])
        assert led["metrics"]["R@100"]["mean"] == pytest.approx(theirs["recall_100"])
    assert gold["metrics"]["nDCG@10 [pooled]"] == pooled["metrics"]["nDCG@10"]
    assert "pooled" in retrieve("math").out.splitlines()[3]
    capsys.readouterr()
    assert (
        run_command(score.parser(), score.command, [gold["run"], "--qrels", "gold", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["metrics"] == gold["metrics"]


def test_equal_texts_are_merged_only_beside_the_official_figures(retrieve):
    metrics = retrieve("wildchat", "--json").json["metrics"]
    environment = environments.load("wildchat", "mini", "all")
    repeats = environment.documents.repeats()
    merged_run: dict[str, dict[str, float]] = {}
    for query_id, scores in trec(retrieve("wildchat", "--json").json).items():
        units = merged_run.setdefault(query_id, {})
        for doc_id, value in scores.items():
            unit = repeats.get(doc_id, doc_id)
            units[unit] = max(value, units.get(unit, 0.0))
    merged_qrels = {
        q: {repeats.get(d, d): g for d, g in grades.items()}
        for q, grades in environment.qrels.items()
    }
    theirs = evaluated(merged_run, merged_qrels, {"ndcg_cut.10"})["ndcg_cut_10"]
    assert metrics["nDCG@10 [gold, equal texts merged]"]["mean"] == pytest.approx(theirs)
    assert metrics["nDCG@10"]["mean"] != pytest.approx(theirs, abs=1e-4)


def test_max_p_ranks_documents_by_their_best_passage_and_writes_their_ids(retrieve):
    result = retrieve("crumb/clinical_trial", "--json").json
    config = json.loads((Path(result["run"]) / "config.json").read_text())
    assert config["max_p"] is True and config["depth"] == 2000
    environment = environments.load("crumb/clinical_trial", "mini", "all")
    parents = {passage.parent for passage in environment.documents.stream()}
    run = trec(result)
    assert {doc_id for ranking in run.values() for doc_id in ranking} <= parents
    theirs = evaluated(run, environment.qrels, {"ndcg_cut.10", "recall.100"})
    assert result["metrics"]["nDCG@10"]["mean"] == pytest.approx(theirs["ndcg_cut_10"])
    assert result["metrics"]["R@100"]["mean"] == pytest.approx(theirs["recall_100"])
    for query_id, outcome in outcomes(result).items():
        best = {}  # by brute force over the passages' scores
        for passage, value in zip(outcome["ranking"], outcome["scores"], strict=True):
            parent = environment.documents[passage].parent
            best[parent] = max(value, best.get(parent, -math.inf))
        ranked = sorted(run[query_id], key=run[query_id].__getitem__, reverse=True)
        assert [best[parent] for parent in ranked] == sorted(best.values(), reverse=True)


def test_papers_gain_the_graded_labels_and_recall_the_binary_ones(retrieve):
    result = retrieve("crumb/paper_retrieval", "--json").json
    judgements = environments.load("crumb/paper_retrieval", "mini", "all").judgements["passage"]
    gained = evaluated(trec(result), judgements.qrels, {"ndcg_cut.10"})["ndcg_cut_10"]
    found = evaluated(trec(result), judgements.binary, {"recall.10"})["recall_10"]
    assert result["metrics"]["nDCG@10"]["mean"] == pytest.approx(gained)
    assert result["metrics"]["R@10"]["mean"] == pytest.approx(found)


@pytest.mark.parametrize("task", ["doris_mae", "birco/clinical_trial"])
def test_birco_ranks_pools_and_gives_the_plain_and_the_resampled_mean(retrieve, task):
    result = retrieve(task, "--json", "--split", "test").json
    environment = environments.load(task, "mini", "test").released
    with (Path(result["run"]) / "scores.csv").open() as file:
        values = {row["query_id"]: row for row in csv.DictReader(file)}
    for query in environment.queries:
        grades = environment.qrels[query.query_id]
        ranking = sorted((run := trec(result)[query.query_id]), key=run.__getitem__, reverse=True)
        assert set(ranking) <= query.candidates
        gained = sum(
            grades[d] / math.log2(rank + 1) for rank, d in enumerate(ranking[:10], start=1)
        )
        ideal = sorted(grades.values(), reverse=True)[:10]
        expected = gained / sum(
            grade / math.log2(rank + 1) for rank, grade in enumerate(ideal, start=1)
        )
        assert float(values[query.query_id]["nDCG@10"]) == pytest.approx(expected)
        relevant = {doc_id for doc_id, grade in grades.items() if grade >= 1}
        recall = values[query.query_id]["R@5"]
        assert (recall == "") == (not relevant)
        assert not relevant or float(recall) == pytest.approx(
            len(relevant & set(ranking[:5])) / len(relevant)
        )
    for name, measured in result["metrics"].items():
        column = [float(row[name]) for row in values.values() if row[name]]
        np.random.seed(42)
        means = [np.mean(np.random.choice(column, len(column), replace=True)) for _ in range(1000)]
        assert measured["mean"] == pytest.approx(np.mean(column))
        assert measured["resampled"] == {
            "mean": pytest.approx(np.mean(means)),
            "error": pytest.approx(np.std(means)),
        }
        assert measured.get("queries", len(values)) == len(column)


def published_bm25(query: str, texts: list[str]) -> list[float]:
    """The scores of MultiConIR's script, in this file's own words: an index a row, text.lower().split()."""
    return list(
        BM25Okapi([text.lower().split() for text in texts]).get_scores(query.lower().split())
    )


@pytest.mark.parametrize("domain", ["books", "legal_document"])
def test_bm25_by_pool_reproduces_the_published_procedure_on_all_four_protocols(retrieve, domain):
    name, folder = multiconir.TASKS[domain].name, environments.MINI / "multiconir"

    def ladder(row, query):
        scores = published_bm25(
            row[query], [row["Positive"], *(row[f"HN{n}"] for n in range(1, 11))]
        )
        return [first > second for first, second in pairwise(scores)]

    def ours(variant):
        return retrieve(f"{domain}:{variant}", "--retriever", "pool_bm25", "--json").json["metrics"]

    rows = multiconir.read_csv(folder, name, "Task1")
    metrics = ours("complexity")
    for k in range(1, 11):
        pairs = [published_bm25(row[f"Query{k}"], [row["Positive"], row[f"HN{k}"]]) for row in rows]
        assert metrics[f"Win({k})"]["mean"] == pytest.approx(np.mean([a > b for a, b in pairs])), k
    rows = multiconir.read_csv(folder, name, "Task2_&_3")
    wins = np.array([ladder(row, "Query10") for row in rows])
    metrics = ours("monotonicity")
    assert [metrics[f"Win({k})"]["mean"] for k in range(1, 11)] == pytest.approx(
        wins.mean(axis=0).tolist()
    )
    prose = np.array([ladder(row, "Natural_Query10") for row in rows])
    assert ours("format")["Flip"]["mean"] == pytest.approx((wins != prose).sum() / (10 * len(rows)))
    for variant, file in (("length512", "512"), ("length1024", "1024")):
        padded = np.array(
            [ladder(row, "Query10") for row in multiconir.read_csv(folder, name, file)]
        )
        metrics = ours(variant)
        assert [metrics[f"Win({k})"]["mean"] for k in range(1, 11)] == pytest.approx(
            padded.mean(axis=0).tolist()
        )


def test_what_a_query_says_of_its_task_can_be_its_own_anybodys_or_nothing():
    own, generic, none = (
        environments.load("relic", "mini", instruction=kind).queries[0].objective
        for kind in ("ours", "generic", "none")
    )
    assert "literary analysis" in own and "literary" not in generic and generic and none == ""


def test_a_text_of_ones_own_is_what_queries_say_and_what_a_run_keeps_of_its_file(run, tmp_path):
    (file := tmp_path / "texts.toml").write_text(
        'congress = "Find the hearing."\n"birco/relic" = 5'
    )
    words = ("--program", "multihop", "--task", "congress", "--limit", 1, "--json", "--instruction")
    ran = [run(*words, given) for given in ("Find the hearing.", file)]
    assert ran[0].json["run"] == ran[1].json["run"], "the text counts, wherever it stands"
    config = json.loads(Path(ran[0].json["run"], "config.json").read_text())
    assert config["instruction"] == "Find the hearing." and config["parameters"]["lens"] == ""
    assert [query.objective for query in load_environment(config).queries] == ["Find the hearing."]
    for task in ("birco/relic", "birco/arguana"):
        with pytest.raises(UsageError, match=f"texts.toml has no text for {task}"):
            environments.load(task, "mini", instruction=str(file))


@pytest.mark.parametrize("task", ["crumb/set_ops", "relic", "books:format"])
def test_a_program_runs_on_every_kind_of_task(run, task):
    result = run("--program", "multihop", "--task", task, "--data", "mini", "--limit", 2, "--json")
    assert result.code == 0, result.err
    assert result.json["queries"] == 2 and result.json["failed"] == 0


@pytest.mark.parametrize(
    "words, said",
    [
        (("--task", "congress", "--qrels", "pooled"), "has no pooled judgements"),
        (("--task", "congress", "--qrels", "poled"), "did you mean 'pooled'"),
        (("--task", "crumb/legal_qa", "--qrels", "document"), "has no judgements by document"),
        (("--task", "relic", "--instruction", "papre"), "did you mean 'paper'"),
        (("--task", "relic", "--instruction", "tsak.toml"), "tsak.toml cannot be read"),
        (("--task", "books", "--retriever", "pool_bm25"), "has none; use another"),
        (("--task", "people:monotonicity", "--k", "5"), "leave out --k"),
        (("--task", "clinical_trial"), "say crumb/clinical_trial or birco/clinical_trial"),
    ],
)
def test_what_does_not_fit_together_is_said_in_one_line(run, words, said):
    result = run("--program", "retrieve", "--data", "mini", *words)
    assert result.code == 2 and said in result.err and result.err.count("\n") == 1
    assert not (sextant_home() / "indexes").exists(), "it was said before an index was built"


def test_triplets_weigh_alike_whatever_their_query(retrieve):
    result = retrieve("doris_mae", "--json", "--split", "dev").json
    environment = environments.load("doris_mae", "mini", "dev")
    won = total = 0
    for query_id, outcome in outcomes(result).items():
        scores = dict(zip(outcome["ranking"], outcome["scores"], strict=True))
        grades = environment.qrels[query_id]
        for better in grades:
            for worse in grades:
                if (
                    grades[better] - grades[worse] > 0.25
                    and grades[worse] > max(grades.values()) / 2
                ):
                    total += 1
                    won += scores.get(better, -math.inf) > scores.get(worse, -math.inf)
    assert result["metrics"]["Triplets"]["mean"] == pytest.approx(won / total)
    assert "Triplets" not in retrieve("doris_mae", "--json", "--split", "test").json["metrics"]
    assert "resampled" not in result["metrics"]["Triplets"]


def test_a_metric_that_no_query_defines_is_said_to_be_undefined(retrieve):
    result = retrieve("people:format", "--limit", "1", "--json").json
    assert result["metrics"]["Flip"] == {"mean": None, "low": None, "high": None, "queries": 0}
    assert "undefined" in retrieve("people:format", "--limit", "1").out


def test_a_ranking_that_ends_before_a_cutoff_is_said(retrieve):
    assert "rankings end at 5 documents" in retrieve("twitter", "--k", "5").out


@pytest.mark.parametrize(
    "task, place, said",
    [
        ("crumb/set_ops", "crumb/legal_qa", "is the folder of another task"),
        ("relic", "birco/datasets/arguana", "is the folder of another task"),
        ("twitter", "obliq/tip-of-tongue/congress", "is the folder of another task"),
        ("books", "obliq/tip-of-tongue/congress", "neither the layout of the release nor a copy"),
    ],
)
def test_another_tasks_folder_is_refused(task, place, said):
    with pytest.raises(SextantError, match=said):
        environments.load(task, str(environments.MINI / place))


@pytest.mark.parametrize(
    "task, file, old, new, said",
    [
        (
            "set_ops",
            "passage_corpus.jsonl",
            '"parent_id": "',
            '"parent_id": "zz',
            "are all files from the same rel",
        ),
        (
            "paper_retrieval",
            "eval/query_labels.jsonl",
            "passage_binary_qrels",
            "binary",
            "has no passage_binary_qrels",
        ),
    ],
)
def test_labels_of_crumb_that_do_not_fit_or_are_missing_are_refused(
    task, file, old, new, said, tmp_path
):
    shutil.copytree(environments.MINI / "crumb" / crumb.FOLDERS.get(task, task), tmp_path / "copy")
    path = tmp_path / "copy" / file
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=said):
        environments.load(task, str(tmp_path / "copy"))
