"""Replay: the same retriever brings what is stored, another one what a search by hand brings."""

import json
import shutil

import pytest
from run_folders import run_in, unsealed

from sextant.evals import replay as module
from sextant.evals.run_folder import load_environment
from sextant.evals.running.replay import replay, searches
from sextant.evals.running.request import SYSTEMS
from sextant.evals.scoring import scored_run
from sextant.evals.scoring.statistics import paired
from sextant.tools import retrievers
from sextant.tools.errors import UsageError
from sextant.tools.platform.number_format import plural

# Programs made small; `score` breaks ties by a second retriever, which orders what has surfaced.
POOL = ["-P", "pool=6"]
PROGRAMS = {name: [] for name in SYSTEMS if name != "grep"} | {  # which searches nothing
    "multihop": ["-P", "hops=3", "-P", "per_hop=8"],
    "notes": ["-P", "hops=2"],
    "planner": ["-P", "rounds=2"],
    "rank": POOL,
    "react": ["-P", "steps=4"],
    "reason": [*POOL, "-P", "ties="],
    "score": ["-P", "pool=60", "-P", "ties=rank_bm25"],
    "subtask": ["-P", "pool=3", "-P", "ties="],
    "tournament": ["-P", "pool=25"],
    "verifier": ["-P", "rounds=2", "-P", "retrievers=bm25,rank_bm25"],
}
MORE = {  # what a run can have beside its program
    "pools that the run made": ["rank", "congress", "--pool", "oracle:8(bm25,rank_bm25)"],
    "pools that hide gold": ["rank", "congress", "--pool", "hidden:8(bm25,rank_bm25)"],
    "pools of the task": ["retrieve", "birco/relic"],
    "documents that are excluded, and copies": ["multihop", "writing", "-P", "hops=2"],
    "passages that are judged by parent": ["multihop", "crumb/clinical_trial", "-P", "hops=2"],
    "no instruction": ["query_to_doc", "congress", "--instruction", "none"],
    "a fusion": ["multihop", "congress", "--retriever", "fusion(bm25,rank_bm25)", "-P", "hops=2"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made(program, task, options...)` is the folder of such a run on the miniature."""
    place = tmp_path_factory.mktemp("runs")
    return lambda program, task, *options: run_in(
        place, "--program", program, "--task", task, "--limit", 2, *options
    )


@pytest.fixture(scope="module")
def hops(made):
    return made("multihop", "congress", "-P", "per_hop=6")


@pytest.fixture
def copied(hops, tmp_path):
    """A copy of that run, without digests."""
    return unsealed(shutil.copytree(hops, tmp_path / "run"))


@pytest.fixture
def command(command_of):
    """`sextant replay ARGUMENTS`, in this process."""
    return command_of(module)


@pytest.mark.parametrize("what", [*PROGRAMS, *MORE])
def test_every_search_of_a_run_brings_what_it_brought(made, what):
    path = made(*(MORE.get(what) or [what, "congress", *PROGRAMS[what]]))
    result = replay(path)
    steps = [
        step
        for row in scored_run.read_scored_run(path).outcomes.values()
        for step in row["trace"]["steps"]
    ]
    orders = sum("among" in step for step in steps)
    assert (
        result["searches"]
        == result["same"]
        == sum(step["tool"] == "search" for step in steps) - orders
        > 0
    )
    assert (orders > 0) == (what == "score")
    assert result["documents"]["only_then"] == result["documents"]["only_now"] == 0
    assert result["recall"]["paired"]["difference"] == 0


@pytest.mark.parametrize(
    ("spec", "depth"), [("bm25(k1=2,b=1)", None), ("rank_bm25", 3), ("bm25", 40)]
)
def test_another_retriever_brings_what_it_brings_when_it_is_asked_by_hand(hops, spec, depth):
    result = replay(hops, spec, depth)
    run = scored_run.read_scored_run(hops)
    environment = load_environment(run.config)
    engine = retrievers.build(spec, environment.documents)
    shares, rows = {"then": [], "now": []}, {}
    for query in environment.queries:
        gold = {unit for unit, grade in environment.qrels[query.query_id].items() if grade >= 1}
        found = {"then": {}, "now": {}}
        for step in run.outcomes[query.query_id]["trace"]["steps"]:
            if step["tool"] == "search":
                k = depth or step["k"]
                hits = engine.search(
                    step["argument"], k, instruction=query.objective, excluded=query.excluded
                )
                for when, doc_ids in (
                    ("then", step["doc_ids"]),
                    ("now", [hit.doc_id for hit in hits]),
                ):
                    for rank, doc_id in enumerate(doc_ids, start=1):
                        if doc_id in gold and doc_id not in found[when]:
                            found[when][doc_id] = (step["hop"], rank)
        for when in shares:
            shares[when].append(len(found[when]) / len(gold))
        rows |= {
            (query.query_id, unit): [found[when].get(unit) for when in ("then", "now")]
            for unit in gold
        }
    told = {
        (row["query_id"], row["unit"]): [
            one and (one["hop"], one["rank"]) for one in (row["then"], row["now"])
        ]
        for row in result["relevant"]
    }
    assert told == rows
    assert sum(result["documents"].values()) == len(rows)
    assert result["documents"]["only_now"] == sum(
        then is None and now is not None for then, now in rows.values()
    )
    assert result["documents"]["both"] == sum(None not in pair for pair in rows.values())
    assert result["recall"]["paired"] == paired(shares["then"], shares["now"])._asdict()
    for when, place in (("then", 0), ("now", 1)):
        assert result["hops"][-1][when]["recall"] == pytest.approx(
            sum(shares[when]) / len(shares[when])
        )
        first = [row[when]["first"] for row in result["hops"]]
        assert first == [
            sum(pair[place] is not None and pair[place][0] == hop for pair in rows.values())
            for hop in (row["hop"] for row in result["hops"])
        ]


def test_a_search_that_is_made_twice_is_issued_once(copied):
    outcomes = [json.loads(line) for line in (copied / "outcomes.jsonl").read_text().splitlines()]
    for outcome in outcomes:
        outcome["trace"]["steps"] *= 2
    (copied / "outcomes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in outcomes))
    result, issued = replay(copied, "rank_bm25"), sum(len(searches(row)) for row in outcomes)
    assert result["searches"] == issued == 2 * result["replayed"]["distinct"]


def test_what_is_printed_is_what_the_json_has(hops, command):
    result = command(hops, "--depth", 60, "--json").json
    printed = command(hops, "--depth", 60)
    assert printed.code == 0 and "mini: bundled" in printed.out and "the depth 60;" in printed.out
    recall = result["recall"]
    assert f" {recall['then']:.4f}   {recall['now']:.4f} " in printed.out
    assert (
        f"{plural(result['documents']['only_now'], 'relevant document')} gained or lost"
        in printed.out
        and "lost  " not in printed.out
    )
    for row in result["relevant"]:
        if row["now"] and not row["then"]:
            assert row["unit"] in printed.out and row["now"]["search"].split()[0] in printed.out


def test_a_corpus_that_is_not_at_hand_is_said_in_one_line(run, folder, tmp_path, command):
    assert (
        run("--program", "retrieve", "--task", "congress", "--data", folder, "--split", "all").code
        == 0
    )
    [path] = scored_run.find_folders([tmp_path / "runs"])
    assert command(path, "--json").json["searches"] > 0
    corpus = folder / "tip-of-tongue/congress/corpus/corpus.jsonl"
    corpus.write_text(corpus.read_text().replace("ferry", "barge"))
    changed = command(path)
    assert changed.code == 3 and "is not what the run was made with" in changed.err
    shutil.rmtree(folder)
    gone = command(path)
    assert gone.code == 3 and len(gone.err.splitlines()) == 1 and ";" in gone.err


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("pool_bm25", "ranks candidate pools"),
        ('lens(bm25,model="openai/gpt-5.2")', "a replay asks none"),
        ("bm26", "did you mean 'bm25'"),
    ],
)
def test_a_retriever_that_does_not_fit_is_refused(hops, command, spec, why):
    refused = command(hops, "--retriever", spec)
    assert (
        refused.code == 2
        and refused.out == ""
        and len(refused.err.splitlines()) == 1
        and why in refused.err
    )


def test_a_retriever_that_nobody_can_build_again_has_to_be_named(copied):
    file = copied / "outcomes.jsonl"
    text = file.read_text()
    file.write_text(text.replace("bm25(k1=0.9,b=0.4)", "somebody's engine"))
    with pytest.raises(UsageError, match=r"somebody's engine.*--retriever"):
        replay(copied)
    assert replay(copied, "bm25")["same"] > 0
    outcomes = [json.loads(line) for line in text.splitlines()]
    for outcome in outcomes:
        outcome["trace"]["steps"] = []
    file.write_text("".join(json.dumps(row) + "\n" for row in outcomes))
    with pytest.raises(UsageError, match="nothing to issue again"):
        replay(copied, "bm25")
