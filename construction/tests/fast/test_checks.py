"""The figures of a finished benchmark, against scipy, sklearn and ir_measures, and against faults that were planted."""

import json
import math
import random

import ir_measures
import numpy as np
import pytest
from conftest import ROOT, lines
from openai_server import asked, given, ids
from scipy import stats as scipy_stats
from sklearn import metrics as sklearn_metrics

from sextant import environments
from sextant.environments.base import Comparison
from sextant.evals.scoring.statistics import estimate_difference
from sextant.programs import VERIFIER
from sextant.tools.corpus import Corpus
from sextant.tools.platform.cli import CommandParser, run_command
from sextant.tools.records import Document, Query
from sextant_construction import checks as module
from sextant_construction.release import write_release
from sextant_construction.types import Benchmark

VARIANTS = "bm25(b=0.0,k1=3.0),bm25(analyzer=english)"


@pytest.fixture
def look(capsys, tmp_path):
    """`look(place, *words)`: exit code, all that --json prints, and the figures by name."""

    def do(place, *words):
        parser = CommandParser(prog="check")
        module.add_options(parser)
        given = [str(place), "--runs", str(tmp_path / "runs"), *map(str, words), "--json"]
        code = run_command(parser, module.command, given)
        out, err = capsys.readouterr()
        found = json.loads(out) if out else {"said": err}
        return code, found, {row["name"]: row for row in found.get("figures", ())}

    return do


def benchmark(**others):
    """Twelve queries over forty documents: each query wants the two that share a word of its own with it."""
    drawn = random.Random(3)
    words = [f"{a}{b}" for a in ("ba", "de", "fi", "go", "ku") for b in ("lm", "rn", "st", "nd")]
    texts = [
        " ".join([*drawn.choices(words, k=12), f"note own{number // 2}"]) for number in range(40)
    ]
    queries = [
        Query(f"q{n}", f"own{n} note " + " ".join(f"ask{n}x{k}" for k in range(8)), "Find it.")
        for n in range(12)
    ]
    gold = {f"q{n}": {f"d{2 * n}": 2.0, f"d{2 * n + 1}": 1.0} for n in range(12)}
    documents = [Document(f"d{number}", text) for number, text in enumerate(texts)]
    settings = {"name": "toy", "objective": "Find it.", "metrics": ["nDCG@10", "R@10"]}
    return Benchmark(Corpus(documents), queries, {"gold": gold}, settings)._replace(**others)


def test_a_verifier_who_knows_the_gold_shows_the_gap_and_one_who_does_not_its_mistakes(
    server, look, tmp_path
):
    made = benchmark()
    write_release(made, tmp_path / "toy", {})
    texts = {
        " ".join(one.text.split()): made.judgements["gold"][one.query_id] for one in made.queries
    }

    def rank(prompt):
        gold = texts[" ".join(given(prompt, "description").split())]
        ordered = sorted(ids(prompt), key=lambda one: -gold.get(one, 0))
        return {asked(prompt): json.dumps(ordered if rank.right else ordered[::-1])}

    server.answer, rank.right = rank, True
    code, found, figures = look(tmp_path / "toy", "--lm", server.spec)
    assert code == 0 and found["task"] == "own/toy" and found["broken"] == []
    gap = figures["gap"]
    assert gap["found"]["V"] == 1 and gap["value"] == pytest.approx(1 - figures["ndcg"]["value"])
    [run] = (tmp_path / "runs").glob("own-toy/retrieve-*/scores.csv")
    values = [float(row.split(",")[1]) for row in run.read_text().splitlines()[1:]]
    expected = estimate_difference([1 - np.array(values)])
    assert (gap["low"], gap["high"]) == pytest.approx(expected[1:])
    before = len(server.requests)
    assert (
        look(tmp_path / "toy", "--lm", server.spec)[1] == found and len(server.requests) == before
    )
    rank.right = False
    figures = look(tmp_path / "toy", "--lm", server.spec, "--temperature", "0.5")[2]
    assert figures["gap"]["value"] < 0 and figures["gap"]["fine"] is False


