"""A user's own data as a task: what is asked, what is scored, what is said; pytrec_eval over the same files agrees."""

import json
import random
import re
import subprocess
import tomllib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import pytrec_eval

from sextant import environments
from sextant.environments import __main__ as module
from sextant.environments import custom
from sextant.environments.base import GENERIC
from sextant.environments.ranking_metrics import METRIC_NAME, RANKING
from sextant.evals import compare as compare_command
from sextant.evals import import_run, score
from sextant.tools.errors import DataError, SextantError, UsageError

WORDS = ("jar", "arm", "mud", "neck", "tail", "dam", "creek", "birch", "leaf", "thorn", "gravel")


@pytest.fixture
def notes(tmp_path):
    """A collection in BEIR's form: 30 documents, 12 queries; some judged documents are missing."""
    return write(tmp_path / "data" / "my notes", random.Random(7))


def write(folder, chance, grades=(-1, 0, 0, 1, 2, 3)):
    (folder / "qrels").mkdir(parents=True)
    texts = {f"d{n}": " ".join(chance.choices(WORDS, k=8)) for n in range(30)}
    queries = {f"q{n}": " ".join(chance.choices(WORDS, k=3)) for n in range(12)}
    judged = [
        (q, f"d{n}", chance.choice(grades)) for q in queries for n in chance.sample(range(35), 8)
    ]
    judged = [
        (q, d, min(grade, 0) if q == "q3" else grade) for q, d, grade in judged
    ]  # for which nothing is relevant
    for name, rows in (("corpus", texts), ("queries", queries)):
        lines = [json.dumps({"_id": one, "text": text}) for one, text in rows.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    rows = "".join(f"{q}\t{d}\t{grade}\n" for q, d, grade in judged)
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    return folder


def settings(folder, text):
    (folder / "benchmark.toml").write_text(text)
    return str(folder)


OURS = {
    "nDCG@10": "ndcg_cut_10",
    "R@10": "recall_10",
    "P@5": "P_5",
    "AP": "map",
    "RR": "recip_rank",
}


@pytest.mark.parametrize(("grades", "factor"), [((-1, 0, 0, 1, 2, 3), 1), ((0, 0.5, 1.5, 2), 2)])
def test_the_figures_of_a_folder_are_those_of_pytrec_eval_over_its_files(
    run, tmp_path, grades, factor
):
    folder = write(tmp_path / "folder", random.Random(3), grades)
    # trec_eval has whole grades only; every metric is the same for multiples of the grades
    names = list(OURS)
    words = [word for name in names for word in ("--metric", name)]
    got = run("--program", "retrieve", "--task", folder, *words, "--json").json
    rows = [line.split("\t") for line in (folder / "qrels/test.tsv").read_text().splitlines()[1:]]
    qrels = {
        q: {d: int(float(grade) * factor) for r, d, grade in rows if r == q} for q, _, _ in rows
    }
    with Path(got["run"], "run.trec").open() as file:
        ranked = pytrec_eval.parse_run(file)
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut", "recall", "P", "map", "recip_rank"})
    found = theirs.evaluate(ranked)
    assert len(found) == 12 and got["queries"] == 12
    for name in names:
        mean = sum(values[OURS[name]] for values in found.values()) / 12
        assert got["metrics"][name]["mean"] == pytest.approx(mean, abs=1e-15), name
    assert any("above 0" in note for note in got["notes"])
    assert any("not in the corpus" in note for note in got["notes"])


def test_a_level_of_relevance_is_one_for_metrics_losses_tables_and_check(
    run, notes, tmp_path, command_of
):
    check = command_of(module)
    asked = ("--program", "retrieve", "--task", notes, "--metric", "RR", "--json")
    plain = run(*asked).json
    assert any("relevant above grade 0, of grades up to 3" in note for note in plain["notes"])
    rescore = command_of(score)
    before = rescore(plain["run"], "--metric", "RR", "--json").json["metrics"]
    by_option = run(*asked, "--relevant-from", 2).json
    assert by_option["run"] == plain["run"] and by_option["relevant_from"] == 2
    (notes / "benchmark.toml").write_text("relevant_from = 2\n")
    by_file = run(*asked[:-1], "--runs", tmp_path / "others")
    assert "relevant from grade 2" in by_file.out
    assert "relevant from grade 2" in check("check", notes).out
    with Path(plain["run"], "run.trec").open() as file:
        ranked = pytrec_eval.parse_run(file)
    rows = [line.split("\t") for line in (notes / "qrels/test.tsv").read_text().splitlines()[1:]]
    qrels = {q: {d: int(grade) for r, d, grade in rows if r == q} for q, _, _ in rows}
    wanted = {"ndcg_cut", "recall", "recip_rank"}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, wanted, relevance_level=2).evaluate(ranked)
    [other] = (tmp_path / "others").glob("*/*")
    for scores in (by_option, json.loads((other / "scores.json").read_text())):
        for name in ("nDCG@10", "R@10", "RR"):
            mean = sum(values[OURS[name]] for values in theirs.values()) / 12
            assert scores["metrics"][name]["mean"] == pytest.approx(mean, abs=1e-12)
        assert scores["losses"]["at"]["10"]["found"] == pytest.approx(
            sum(values["recall_10"] for query, values in theirs.items() if _has(qrels[query], 2))
            / sum(_has(grades, 2) for grades in qrels.values())
        )
    compared = command_of(compare_command)(plain["run"], other)
    assert compared.code == 0
    (notes / "benchmark.toml").unlink()
    after = rescore(plain["run"], "--metric", "RR", "--json")
    assert after.json["metrics"] != before and after.json["relevant_from"] == 2  # the run's own
    rescore(other)  # by the data as it is now
    refused = command_of(compare_command)(plain["run"], other)
    assert refused.code == 2 and "relevant_from (2.0, 0.0)" in refused.err
    none = run(*asked, "--relevant-from", 4)
    assert none.code == 3 and "no document is relevant from grade 4" in none.err
    for level in ("0", "-1", "inf", "nan", "two"):
        assert run(*asked, "--relevant-from", level).code == 2


