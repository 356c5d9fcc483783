"""A benchmark written as a release is the same task as before, whatever its protocol, and is checked as files."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sextant import environments
from sextant.environments.base import Comparison
from sextant.programs.texts_by_id import read_texts
from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, UsageError
from sextant.tools.lenses import get_lens
from sextant.tools.records import Document, Query
from sextant_construction import human_review, release
from sextant_construction.types import Benchmark

MADE = {
    "recipe": "latent",
    "digest": "0" * 16,
    "models": {"judge": "offline"},
    "licence": "cc-by-4.0",
}
TASKS = {
    "obliq/twitter": {},
    "obliq/math": {},
    "birco/relic": {},
    "crumb/set_ops": {"max_p": ":"},
    "multiconir/books:format": {},
    "multiconir/books:complexity": {},
}


def benchmark_of(task, **settings):
    """What a recipe would have made, where the miniature is what it made; and the miniature."""
    whole, dev = (environments.load(task, "mini", split) for split in ("all", "dev"))
    judged = {name: one.qrels for name, one in whole.judgements.items()}
    if settings.get("max_p"):
        judged = {whole.headline: whole.qrels}
    settings |= {
        "name": "made",
        "objective": whole.queries[0].objective,
        "metrics": list(whole.metrics),
    }
    settings |= {"metric": whole.metric, "depth": whole.depth, **whole.hints}
    ids = [query.query_id for query in dev.queries]
    parts = (whole.documents, whole.queries, judged, settings, whole.comparisons, ids)
    return Benchmark(*parts, twins=whole.twins), whole, dev


def small(**changed):
    """Six documents, four queries."""
    documents = Corpus(
        Document(f"d{n}", f"the {word} went home")
        for n, word in enumerate(("cat", "dog", "cow", "emu"))
    )
    queries = [Query(f"q{n}", f"a pet {n}") for n in range(4)]
    qrels = {f"q{n}": {f"d{n}": 1.0, f"d{(n + 1) % 4}": 0.0} for n in range(4)}
    return Benchmark(
        documents, queries, {"gold": qrels}, {"name": "pets", "objective": "Pets."}
    )._replace(**changed)


@pytest.mark.parametrize(("task", "more"), TASKS.items(), ids=str)
def test_a_miniature_written_as_a_release_is_the_same_task_with_the_same_figures(
    run, tmp_path, task, more
):
    made, whole, dev = benchmark_of(task, **more)
    release.write_release(made, tmp_path / "built", MADE)
    place = tmp_path / "built" / "release"
    again, of_dev = (environments.load(str(place), split=split) for split in ("all", "dev"))
    assert [*again.documents] == [*whole.documents] and [*again.documents.texts()] == [
        *whole.documents.texts()
    ]
    assert again.queries == whole.queries and [one.query_id for one in of_dev.queries] == made.dev
    assert {name: one.qrels for name, one in again.judgements.items()} == made.judgements
    names = ("headline", "metrics", "metric", "comparisons", "twins", "depth", "max_p", "hints")
    assert {name: getattr(again, name) for name in names} == {
        name: getattr(whole, name) for name in names
    }
    assert (
        of_dev.comparisons == {**dev.comparisons} or task == "birco/relic"
    )  # where the test split has none
    assert release.check_release(tmp_path / "built") == []
    words = ("--program", "retrieve", "--split", "all", "--json")
    ours, theirs = (
        run(*words, "--task", place).json,
        run(*words, "--task", task, "--data", "mini").json,
    )
    figures = {
        name: {key: of for key, of in value.items() if key != "resampled"}
        for name, value in ours["metrics"].items()
    }
    assert figures == {
        name: {key: theirs["metrics"][name][key] for key in value}
        for name, value in figures.items()
    }
    assert {*whole.metrics} <= figures.keys() and ours.get("unjudged") == theirs.get("unjudged")
    assert ("unjudged" in ours) == ("pooled" in made.judgements)
    assert (
        "This benchmark was built: README.md. No person has checked this benchmark."
        in ours["notes"]
    )


def test_equal_benchmarks_give_equal_bytes_and_a_new_one_takes_the_place_of_the_old(tmp_path):
    files = []
    for many in (4, 3, 4):
        made = small(
            queries=small().queries[:many], dev=["q0"], provenance=[{"query_id": "q0", "of": "é"}]
        )
        release.write_release(made, tmp_path, MADE)
        files.append(
            {path.name: path.read_bytes() for path in sorted((tmp_path / "release").rglob("*.*"))}
        )
        assert sorted(path.name for path in tmp_path.iterdir()) == ["release"]
    assert files[0] == files[2] != files[1]
    before = files[2]
    with pytest.raises(DataError, match="no key is called 'metrik'"):
        release.write_release(small(settings={"metrik": "P@1"}), tmp_path, MADE)
    assert before == {
        path.name: path.read_bytes() for path in sorted((tmp_path / "release").rglob("*.*"))
    }


@pytest.mark.parametrize("seed", range(3))
def test_hostile_texts_and_ids_come_back_as_they_were(tmp_path, seed):
    chance = random.Random(seed)
    pieces = [
        "\r\n",
        '"',
        "'''",
        "\\n",
        "\t",
        "\x00",
        "\x7f",
        "\u2028",
        "😀",
        "é",
        "|",
        "---\n",
        "[[ ## x ## ]]",
        "a",
        " ",
    ]

    def text():
        return "word " + "".join(chance.choices(pieces, k=12))

    ids = ["d 0", "d/1", 'd"2', "d😀", "d#4"]
    documents = Corpus(Document(one, text(), text()) for one in ids)
    words = {"search": text(), "recognise": text(), "annotate": "why it is so"}
    settings = {"name": "x", "objective": text(), "document": text(), "lens": words}
    queries = [
        Query(f"q {one}", text(), settings["objective"], frozenset([ids[0]])) for one in ids[1:]
    ]
    qrels = {query.query_id: {query.query_id[2:]: 0.1 + 0.2, ids[0]: 1.0} for query in queries}
    release.write_release(Benchmark(documents, queries, {"gold": qrels}, settings), tmp_path, MADE)
    again = environments.load(str(tmp_path / "release"))
    assert [*again.documents.values()] == [*documents.values()] and [*again.queries] == queries
    assert again.qrels == {
        one: {key: 0.1 + 0.2 for key in of if key != ids[0]} for one, of in qrels.items()
    }
    assert (
        json.loads(again.hints["lens"]) == words and again.hints["attribute"] == words["annotate"]
    )
    release.write_release(
        Benchmark(documents, queries, {"gold": qrels}, {"name": "x", **again.hints}), tmp_path, MADE
    )
    assert environments.load(str(tmp_path / "release")).hints == again.hints
    with pytest.raises(DataError, match="has a tab in it"):
        release.write_release(
            small(judgements={"gold": {f"q{n}": {"d\t1": 1.0} for n in range(4)}}), tmp_path, MADE
        )


def test_a_card_says_first_that_nobody_checked_or_who_did_and_what_was_left_out(tmp_path):
    funnel = [{"stage": "write", "went_in": 1200, "came_out": 40, "dropped": {"too long": 1160}}]
    release.write_release(small(dev=["q3"]), tmp_path, MADE | {"funnel": funnel})
    text = (tmp_path / "release/README.md").read_text()
    front, card = text.removeprefix("---\n").split("---\n", 1)
    assert 'license: "cc-by-4.0"\n' in front and "qrels/dev.tsv" in front
    assert (
        card.strip().startswith(human_review.NOBODY)
        and "| write | 1,200 | 40 | too long 1,160 |" in card
    )
    assert '"for dev" = 1' in card
    item = human_review.Item([("Query", "a pet 0"), ("Document", "the cat went home")], "2")
    human_review.offer(tmp_path, "gold", [item])
    row = {"item": human_review.identify("gold", item), "rater": "ann", "value": "2"}
    (tmp_path / "ann.jsonl").write_text(json.dumps(row))
    assert human_review.import_answers(tmp_path, [tmp_path / "ann.jsonl"]) == 0
    release.write_release(small(), tmp_path, MADE)
    assert (
        "---\n\nChecked by 1 person: 1 judgement.\n" in (tmp_path / "release/README.md").read_text()
    )
    assert "Checked by 1 person" in environments.load(str(tmp_path / "release")).notes[-1]


def test_private_texts_are_found_wherever_a_release_says_them_and_what_documents_say_anyway_is_not_private(
    tmp_path,
):
    long = "first reduce the sum by symmetry and then apply the inequality of means twice"
    documents = [
        Document("d0", "show that the sum is small for every choice of signs"),
        Document("d1", f"So: {long}."),
    ]
    more = [
        Document(f"d{n}", f"text {n} by Ann Lee" if n == 3 else f"text {n}") for n in range(2, 5)
    ]
    private = {
        "d0": {
            "solution": f"Show that the sum is small for every choice of signs: {long.replace('twice', 'once')}"
        },
        "d1": {"solution": long},
        "d2": {"author": "Ann Lee"},
        "d3": {"author": "Ann Lee"},
        "d4": {"topic": "home"},
    }
    made = small(documents=Corpus([*documents, *more]), private=private)
    rows = [{"query_id": "q1", "of": ["d2", {"by": "ANN  LEE,"}]}]
    release.write_release(
        made._replace(provenance=rows),
        tmp_path,
        MADE | {"source": "They apply the inequality of means once."},
    )
    assert read_texts(str(tmp_path / "solutions.jsonl"), "solution")["d1"] == long
    assert (tmp_path / "solutions.jsonl").stat().st_mode & 0o77 == 0
    found = release.check_release(tmp_path)
    assert found[:2] == [
        f"corpus.jsonl: private {what} is in its text"
        for what in ("solution of 'd1'", "author of 'd3'")
    ]
    assert len(found) == 3 and re.search(
        "provenance.jsonl, line 1: private author .*: 'ann lee'$", found[2]
    )
    told = "And then apply the inequality of means once more!"
    release.write_release(made._replace(provenance=[]), tmp_path, MADE | {"source": told})
    said = release.check_release(tmp_path)[2]
    assert "'and then apply the inequality of means once'" in said


def write_over(folder, file, old, new):
    path = Path(folder, "release", file)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_what_must_hold_is_checked_on_the_files(tmp_path):
    pools = [
        Query(f"q{n}", f"a pet {n}", candidates=frozenset({f"d{n}", f"d{(n + 1) % 4}"}))
        for n in range(4)
    ]
    pair = {"q1": [Comparison("Win(1)", "d1", "d2")]}
    made = small(
        queries=pools, comparisons=pair, dev=["q3"], settings={"name": "x", "metrics": ["Win(1)"]}
    )
    release.write_release(made, tmp_path, MADE)
    assert release.check_release(tmp_path) == ["dev and test share 2 documents of pools, e.g. 'd0'"]
    release.write_release(
        small(dev=["q3"]),
        tmp_path,
        MADE,
    )
    write_over(tmp_path, "queries.jsonl", "a pet 3", "a pet 0")
    write_over(tmp_path, "qrels/test.tsv", "q1\td1\t1\n", "")
    assert release.check_release(tmp_path, [lambda whole: [f"{len(whole.queries)} seen"]]) == [
        f"own/pets in {tmp_path}/release: query 'q1' has no text or no judgement above 0, so "
        "nothing can be found for it",
        "dev and test share 1 queries, e.g. 'a pet 0'",
        "4 seen",
    ]
    write_over(tmp_path, "corpus.jsonl", '"d0"', '"d0')
    assert release.check_release(tmp_path)[0].startswith("loading: ")
    for queries, dev in (([], []), (small().queries, ["q0", "q1", "q2", "q3"])):
        with pytest.raises(DataError, match="no test query is left"):
            release.write_release(small(queries=queries, dev=dev), tmp_path, MADE)
    queries = [
        replace(one, excluded=frozenset(["d2"])) if one.query_id == "q2" else one
        for one in small().queries
    ]
    with pytest.raises(DataError, match="'q2' has no relevant document that it may see"):
        release.write_release(small(queries=queries), tmp_path, MADE)


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        (
            "excluded.json",
            '"q1":[],',
            "",
            "excluded.json has no entry for query 'q1'; a search would show",
        ),
        (
            "pools.json",
            '"q1":[',
            '"q1":["d7",',
            "the corpus lacks: 'd7' in the pools",
        ),
        (
            "pools.json",
            '"q1":["d1","d2"]',
            '"q1":"d1"',
            "lists of ids, one a query: q1 should be a valid list",
        ),
        ("comparisons.tsv", "Win(1)", "Won", "line 2: label String should match pattern"),
        ("comparisons.tsv", "d1", "d8", "line 2: 'd8' is no judged query or document"),
        ("comparisons.tsv", "worse", "bad", "line 2: worse is missing"),
        (
            "twins.json",
            '"q2"',
            '"q3"',
            "query 'q1' and its twin are no two queries with the same comparisons",
        ),
        ("twins.json", "{", "[{", "not whole JSON"),
        (
            "benchmark.toml",
            '["Win(1)"',
            '["Triplets"',
            "there are no comparisons for the metric Triplets",
        ),
        (
            "benchmark.toml",
            'annotate = "the mood of it"',
            'annotate = "mood"',
            "lens.LensWording.annotate",
        ),
        ("benchmark.toml", "[made]", "made = 1\n[mode]", "no key is called 'mode'"),
    ],
)
def test_a_damaged_file_is_one_line_that_names_it(tmp_path, file, old, new, says):
    pools = [frozenset({f"d{n}", f"d{(n + 1) % 4}"}) for n in range(4)]
    queries = [
        Query(f"q{n}", "a pet", "", frozenset(["d3"] * (n == 0)), pool)
        for n, pool in enumerate(pools)
    ]
    pairs = {"q1": [Comparison("Win(1)", "d1", "d2")], "q2": [Comparison("Win(1)", "d2", "d3")]}
    words = {"search": "s", "recognise": "r", "annotate": "the mood of it"}
    settings = {"name": "x", "metrics": ["Win(1)", "Flip", "Win"], "lens": words}
    release.write_release(
        small(queries=queries, comparisons=pairs, twins={"q1": "q2"}, settings=settings),
        tmp_path,
        MADE,
    )
    environments.load(str(tmp_path / "release"))
    write_over(tmp_path, file, old, new)
    with pytest.raises(DataError) as raised:
        environments.load(str(tmp_path / "release"))
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_a_query_that_is_a_document_does_not_see_itself_its_group_or_its_text():
    queries = [Query("a", "x", excluded=frozenset(["z"])), Query("d", "y")]
    group, twins = {"a": "post 1", "b": "post 1", "c": "post 2"}, {"d": "c", "f": "e"}
    masked = release.mask_own_document(queries, group, twins)
    assert [sorted(one.excluded) for one in masked] == [["a", "b", "z"], ["c", "d"]]
    qrels = {"q": {"d": 1.0, "x": 0.0, "c": 2.0}, "r": {"e": 0.0}}
    assert release.copy_labels_to_duplicates(qrels, twins) == {
        "q": {"c": 2.0, "d": 2.0, "x": 0.0},
        "r": {"e": 0.0, "f": 0.0},
    }


def test_a_split_keeps_groups_together_and_where_asked_shares_no_document():
    chance = random.Random(5)
    pools = {f"q{n}": frozenset(chance.sample([f"d{m}" for m in range(40)], 6)) for n in range(12)}
    gold = {
        one: {doc_id: float(place < 2) for place, doc_id in enumerate(sorted(pool))}
        for one, pool in pools.items()
    }
    made = small(
        queries=[Query(one, one, candidates=pool) for one, pool in pools.items()],
        judgements={"gold": gold},
    )
    record = {one: str(int(one[1:]) // 3) for one in pools}
    grouped = release.split_dev(made, 0.5, record)
    assert len(grouped.dev) == 6 and len({record[one] for one in grouped.dev}) == 2
    assert {*grouped.dev} == {
        *release.split_dev(made._replace(queries=made.queries[::-1]), 0.5, record).dev
    }
    apart = release.split_dev(made, 0.5, disjoint=True)
    dev = {one.query_id: one.candidates for one in apart.queries if one.query_id in apart.dev}
    test = {one.query_id: one.candidates for one in apart.queries if one.query_id not in apart.dev}
    taken = set().union(*test.values())
    assert test == {one: pools[one] for one in test} and len(test) == 6 and dev
    before = set(pools) - test.keys()
    assert dev == {
        one: pools[one] - taken for one in before if any(gold[one][d] for d in pools[one] - taken)
    }
    assert all(apart.judgements["gold"][one].keys() == pool for one, pool in dev.items())
    assert release.split_dev(small(), 0.1).dev == []


def test_queries_with_one_text_are_in_one_split_and_take_their_groups_with_them():
    texts = {}
    groups = {}
    for number in range(40):
        # Every fourth group has the text of another one, in its second query.
        texts[f"a{number}"] = f"text {number}"
        texts[f"b{number}"] = f"text {(number + 7) % 40}" if number % 4 == 0 else f"own {number}"
        groups |= {f"a{number}": f"g{number}", f"b{number}": f"g{number}"}
    queries = [Query(query_id, text) for query_id, text in texts.items()]
    benchmark = release.split_dev(small(queries=queries), 0.3, groups)
    dev = set(benchmark.dev)
    assert 0 < len(dev) < len(queries)
    by_side = {
        side: {texts[query_id] for query_id in texts if (query_id in dev) is side}
        for side in (True, False)
    }
    assert not by_side[True] & by_side[False]
    assert all((f"a{number}" in dev) == (f"b{number}" in dev) for number in range(40))


def test_a_lens_in_words_reaches_programs_and_the_retriever_of_lenses(run, server, tmp_path):
    words = {
        "search": "Write as a vet would.",
        "recognise": "Look for pets.",
        "annotate": "which pet it is",
    }
    release.write_release(small(settings={"name": "pets", "lens": words}), tmp_path, MADE)
    place = tmp_path / "release"
    result = run(
        "--program", "multihop", "--task", place, "--lm", server.spec, "--limit", 1, "--json"
    )
    assert "Write as a vet would." in json.dumps(server.requests)
    config = json.loads((Path(result.json["run"]) / "config.json").read_text())
    assert json.loads(config["parameters"]["lens"]) == words
    shown = run("--program", "retrieve", "--retriever", "lens(bm25)", "--task", place)
    assert shown.code == 2 and "offline only counts" in shown.err
    with pytest.raises(UsageError, match="is no JSON of search, recognise"):
        get_lens('{"serach": "x"}')
