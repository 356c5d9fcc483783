"""Every metric against pytrec_eval and ir_measures, against a brute-force count, or against sums done by hand."""

import csv
import dataclasses
import json
import math
import os
import re
from pathlib import Path

import ir_measures
import numpy as np
import pytest
import pytrec_eval
from foreign_runs import world

from sextant import environments
from sextant.environments.base import Comparison, Environment, Judgements
from sextant.environments.ranking_metrics import RANKING, translate_metric
from sextant.evals import compare as compare_command
from sextant.evals import curves as curves_command
from sextant.evals import report as report_command
from sextant.evals import score as score_command
from sextant.evals.scoring.metrics import (
    Ranking,
    add_metrics,
    apply_metric,
    check_metric,
    compute_metrics,
    is_lower_better,
    judge_ranking,
    judge_units,
)
from sextant.evals.scoring.score_run import trec_lines
from sextant.evals.serving.episode import RewardSettings
from sextant.optimizers.trainset.objective import make_objective
from sextant.tools.corpus import Corpus
from sextant.tools.errors import OwnCodeFailed, UnknownName, UsageError
from sextant.tools.records import Document, Query

# Every metric of a ranking that ir_measures has, at depths that no table of ours has; P and R it has with a depth only.
KNOWN = {
    kind: getattr(ir_measures, kind).SUPPORTED_PARAMS["cutoff"]
    for kind in RANKING
    if hasattr(ir_measures, kind)
}
NAMES = [f"{kind}@{depth}" for kind in KNOWN for depth in (1, 3, 10, 17, 137, 1000)]
NAMES += [kind for kind, cutoff in KNOWN.items() if not cutoff.required]


def values(rankings, qrels, metric, **judgements) -> dict[str, float | None]:
    judged = Judgements(qrels, **judgements)
    return {
        query_id: apply_metric(metric, judge_ranking(rankings.get(query_id, ()), judged, query_id))
        for query_id in qrels
    }


def by_ir_measures(rankings, qrels, names) -> dict[str, dict[str, float]]:
    """What ir_measures makes of the run file that we write."""
    rows = [
        line.split("\t")
        for query_id, ranking in rankings.items()
        for line in trec_lines(query_id, ranking, "t").splitlines()
    ]
    run = [ir_measures.ScoredDoc(row[0], row[2], float(row[4])) for row in rows]
    made: dict[str, dict[str, float]] = {}
    for found in ir_measures.iter_calc(
        [ir_measures.parse_measure(name) for name in names], qrels, run
    ):
        made.setdefault(str(found.measure), {})[found.query_id] = found.value
    return made


def random_case(seed: int):
    """Rankings cut out of tied scores, with unjudged documents, graded judgements and judged zeros."""
    generator = np.random.default_rng(seed)
    rankings, qrels = {}, {}
    for number in range(6):
        documents = [f"d{n}" for n in generator.permutation(1500)]
        scores = generator.integers(
            0, 5, size=1500
        )  # five values for 1,500 documents: ties everywhere
        order = np.lexsort((documents, -scores))[: generator.integers(1, 1200)]
        rankings[f"q{number}"] = [documents[place] for place in order]
        judged = generator.choice(1500, size=40, replace=False)
        qrels[f"q{number}"] = {f"d{n}": int(generator.integers(0, 4)) for n in judged} | {"d0": 1}
    return rankings, qrels


@pytest.mark.parametrize("seed", range(2))
def test_a_metric_has_ir_measures_name_and_value_at_any_depth(seed):
    rankings, qrels = random_case(seed)
    rankings["q0"] = rankings["q0"][:5]  # shorter than most depths
    theirs = by_ir_measures(rankings, qrels, NAMES)
    assert theirs.keys() == set(NAMES)
    for name in NAMES:
        assert values(rankings, qrels, name) == pytest.approx(theirs[name], abs=1e-9), name