def _has(grades, level):
    return any(grade >= level for grade in grades.values())


def test_without_benchmark_toml_all_queries_are_asked_and_the_assumptions_are_said(
    notes, monkeypatch
):
    monkeypatch.chdir(notes.parent)
    places = ["my notes", "./my notes", str(notes)]
    [one, *others] = [environments.load(place) for place in places]
    assert {other.fingerprint for other in others} == {one.fingerprint}
    assert one.task == "own/my-notes" and one.data == str(notes) and len(one.queries) == 12
    assert (
        {query.objective for query in one.queries} == {GENERIC}
        and one.depth == 1000
        and one.hints == {}
    )
    assert (
        "no query is kept for dev" in one.notes[-1]
        and len(environments.load(str(notes), split="all").queries) == 12
    )
    with pytest.raises(
        UsageError, match=r"no queries; a line `split = \{ share = 0.3 \}` in its benchmark.toml"
    ):
        environments.load(str(notes), split="dev")


def test_benchmark_toml_says_what_data_cannot(notes):
    (notes / "qrels" / "test.tsv").rename(notes / "gold.tsv")
    (notes / "pooled.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    place = settings(
        notes,
        'name = "field/notes"\nobjective = "Notes on one animal."\ndocument = "a note"\nlens = "stance"\ndepth = 20\n'
        'metrics = ["R@5", "P@1"]\nmetric = "P@1"\njudgements = { gold = "gold.tsv", pooled = "pooled.tsv" }\n'
        'split = { share = 0.25, seed = "x" }\n',
    )
    dev, test = (environments.load(place, split=split) for split in ("dev", "test"))
    assert dev.task == "own/field-notes" and (len(dev.queries), len(test.queries)) == (3, 9)
    assert test.queries[0].objective == "Notes on one animal."
    assert test.hints == {"document": "a note", "lens": "stance"}
    assert (test.metrics, test.metric, test.depth) == (("P@1", "R@5"), "P@1", 20)
    assert (
        list(test.judgements) == ["gold", "pooled"]
        and environments.load(place, qrels="pooled").headline == "pooled"
    )
    assert environments.load(place, instruction="none").queries[0].objective == ""


def test_the_guides_folder_and_python_file_are_tasks_and_its_benchmark_toml_is_taken(
    tmp_path, monkeypatch
):
    guide = (Path(__file__).parents[3] / "docs/guide/task.md").read_text()
    shell, toml, python = (
        re.search(rf"```{kind}\n(.*?)```", guide, re.S)[1] for kind in ("bash", "toml", "python")
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    subprocess.run(["bash", "-c", shell.partition("sextant ")[0]], check=True)
    Path("my_task.py").write_text(python)
    assert (
        len(environments.load("notes").queries)
        == len(environments.load("my_task.py:notes").queries)
        == 2
    )
    assert custom.check_settings(tomllib.loads(toml), "the guide")["split"] == {"share": 0.3}


def test_passages_are_judged_by_their_parents_where_the_separator_is_said():
    qrels = {"q": {"a": 1}}
    made = environments.of(
        {"a#1": "jar", "a#2": "jar", "b": "jar"}, {"q": "jar"}, qrels, name="x", max_p="#"
    )
    assert [made.judgements["gold"].unit_of(doc_id) for doc_id in made.documents] == ["a", "a", "b"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('metrik = "P@1"', "no key is called 'metrik'; did you mean 'metric'"),
        ('metrics = "P@1"', "metrics should be a valid list"),
        ("metrics = []", "metrics List should have at least 1 item"),
        ('metric = "nDGC@10"', "metric String should match pattern .*nDCG|R|AP"),
        ("depth = 0", "depth should be greater than or equal to 1"),
        ("split = { share = 2.0 }", "share should be less than 1"),
        ("name = ", "cannot be read as TOML"),
        ('judgements = "gold.tsv"', "judgements should be a valid dictionary"),
    ],
)
def test_a_wrong_benchmark_toml_is_one_line_with_the_key(notes, text, says):
    assert all(re.fullmatch(METRIC_NAME, f"{name}@5") for name in RANKING)
    with pytest.raises(DataError, match=says) as raised:
        environments.load(settings(notes, text))
    assert "benchmark.toml" in str(raised.value) and "\n" not in str(raised.value)