def test_offline_the_gap_is_a_floor(look, tmp_path):
    write_release(benchmark(), tmp_path / "toy", {})
    code, _, figures = look(tmp_path / "toy")
    assert code == 0 and "a floor" in figures["gap"]["says"] and figures["gap"]["fine"] is None
    assert figures["first"]["fine"] is False
    assert figures["power"]["value"] is None and figures["tau"]["fine"] is None
    assert look(tmp_path / "toy", "--bound", "first=1")[2]["first"]["fine"] is True
    assert "did you mean 'first'" in look(tmp_path / "toy", "--bound", "frst=1")[1]["said"]
    code, ahead, _ = look(tmp_path / "toy", "--lm", "openai/gpt-5-mini", "--dry-run")
    assert code == 0 and ahead["program"] == VERIFIER and ahead["calls"] >= 12


def test_planted_repeats_of_texts_and_queries_are_found_and_no_others(look, tmp_path):
    made = benchmark()
    twin, other = (
        Document(name, made.documents[of].text) for name, of in (("twin", "d0"), ("other", "d39"))
    )
    repeated = Query("again", f"please {made.queries[0].text}", "Find it.")
    gold = {**made.judgements["gold"], "again": {"d0": 2.0, "twin": 2.0}}
    documents = Corpus([*made.documents.values(), twin, other])
    write_release(
        made._replace(
            documents=documents, queries=[*made.queries, repeated], judgements={"gold": gold}
        ),
        tmp_path,
        {},
    )
    figures = look(tmp_path)[2]
    assert figures["twins"]["found"] == [["q0", "d0", "twin"]] and figures["twins"]["value"] == 1
    assert "2 documents" in figures["twins"]["says"]
    assert sorted(figures["alike"]["found"]) == ["again", "q0"]


def test_wording_of_a_generator_is_told_by_a_classifier_and_chance_is_not(look, tmp_path):
    made = benchmark()
    write_release(made, tmp_path / "plain", {})
    plain = look(tmp_path / "plain")[2]["generator"]
    gold = {doc_id for of in made.judgements["gold"].values() for doc_id in of}
    assert plain["found"] == [len(gold), 40 - len(gold)] and plain["value"] < 0.8 and plain["fine"]
    told = [
        Document(one.doc_id, f"{one.text} as it were") if one.doc_id in gold else one
        for one in made.documents.values()
    ]
    write_release(made._replace(documents=Corpus(told)), tmp_path / "told", {})
    marked = look(tmp_path / "told")[2]["generator"]
    assert marked["value"] > 0.95 and marked["fine"] is False


def test_sentences_that_were_spoiled_by_a_mark_are_told_and_the_steps_of_a_ladder_are_no_repeats(
    look, tmp_path
):
    made, drawn = benchmark(), random.Random(4)
    kept = [
        [f"He {word} a {drawn.random():.9f} boat." for word in ("buys", "sells", "sees")]
        for _ in made.queries
    ]
    documents, comparisons, queries = [], {}, []
    for number, sentences in enumerate(kept):
        spoiled = [one.replace("He", "He allegedly") for one in sentences]
        steps = [sentences, [*sentences[:2], spoiled[2]], [sentences[0], *spoiled[1:]]]
        documents += [
            Document(f"{number}-{step}", " ".join(parts)) for step, parts in enumerate(steps)
        ]
        pairs = [
            Comparison(f"Win({step + 1})", f"{number}-{step}", f"{number}-{step + 1}")
            for step in range(2)
        ]
        pool = frozenset(f"{number}-{step}" for step in range(3))
        for many in (1, 2):
            queries.append(
                Query(
                    f"{number}/{many}", f"{made.queries[number].text} {many * 11}", candidates=pool
                )
            )
            comparisons[f"{number}/{many}"] = pairs
    gold = {query_id: {pairs[0].better: 1.0} for query_id, pairs in comparisons.items()}
    settings = made.settings | {"metric": "Win", "metrics": ["Win"]}
    write_release(
        Benchmark(Corpus(documents), queries, {"gold": gold}, settings, comparisons), tmp_path, {}
    )
    code, found, figures = look(tmp_path)
    assert code == 0 and found["metric"] == "Win" and figures["win"]["value"] is not None
    assert figures["generator"]["found"] == [24, 24] and figures["generator"]["value"] > 0.95
    assert figures["alike"]["value"] == 0 and "gap" not in figures