TREC_EVALS = {"ndcg", "ndcg_cut", "map", "map_cut", "recall", "P", "recip_rank"}
OTHER_NAMES = ["ndcg", "ndcg_cut_10", "map", "map_cut_100", "recall_100", "P_10", "recip_rank"]
SPELLINGS = {  # of trec_eval's command line, ranx, BEIR and MTEB, ir_measures
    "ndcg_cut.10 ndcg@10 ndcg_at_10 NDCG@10": "nDCG@10",
    "recall.100 recall@100 recall_at_100 Recall@100": "R@100",
    "P.10 precision@10 precision_at_10 Precision@10": "P@10",
    "map_cut.100 map@100 map_at_100 MAP@100": "AP@100",
    "mrr@10 mrr_at_10 MRR@10": "RR@10",
    "nDCG@10 R@100 AP RR Judged@10 Win(1) P success_10 hit_rate@10 Rprec recall ndcg_cut": "",
}


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_name_of_trec_eval_s_stands_for_the_metric_with_its_value(name):
    rankings, qrels = random_case(3)
    run = {
        query_id: {doc_id: -float(rank) for rank, doc_id in enumerate(ranking)}
        for query_id, ranking in rankings.items()
    }
    theirs = pytrec_eval.RelevanceEvaluator(qrels, TREC_EVALS).evaluate(run)
    ours = values(rankings, qrels, translate_metric(name))
    assert ours == pytest.approx({query_id: row[name] for query_id, row in theirs.items()})


@pytest.mark.parametrize("spelled", SPELLINGS)
def test_a_metric_may_be_spelled_as_other_tools_do(spelled):
    for name in spelled.split():
        assert translate_metric(name) == (SPELLINGS[spelled] or name)