def test_init_writes_what_the_folder_is_without_it_and_never_writes_over_it(command_of, notes):
    command, before = command_of(module), environments.load(str(notes))
    code, out, _ = command("init", notes)
    after = environments.load(str(notes))
    assert (
        code == 0
        and "12 queries" in out
        and f"sextant run --program multihop --task '{notes}'" in out
    )
    assert (after.fingerprint, after.metrics, after.task) == (
        before.fingerprint,
        before.metrics,
        before.task,
    )
    code, _, err = command("init", notes)
    assert code == 2 and "is there already" in err
    assert [command(verb, notes)[0] for verb in ("show", "check")] == [0, 0]


def test_a_task_is_made_in_python_and_by_an_installed_package(run, tmp_path, monkeypatch):
    made = "environments.of({'a': 'jar'}, {'q': 'jar', 'r': 'x'}, {'q': {'a': 1, 'z': 1}}, name='jars', objective='x')"
    (tmp_path / "jar_task.py").write_text(
        f"import environments\n\ndef make():\n    return {made}\n\nBAD = 7\n"
    )
    about = tmp_path / "jars-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: jars\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[sextant.tasks]\ntheir_jars = jar_task:make\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = ("jar_task.py:make", "their_jars")
    first, second = (run("--program", "retrieve", "--task", name, "--json") for name in names)
    assert (
        first.code == second.code == 0 and first.json["task"] == second.json["task"] == "own/jars"
    )
    assert first.json["metrics"]["R@10"]["mean"] == 0.5
    assert any(note.endswith("not in the corpus: 1.") for note in first.json["notes"])
    assert "makes a int" in run("--program", "retrieve", "--task", "jar_task.py:BAD").err


def test_a_run_is_scored_again_from_its_folder_alone_as_long_as_its_data_is_there(
    run, command_of, notes, tmp_path
):
    corpus = notes / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace('"text"', '"said"'))
    got = run("--program", "retrieve", "--task", notes, "--column", "text=said", "--json").json
    words = ("--task", notes, "--column", "text=said", "--runs", tmp_path / "runs", "--json")
    theirs = command_of(import_run)(Path(got["run"], "run.trec"), *words).json
    other = write(tmp_path / "other" / "my notes", random.Random(8))
    assert run("--program", "retrieve", "--task", other, "--json").json["run"] != got["run"]
    again = command_of(score)
    assert again(got["run"], "--json").json["metrics"] == got["metrics"] == theirs["metrics"]
    assert again(theirs["run"], "--json").json["metrics"] == got["metrics"]
    with (notes / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "new", "text": "x"}\n')
    assert again(got["run"]).code == 3
    notes.rename(tmp_path / "gone")
    code, _, err = again(got["run"])
    assert code == 3 and "there is no folder" in err and err.count("\n") == 1


def test_own_data_never_takes_a_benchmarks_name(notes, monkeypatch):
    posing = notes.rename(notes.parent / "wildchat")
    monkeypatch.chdir(posing.parent)
    assert (
        environments.resolve("wildchat") == "obliq/wildchat"
        and environments.resolve("./wildchat") == "own/wildchat"
    )
    with pytest.raises(SextantError, match="nor is it a folder"):
        environments.resolve("wildchats")


JUDGED = "query-id\tcorpus-id\tscore\n"