def test_what_hangs_on_one_system_of_the_pool_and_how_little_so_many_queries_show(look, tmp_path):
    code, found, figures = look("twitter", "--split", "all", "--retrievers", VARIANTS)
    truth = environments.load("twitter", "mini", "all")
    gold, pooled = (
        {q: {d: int(g) for d, g in of.items()} for q, of in truth.judgements[name].qrels.items()}
        for name in ("gold", "pooled")
    )
    rankings = []
    for row in figures["tau"]["found"]:
        rows = map(json.loads, open(f"{row['run']}/outcomes.jsonl"))  # noqa: SIM115, PTH123
        rankings.append({one["query_id"]: one["ranking"] for one in rows})
    assert code == 0 and len(rankings) == 3

    def means(qrels):
        runs = [
            {q: {d: -rank for rank, d in enumerate(of)} for q, of in one.items()}
            for one in rankings
        ]
        ndcg = ir_measures.parse_measure("nDCG@10")
        return [ir_measures.calc_aggregate([ndcg], qrels, run)[ndcg] for run in runs]

    before, taus, changes = means(pooled), [], []
    assert list(found["systems"].values()) == pytest.approx(means(gold))
    for place, ranking in enumerate(rankings):
        rest = {q: dict(of) for q, of in pooled.items()}
        for query_id, ranked in ranking.items():
            others = {d for other in rankings if other is not ranking for d in other[query_id][:10]}
            for doc_id in set(ranked[:10]) - others - gold[query_id].keys():
                rest[query_id].pop(doc_id, None)
        after = means(rest)
        taus.append(scipy_stats.kendalltau(before, after).statistic)
        changes.append(max(abs(a - b) for a, b in zip(before, after, strict=True)))
        assert figures["tau"]["found"][place]["change"] == pytest.approx(changes[-1])
    assert figures["tau"]["value"] == pytest.approx(min(taus)) and figures["change"][
        "value"
    ] == pytest.approx(max(changes))
    shares = [
        np.mean([np.mean([d in pooled[q] for d in of[:10]]) for q, of in one.items()])
        for one in rankings
    ]
    assert figures["judged"]["value"] == pytest.approx(min(shares))

    ndcg = ir_measures.parse_measure("nDCG@10")
    runs = [
        {q: {d: -rank for rank, d in enumerate(of)} for q, of in one.items()} for one in rankings
    ]
    columns = [
        {row.query_id: row.value for row in ir_measures.iter_calc([ndcg], gold, run)}
        for run in runs
    ]
    many = len(gold)
    level = 0.05 / 3  # the first of three pairs, by Holm
    shown = []
    for a, b in ((0, 1), (0, 2), (1, 2)):
        apart = np.array([columns[b][q] - columns[a][q] for q in gold])
        moved = int((np.abs(apart) > 1e-12).sum())
        # Values of p below the level, which cost power if they are few.
        steps = math.ceil(level * 2 ** (moved - 1)) - 1
        if steps > 0:
            quantiles = sum(scipy_stats.t.ppf([1 - level / 2, 0.8], many - 1))
            error = apart.std(ddof=1) / many**0.5
            shown.append(quantiles * (1 + 1 / (3 * steps)) * error)
    assert figures["power"]["value"] == pytest.approx(max(shown), rel=1e-3)


