"""`sextant tasks`: what its verbs print, and how they end."""

import json

import pytest

from sextant import environments
from sextant.environments import __main__ as module
from sextant.environments import task_card


@pytest.fixture
def command(command_of):
    return command_of(module)


def test_the_list_has_every_task_of_the_benchmarks(command):
    code, out, _ = command("list", "--json")
    rows = json.loads(out)
    assert (
        code == 0
        and [f"{row['suite']}/{row['task'].rpartition('/')[2]}" for row in rows]
        == environments.tasks()
    )
    assert all(
        row["data"] == "mini" and row["documents"] and row["dev"] and row["test"] for row in rows
    )
    code, out, _ = command("list")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines if "/" in line] == environments.tasks()
    assert "not comparable" in lines[-1]


@pytest.mark.parametrize(
    "task", ["congress", "crumb/clinical_trial", "crumb/clinical_trial:document", "relic", "books"]
)
def test_a_card_says_what_is_asked_by_which_protocol_and_shows_three_samples(command, task):
    code, out, _ = command("show", task, "--json")
    shown = json.loads(out)
    assert code == 0 and shown["task"] == environments.resolve(task)
    assert shown["asked"] and shown["protocol"] and shown["dev_queries"] and shown["release"]["of"]
    assert shown["paper"]["queries"] > 0 and shown["here"]["documents"] > 0
    for sample in shown["samples"]:
        assert sample["query"] and sample["relevant"]["text"]
        other = sample["irrelevant"]  # None where nothing is judged not relevant
        assert other is None or other["text"] not in ("", sample["relevant"]["text"])
    _, out, _ = command("show", task)
    assert shown["samples"][0]["query_id"] in out and max(map(len, out.splitlines())) < 400
    assert task != "congress" or ("ours, not the paper's" in out and "MINI-q02" in out)


def test_the_card_of_data_of_ones_own_names_its_place_once_and_counts_like_all_others(
    command, tmp_path
):
    (tmp_path / "corpus.csv").write_text("id,text\nd1,an octopus\n")
    (tmp_path / "queries.csv").write_text("query_id,query\nq1,octopus\n")
    (tmp_path / "qrels.csv").write_text("query_id,doc_id,grade\nq1,d1,1\n")
    _, out, _ = command("show", tmp_path)
    out = " ".join(out.split())
    assert f"{tmp_path}: 1 document, " in out and f"({tmp_path})" not in out
    assert ".;" not in out and "here: none" in out
    _, out, _ = command("show", "congress")
    assert "213,650 documents, 254 queries" in " ".join(out.split())
    assert "213,650" in command("list").out


def test_check_finds_nothing_wrong_with_a_miniature_and_names_what_is_wrong_elsewhere(
    command, folder
):
    code, out, err = command("check", "congress")
    assert code == 0 and "WRONG" not in out and err == ""
    queries = folder / "tip-of-tongue/congress/queries+qrels/queries.jsonl"
    queries.write_text(queries.read_text().replace("Q3", "Q4"))
    code, out, err = command("check", "congress", "--data", folder)
    assert code == 3 and out.startswith("WRONG  loading") and err.startswith("error: loading: ")


def test_check_knows_the_golden_records_of_a_miniature(command, monkeypatch, tmp_path):
    recorded = json.loads(task_card.GOLDEN.read_text())
    recorded["obliq/congress"]["tenth document"] = "0" * 16
    (tmp_path / "golden.json").write_text(json.dumps(recorded))
    monkeypatch.setattr(task_card, "GOLDEN", tmp_path / "golden.json")
    code, _, err = command("check", "congress")
    assert code == 3 and "the tenth document is another one" in err


def test_search_tries_the_tools_by_hand(command):
    code, out, _ = command("search", "congress", "a letter read aloud", "--k", 3, "--json")
    hits = json.loads(out)
    assert code == 0 and [hit["rank"] for hit in hits] == [1, 2, 3]
    environment = environments.load("congress", "mini", "all")
    assert all(environment.documents[hit["doc_id"]].text.startswith(hit["text"]) for hit in hits)
    code, out, _ = command("search", "congress", "a letter read aloud", "--k", 1)
    assert hits[0]["doc_id"] in out


def test_search_as_for_a_query_keeps_to_its_pool_and_shows_its_judgements(command):
    environment = environments.load("relic", "mini", "test")
    query = environment.queries[0]
    for retriever in ("rank_bm25", "pool_bm25"):
        code, out, _ = command(
            "search",
            "relic",
            query.text,
            "--query-id",
            query.query_id,
            "--retriever",
            retriever,
            "--k",
            99,
            "--json",
        )
        hits = json.loads(out)
        assert code == 0 and {hit["doc_id"] for hit in hits} == query.candidates
        assert {hit["doc_id"]: hit["grade"] for hit in hits} == dict(
            environment.qrels[query.query_id]
        )


@pytest.mark.parametrize(
    "words, code, said",
    [
        (("show", "congres"), 2, "did you mean 'congress'"),
        (("show", "clinical_trial"), 2, "say crumb/clinical_trial or birco/clinical_trial"),
        (("show", "legal_qa:chapter"), 2, "variant of crumb/legal_qa"),
        (("show", "congress:passage"), 2, "has no variants"),
        (("search", "congress", "x", "--retriever", "bm52"), 2, "did you mean"),
        (("search", "congress", "x", "--retriever", "pool_bm25"), 2, "give --query-id"),
        (("show", "congress", "--data", "full"), 3, "sextant tasks fetch obliq/congress"),
        (("check", "books", "--data", "/nowhere"), 3, "is not a folder"),
        (("cehck", "books"), 2, "did you mean 'check'?"),
    ],
)
def test_bad_input_is_one_line_and_a_code(command, words, code, said):
    got, _, err = command(*words)
    assert got == code and said in err and err.count("\n") == 1