def test_another_tool_s_name_is_taken_wherever_a_metric_is_named(run, tmp_path, command_of):
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "corpus.tsv").write_text("id\ttext\na\tred boats\nb\tblue boats\nc\tcats\n")
    (notes / "queries.tsv").write_text("id\ttext\n1\tblue boats\n2\tcats\n")
    (notes / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n1\ta\t1\n2\tc\t1\n")
    (notes / "benchmark.toml").write_text('metric = "ndcg_cut_5"\nmetrics = ["recall.2"]\n')
    asked = ("--task", notes, "--json")
    first = run("--program", "retrieve", "--metric", "mrr_at_10", *asked).json
    assert [*first["metrics"]] == ["nDCG@5", "R@2", "RR@10"]
    second = run("--program", "rewrite", *asked).json["run"]
    scored = command_of(score_command)(first["run"], "--metric", "map_cut.100", "--json").json
    assert scored["metrics"]["AP@100"]["mean"] == 0.75
    for command, words, name in (
        (compare_command, ("--metric", "precision@1"), "P@1"),
        (curves_command, ("--metric", "MAP"), "AP"),
    ):
        answer = command_of(command)(first["run"], second, *words, "--json")
        assert answer.code == 0 and f'"{name}"' in answer.out
    page = tmp_path / "page"
    reported = command_of(report_command)(
        first["run"], second, "--metric", "ndcg_at_5", "--out", page
    )
    table = (page / "tables/own-folder-test.csv").read_text().splitlines()
    assert reported.code == 0 and {row["metric"] for row in csv.DictReader(table)} == {"nDCG@5"}
    assert make_objective(environments.load(str(notes), split="all"), "recall_2").metric == "R@2"
    assert RewardSettings(metric="mrr@3").metric == "RR@3"


def test_fractions_are_gained_as_they_are():
    # trec_eval knows whole grades only, but a linear gain does not mind its unit: quarters times four are whole.
    generator = np.random.default_rng(5)
    for _ in range(20):
        quarters = {
            f"d{n}": int(grade) for n, grade in enumerate(generator.integers(0, 9, size=30))
        } | {"d0": 3}
        ranking = [f"d{n}" for n in generator.permutation(40)]
        ours = values(
            {"q": ranking}, {"q": {d: grade / 4 for d, grade in quarters.items()}}, "nDCG@10"
        )
        theirs = by_ir_measures({"q": ranking}, {"q": quarters}, ["nDCG@10"])["nDCG@10"]
        assert ours == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("level", [2, 3])
def test_a_level_decides_for_every_metric_of_relevance_as_trec_eval_has_it(level):
    rankings, qrels = random_case(7)
    names = [
        f"{kind}(rel={level})@{depth}" for kind in ("R", "P", "AP", "RR") for depth in (5, 100)
    ]
    theirs = by_ir_measures(rankings, qrels, [*names, "nDCG@10"])
    for name in names:
        plain = name.replace(f"(rel={level})", "")
        for one in (
            values(rankings, qrels, name),
            values(rankings, qrels, plain, relevant_from=level, zero=True),
        ):
            assert one == pytest.approx(theirs[name], abs=1e-9), name
    gained = values(rankings, qrels, "nDCG@10", relevant_from=level)
    assert gained == pytest.approx(theirs["nDCG@10"], abs=1e-9)


def test_no_grade_of_0_or_below_is_relevant_at_any_level():
    grades = {"a": -2, "b": -1, "c": 0, "d": 0.4, "e": 0.5, "f": 2}
    for level, relevant in ((0, "def"), (0.5, "ef"), (2, "f"), (3, "")):
        judged = Judgements({"q": grades}, relevant_from=level)
        assert "".join(judged.relevant("q")) == "".join(judged.recalled("q")) == relevant


def test_recall_is_undefined_where_no_label_reaches_the_level_and_gain_is_not():
    qrels = {"q": {"a": 0.75, "b": 0.5}}
    assert values({"q": ["b", "a"]}, qrels, "R@5", relevant_from=1) == {"q": None}
    gained, ideal = 0.5 + 0.75 / math.log2(3), 0.75 + 0.5 / math.log2(3)
    assert values({"q": ["b", "a"]}, qrels, "nDCG@10")["q"] == pytest.approx(gained / ideal)


def comparing(comparisons, metrics, twins=None) -> Environment:
    documents = Corpus(Document(doc_id, doc_id) for doc_id in ("P", "H1", "H2", "H3"))
    return world(
        documents=documents,
        queries=tuple(Query(query_id, "x") for query_id in comparisons),
        judgements={"gold": Judgements({query_id: {"P": 1.0} for query_id in comparisons})},
        metrics=metrics,
        metric=metrics[0],
        comparisons=comparisons,
        twins=twins or {},
    )


LADDER = (
    Comparison("Win(1)", "P", "H1"),
    Comparison("Win(2)", "H1", "H2"),
    Comparison("Win(3)", "H2", "H3"),
)

# Twelve rows done by hand: the ranking, its scores, and which of P > H1, H1 > H2, H2 > H3 it wins.
ROWS = [
    (["P", "H1", "H2", "H3"], [4, 3, 2, 1], [1, 1, 1]),
    (["H3", "H2", "H1", "P"], [4, 3, 2, 1], [0, 0, 0]),
    (["P", "H1", "H2", "H3"], [4, 4, 2, 1], [0, 1, 1]),
    (["P", "H1", "H2", "H3"], [1, 1, 1, 1], [0, 0, 0]),
    (["H1", "P", "H2", "H3"], [4, 3, 2, 2], [0, 1, 0]),
    (["P", "H2", "H1", "H3"], [4, 3, 2, 1], [1, 0, 1]),
    (["P"], [1], [1, 0, 0]),
    (["H1"], [1], [0, 1, 0]),
    ([], [], [0, 0, 0]),
    (["P", "H2"], [2, 1], [1, 0, 1]),
    (["P", "H1", "H2", "H3"], [], [1, 1, 1]),
    (["H2", "P", "H3"], [], [1, 0, 1]),
]


@pytest.mark.parametrize("row", ROWS)
def test_a_win_is_a_strictly_higher_score_and_what_is_not_ranked_is_below(row):
    doc_ids, scores, wins = row
    environment = comparing({"q": LADDER}, ("Win", "Win(1)", "Win(2)", "Win(3)", "Win(4)"))
    got = compute_metrics("q", {"q": Ranking(doc_ids, scores)}, environment)
    assert [got[f"Win({k})"] for k in (1, 2, 3)] == wins
    assert got["Win(4)"] is None
    assert got["Win"] == pytest.approx(sum(wins) / 3)


@pytest.mark.parametrize("first", ROWS[:3])
@pytest.mark.parametrize("second", ROWS[:5])
def test_a_flip_is_a_comparison_that_comes_out_otherwise_for_the_twin(first, second):
    environment = comparing({"list": LADDER, "prose": LADDER}, ("Flip",), twins={"prose": "list"})
    rankings = {"list": Ranking(*first[:2]), "prose": Ranking(*second[:2])}
    flips = sum(a != b for a, b in zip(first[2], second[2], strict=True)) / 3
    assert compute_metrics("prose", rankings, environment)["Flip"] == pytest.approx(flips)
    assert compute_metrics("list", rankings, environment)["Flip"] is None


UNRANKED = [
    (["P", "H1", "H2", "H3"], [], 1),  # nothing is submitted for the twin, as after a failure
    ([], [], 1),
    (["X"], ["X"], 1),  # none of the compared documents is ranked
    (
        ["P"],
        ["P"],
        2 / 3,
    ),  # one comparison is won in both wordings, the others have no document ranked
]


@pytest.mark.parametrize(("first", "second", "flip"), UNRANKED)
def test_a_comparison_that_one_wording_does_not_rank_counts_as_flipped(first, second, flip):
    environment = comparing({"list": LADDER, "prose": LADDER}, ("Flip",), twins={"prose": "list"})
    for here, there in ((first, second), (second, first)):
        rankings = {"list": Ranking(here), "prose": Ranking(there)}
        assert compute_metrics("prose", rankings, environment)["Flip"] == pytest.approx(flip)
    assert compute_metrics("prose", {}, environment)["Flip"] == 1


def test_a_failure_has_the_worst_value_of_every_metric():
    """The worst is 0, or 1 where less is better."""
    environment = comparing(
        {"list": LADDER, "prose": LADDER}, ("Win", "Win(1)", "Flip"), twins={"prose": "list"}
    )
    qrels = {"list": {"P": 2.0, "H1": 1.0, "H2": 0.0}, "prose": {"P": 2.0}}
    environment = dataclasses.replace(environment, judgements={"gold": Judgements(qrels)})
    environment = add_metrics(environment, [f"{name}@10" for name in RANKING])
    failed = compute_metrics("prose", {}, environment)
    assert failed == {name: float(is_lower_better(name)) for name in environment.metrics}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nDGC@10", "no metric is called"),
        ("nDCG@0", "no metric is called 'nDCG@0'"),
        ("nDCG@10 [pooled]", "no metric is called"),
        ("AP@ten", f"metrics are {', '.join(RANKING)}, each at any depth"),
        ("Win()", "no metric is called"),
        ("P", "needs a depth, e.g. P@10"),
        ("Win(4)", "no comparisons of that kind"),
        ("Triplets", "no comparisons of that kind"),
        ("Flip", "no queries told in two ways"),
    ],
)
def test_a_metric_that_is_none_or_that_the_task_cannot_have_is_refused(name, words):
    with pytest.raises(UsageError, match=words):
        add_metrics(comparing({"q": LADDER}, ("Win",)), [name])