def test_a_second_judge_s_kappa_is_that_of_sklearn(server, look):
    truth = environments.load("twitter", "mini", "all")
    texts, drawn, theirs, ours = (
        {" ".join(q.text.split()): q.query_id for q in truth.queries},
        random.Random(1),
        [],
        [],
    )

    def grade(prompt):
        query_id = texts[" ".join(given(prompt, "description").split())]
        shown = ids(prompt.rpartition("[[ ## passages ## ]]")[2])
        known = [truth.judgements["pooled"].qrels[query_id][one] >= 1 for one in shown]
        said = [one if drawn.random() < 0.8 else not one for one in known]
        theirs.extend(known), ours.extend(said)
        rows = [
            {"id": one, "grade": 2 * told, "reason": "so"}
            for one, told in zip(shown, said, strict=True)
        ]
        return {"verdicts": json.dumps(rows)}

    server.answer = grade
    figures = look("twitter", "--split", "all", "--judge", server.spec, "--max-concurrent", "1")[2]
    assert len(ours) == figures["kappa"]["found"]["documents"] > 50
    assert figures["kappa"]["value"] == pytest.approx(
        sklearn_metrics.cohen_kappa_score(theirs, ours)
    )


def test_what_does_not_hold_that_must_is_named_with_exit_code_3(look, tmp_path):
    write_release(benchmark(), tmp_path, {})
    lines(
        tmp_path / "release/qrels/test.tsv",
        ["query-id\tcorpus-id\tscore", "q0\td0\t1", "q0\tnobody\t1"],
    )
    code, found, figures = look(tmp_path / "release")
    assert look(tmp_path)[1] == found
    assert (
        code == 3
        and any("nobody" in problem for problem in found["broken"])
        and "recall" in figures
    )


def test_the_guide_shows_what_the_command_prints(capsys, tmp_path):
    parser = CommandParser(prog="check")
    module.add_options(parser)
    words = ["twitter", "--retrievers", "bm25(analyzer=english)", "--runs", str(tmp_path)]
    assert run_command(parser, module.command, words) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    page = (ROOT / "construction/docs/build.md").read_text(encoding="utf-8")
    _, heading, table = page.partition("```\nobliq/twitter  ")
    shown = (heading + table).split("```")[1].strip().splitlines()
    assert printed == [line.rstrip() for line in shown if line]


@pytest.mark.parametrize("marked", [False, True])
def test_length_alone_is_no_wording_and_a_word_of_the_generator_is_one_at_any_length(
    look, tmp_path, marked
):
    drawn = random.Random(5)
    words = [f"w{number}" for number in range(300)]
    made = benchmark()
    gold = {doc_id for of in made.judgements["gold"].values() for doc_id in of}
    documents = []
    for one in [*made.documents.values(), *(Document(f"x{n}", "") for n in range(80))]:
        length = drawn.randint(40, 90) if one.doc_id in gold else drawn.randint(20, 50)
        text = drawn.choices(words, k=length) + ["verily"] * (
            3 if marked and one.doc_id in gold else 0
        )
        documents.append(Document(one.doc_id, " ".join(text)))
    write_release(made._replace(documents=Corpus(documents)), tmp_path / "built", {})
    figure = look(tmp_path / "built")[2]["generator"]
    assert figure["fine"] is not marked and (marked or figure["value"] < 0.7)


def test_near_copies_of_queries_are_found_across_dev_and_test(look, tmp_path):
    made = benchmark()
    copy = Query("copy", f"please {made.queries[3].text}", "Find it.")
    gold = {**made.judgements["gold"], "copy": {"d6": 1.0}}
    whole = made._replace(
        queries=[*made.queries, copy], judgements={"gold": gold}, dev=["q1", "copy"]
    )
    write_release(whole, tmp_path / "built", {})
    for split in ("dev", "test"):
        figure = look(tmp_path / "built", "--split", split)[2]["across"]
        assert (
            figure["found"] == [["copy", "q3"]] and figure["value"] == 1 and figure["fine"] is False
        )
