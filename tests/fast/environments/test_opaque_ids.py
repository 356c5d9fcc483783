"""Ids of documents tell a program nothing, and run files and exports have those of the release."""

import json

import pytest

from sextant import environments
from sextant.environments.opaque_ids import measure_leak

IDS_ALONE = """
def answer(query, search):
    found = [hit.doc_id for hit in search(query, 1000)]
    return sorted(found, key=lambda doc_id: ("HN" in doc_id, doc_id))
"""


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("task", environments.tasks())
def test_no_ranker_that_sees_ids_alone_finds_what_is_relevant(task):
    leak = measure_leak(environments.load(task, "mini", "all"))
    assert not leak.tells, leak


@pytest.mark.parametrize("task", ["crumb/stack_exchange", "birco/arguana", "birco/doris_mae"])
def test_ids_of_a_release_that_tell_are_found(task):
    assert measure_leak(environments.load(task, "mini", "all").released).tells


def test_documents_in_the_order_of_their_queries_are_found(tmp_path):
    names = [f"{number}{number % 7}x" for number in range(100, 130)]
    corpus = [json.dumps({"_id": f"{name}-{name}", "text": f"on {name}"}) for name in names]
    queries = [json.dumps({"_id": f"q{number}", "text": "on what"}) for number in range(30)]
    judged = [f"q{number}\t{name}-{name}\t1" for number, name in enumerate(names)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(corpus))
    (tmp_path / "queries.jsonl").write_text("\n".join(queries))
    (tmp_path / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]))
    leak = measure_leak(environments.load(str(tmp_path), split="all"))
    assert leak.tells and "like their query's" in leak.ranker


def test_other_ids_change_nothing_else():
    shown = environments.load("crumb/stack_exchange", "mini", "all")
    released = shown.released
    texts = {shown.release_ids[each.doc_id]: each.text for each in shown.documents.stream()}
    assert texts == {each.doc_id: each.text for each in released.documents.stream()}
    assert not set(shown.documents) & set(released.documents)
    assert list(shown.documents) == sorted(shown.documents)
    for name, judgements in shown.judgements.items():
        for query_id, grades in judgements.qrels.items():
            named = {shown.release_ids[doc_id]: grade for doc_id, grade in grades.items()}
            assert named == released.judgements[name].qrels[query_id]


def test_a_program_that_reads_names_alone_wins_no_more_than_chance(run, tmp_path):
    (tmp_path / "ids.py").write_text(IDS_ALONE)
    program = f"{tmp_path / 'ids.py'}:answer"
    done = run("--program", program, "--task", "books:format", "--split", "all", "--json").json
    assert done["metrics"]["Win"]["mean"] < 0.75
    assert any("ids of ours" in note for note in done["notes"])


def test_run_files_and_exports_have_the_ids_of_the_release_and_are_imported_again(
    run, command_of, tmp_path
):
    from sextant.evals import export, import_run

    words = ("--task", "books", "--split", "all")
    done = run("--program", "multihop", *words, "--json").json
    folder = tmp_path / done["run"]
    shown = environments.load("multiconir/books", "mini", "all")
    [first, *_] = rows(folder / "outcomes.jsonl")
    assert set(first["ranking"]) <= set(shown.documents)
    named = {line.split()[2] for line in (folder / "run.trec").open()}
    assert named <= set(shown.released.documents)
    for form in ("trec", "atif"):
        assert command_of(export)(folder, "--to", form, "--out", tmp_path / form).code == 0
    exported = (tmp_path / "atif" / "trajectories.jsonl").read_text()
    assert first["ranking"][0] not in exported
    assert shown.release_ids[first["ranking"][0]] in exported
    qrels = {line.split()[2] for line in (tmp_path / "trec" / "qrels.trec").open()}
    assert qrels <= set(shown.released.documents)
    imported = command_of(import_run)(
        folder / "run.trec",
        *words,
        "--trajectories",
        tmp_path / "atif" / "trajectories.jsonl",
        "--runs",
        tmp_path / "again",
        "--json",
    )
    assert imported.json["metrics"] == done["metrics"], imported.err


def test_own_data_has_other_ids_where_its_file_says_so(run, command_of, tmp_path):
    from sextant.environments import __main__ as tasks

    data = tmp_path / "data"
    data.mkdir()
    queries = [f"q{number}" for number in range(20)]
    with (data / "corpus.jsonl").open("w") as corpus:
        for query_id in queries:
            for kind in ("gold", "other", "another"):
                text = f"a {kind} text on subject {query_id}"
                corpus.write(json.dumps({"_id": f"{query_id}-{kind}", "text": text}) + "\n")
    lines = [json.dumps({"_id": query_id, "text": f"subject {query_id}"}) for query_id in queries]
    (data / "queries.jsonl").write_text("\n".join(lines))
    judged = [f"{query_id}\t{query_id}-gold\t1" for query_id in queries]
    (data / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]))
    said = command_of(tasks)("check", data)
    assert "opaque_ids = true" in said.out + said.err
    (data / "benchmark.toml").write_text("opaque_ids = true\n")
    task = environments.load(str(data), split="all")
    assert not measure_leak(task).tells
    assert set(task.release_ids.values()) == set(task.released.documents)
    done = run("--program", "retrieve", "--task", data, "--split", "all", "--json").json
    assert "q0-gold" in (tmp_path / done["run"] / "run.trec").read_text()