@pytest.fixture
def own_metric(tmp_path, monkeypatch):
    """The metric of docs/guide/extend.md, as a file in the working folder."""
    page = (Path(__file__).parents[4] / "docs/guide/extend.md").read_text(encoding="utf-8")
    code = page.partition("## A metric")[2].partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "first_find.py"
    file.write_text(code)
    return file


def test_a_metric_of_ones_own_is_scored_stored_and_compared(own_metric, run, command_of):
    name = "first_find.py:first_find@100"
    first = run("--program", "retrieve", "--task", "congress", "--metric", name, "--json")
    second = run("--program", "multihop", "--task", "congress", "--json")
    mean = first.json["metrics"][name]["mean"]
    assert 0 < mean <= 1
    folder = Path(first.json["run"])
    scores = json.loads((folder / "scores.json").read_text())
    assert re.fullmatch("[0-9a-f]{8}", scores["metric_code"][name])
    compare = command_of(compare_command)
    result = compare(str(folder), second.json["run"], "--metric", name, "--json").json
    assert [row["baseline_mean"] for row in result["comparisons"]] == [pytest.approx(mean)]

    # Edited, it is another metric: the stored values are not compared with new ones.
    own_metric.write_text(own_metric.read_text().replace("1 - ranks", "2 - ranks"))
    os.utime(own_metric, (1, 1))
    refused = compare(str(folder), second.json["run"], "--metric", name)
    assert refused.code == 2 and "different code" in refused.err


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ValueError('no luck')", "no luck"),
        ("return 'high'", "could not convert"),
        ("return float('nan')", "no value"),
        ("raise SystemExit", "SystemExit"),
    ],
)
def test_a_metric_that_fails_names_its_line(tmp_path, body, message):
    file = tmp_path / f"bad_{abs(hash(body))}.py"  # modules of two tests have two names
    file.write_text(f"def bad(ranking, k):\n    {body}\n")
    check_metric(f"{file}:bad@10")
    with pytest.raises(OwnCodeFailed, match=message):
        apply_metric(f"{file}:bad@10", judge_units(["a"], {"a": 1.0}, {"a"}))


def test_a_name_in_a_file_of_a_run_imports_nothing(tmp_path):
    file = tmp_path / "planted.py"
    file.write_text("raise SystemExit")
    with pytest.raises(UnknownName):
        check_metric(f"{file}:metric", custom=False)
    with pytest.raises(UsageError, match="SystemExit"):
        check_metric(f"{file}:metric")