@pytest.mark.parametrize(
    ("judged", "code", "says"),
    [
        ("q1\td1.0\t1\n", 3, "none of the relevant documents (1) is in the corpus: 'd1.0'"),
        (
            "q1\td1\t0\nq1\tx\t1\n",
            3,
            "none of the relevant documents (1) is in the corpus: 'x'",
        ),
        ("q1\td1\t0\n", 3, "no document is relevant above grade 0"),
        (
            "q1\td1\t1\nq1\tx\t1\nq1\ty\t1\n",
            0,
            "not in the corpus, and never found: 2 of 3 judged documents",
        ),
        (
            "q1\td1\t1\nq1\td2\t1\nq1\td3 \t1\n",
            0,
            "'d3 ' in the judgements, and 'd3' in the corpus: write both alike",
        ),
        ("q1\td1\t1\nq1\td2\t1\nq1\tx\t1\n", 0, ""),
    ],
)
def test_what_a_run_refuses_or_warns_of_is_not_ok_for_check(
    judged, code, says, run, command_of, notes
):
    (notes / "qrels" / "test.tsv").write_text(JUDGED + judged)
    check = command_of(module)("check", notes)
    environments._warned.clear()  # a process says a warning once
    ran = run("--program", "retrieve", "--task", notes)
    assert (
        ran.code == code and says in ran.err and ("warning: " in ran.err) == bool(says and not code)
    )
    assert (
        check.code == (3 if says else 0)
        and says in check.out
        and ("WRONG" in check.out) == bool(says)
    )
    if not code:
        again = run("--program", "retrieve", "--task", notes, "--json").json
        assert says in again["notes"][0] and again["notes"][0].startswith("Warning: ") == bool(says)


def test_where_all_documents_from_the_level_on_are_missing_it_is_a_mismatch(notes):
    (notes / "qrels" / "test.tsv").write_text(f"{JUDGED}q1\td1\t1\nq1\tx\t2\n")
    environments.load(str(notes))
    settings(notes, "relevant_from = 2")
    with pytest.raises(DataError, match=r"none of the relevant documents \(1\) is in the corpus"):
        environments.load(str(notes))


def test_benchmark_toml_says_which_of_several_files_is_meant(notes):
    (notes / "queries_rewritten.jsonl").write_text('{"_id": "q1", "text": "cable railway"}\n')
    with pytest.raises(DataError, match=r'files = \{ documents = "NAME", queries = "NAME" \}'):
        environments.load(str(notes))
    environment = environments.load(
        settings(notes, 'files = { queries = "queries_rewritten.jsonl" }')
    )
    assert {query.query_id: query.text for query in environment.queries} == {"q1": "cable railway"}


@pytest.mark.parametrize(
    ("key", "file", "says"),
    [
        (
            "pools",
            {"q1": ["d1.0"]},
            "the corpus lacks: 'd1.0' in the pools, and 'd1' in the corpus: write both alike",
        ),
        (
            "pools",
            {"q01": ["d1"]},
            "no entry for query 'q1'.* there is 'q01': write both alike",
        ),
        (
            "excluded",
            {"q1": [" d1"]},
            "must not: ' d1' in the exclusions, and 'd1' in the corpus: write both alike",
        ),
    ],
)
def test_ids_of_other_files_are_compared_with_those_that_are_spelled_alike(key, file, says, notes):
    (notes / "queries.jsonl").write_text('{"_id": "q1", "text": "jar"}\n')
    (notes / "other.json").write_text(json.dumps(file))
    with pytest.raises(DataError, match=says):
        environments.load(settings(notes, f'{key} = "other.json"'))


class Page(NamedTuple):
    doc_id: str
    url: str
    title: str
    body: str


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"documents": [Page("d1", "http://x", "Mud", "jar")]}, "Page(doc_id='d1', url='ht"),
        (
            {"documents": [{"_id": "d1", "text": "jar"}]},
            "{'_id': 'd1', 'text': 'jar'} is no document; give a pair",
        ),
        ({"queries": [("q1", "jar")]}, "queries: should be a valid dictionary"),
        ({"qrels": [("q1", "d1", 1)]}, "qrels: should be a valid dictionary"),
        ({"qrels": {"q1": ["d1"]}}, "qrels: q1 should be a valid dictionary"),
    ],
)
def test_tables_of_another_shape_are_refused_with_theirs(parts, says):
    right = {"documents": [["d1", "jar"]], "queries": {"q1": "jar"}, "qrels": {"q1": {"d1": 1}}}
    assert environments.of(**right, name="x").qrels == right["qrels"]
    with pytest.raises(DataError, match=re.escape(says)):
        environments.of(**right | parts, name="x")


def test_ids_in_python_may_be_whole_numbers_of_any_library():
    documents = {np.int64(7): "jar", 8.0: "mud", "9": "dam"}
    made = environments.of(
        documents, {1: "jar"}, {np.int32(1): {7: 1, np.float64(8): 1, 9: np.int8(2)}}, name="x"
    )
    assert list(made.documents) == ["7", "8", "9"] and made.qrels == {"1": {"7": 1, "8": 1, "9": 2}}
    with pytest.raises(
        DataError, match="no query has a judgement: '01' in the judgements, and '1' in the queries"
    ):
        environments.of({"a": "jar"}, {"1": "jar"}, {"01": {"a": 1}}, name="x")
