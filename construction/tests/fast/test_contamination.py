"""Decontamination removes what a model that knows some titles and quotations by heart gives away, and nothing else."""

import hashlib
import json

import pytest
from conftest import lines
from openai_server import given, ids

from sextant import environments
from sextant.tools.platform.cli import CommandParser, run_command
from sextant.tools.records import Document
from sextant.tools.text import tokens
from sextant_construction import contamination as module
from sextant_construction import human_review, release
from sextant_construction.contamination import recall


@pytest.fixture
def command(capsys):
    def do(*words):
        parser = CommandParser(prog="contamination")
        module.add_options(parser)
        code = run_command(parser, module.command, [*map(str, words), "--json"])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else err

    return do


@pytest.fixture
def task(tmp_path):
    """`task(*names)`: all queries of these miniatures of BIRCO in one folder, whose documents have invented titles."""

    def made(*names):
        folder = tmp_path / "-".join(names)
        (folder / "qrels").mkdir(parents=True)
        parts = [environments.load(f"birco/{name}", "mini", "all") for name in names]
        rows = [
            {"_id": one.doc_id, "title": title(one.doc_id), "text": one.text}
            for part in parts
            for one in part.documents.values()
        ]
        judged = [
            (f"q{q}", d, int(g >= 1))
            for part in parts
            for q, of in part.qrels.items()
            for d, g in of.items()
        ]
        lines(folder / "corpus.jsonl", map(json.dumps, rows))
        asked = [
            {"_id": f"q{one.query_id}", "text": one.text} for part in parts for one in part.queries
        ]
        lines(folder / "queries.jsonl", map(json.dumps, asked))
        lines(
            folder / "qrels/test.tsv",
            ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in judged)],
        )
        return folder, environments.load(str(folder), None, "all")

    return made


def title(doc_id):
    """An invented title, of letters that are like those of no other."""
    word = (
        hashlib.sha256(doc_id.encode())
        .hexdigest()
        .translate(str.maketrans("0123456789", "ghijklmnop"))
    )
    return f"The {word[:7].capitalize()} of Zenobia, {word[7:16].capitalize()}"


def knows(server, memories):
    """The server says what it remembers of a description, and makes up what it does not; returns who was asked."""

    def answer(prompt):
        described = " ".join(given(prompt, "description").split())
        told = [guess for text, guess in memories if " ".join(text.split()) == described]
        guesses = ["Something else entirely", *told, " ".join(described.split()[:9])]
        # Of a document, one title is asked for, and of a query one whole text or several guesses.
        return {"guesses": json.dumps(guesses), "guess": (told or guesses)[0]}

    server.answer = answer


def test_ten_titles_known_by_heart_are_removed_and_nothing_else(server, task, command, tmp_path):
    folder, truth = task("whatsthatbook", "arguana")
    gold = {
        one.query_id: min(truth.judgements["gold"].relevant(one.query_id)) for one in truth.queries
    }
    asked = sorted(gold)[:10]
    memories = [
        (one.text, f"{title(gold[one.query_id]).lower()}!")
        for one in truth.queries
        if one.query_id in asked
    ]
    knows(server, memories)
    words = ("--task", folder, "--lm", server.spec, "--runs", tmp_path / "runs")
    words += ("--out", tmp_path / "out")
    code, found = command(*words)
    assert code == 0 and found["kind"] == "title" and len(asked) == 10
    assert {*found["removed"]} == {*asked} and found["categories"]["same"] == 10
    rest = environments.load(str(tmp_path / "out" / "release"), None, "all")
    assert {one.query_id for one in rest.queries} == gold.keys() - {*asked}
    assert [*rest.documents] == [*truth.documents]
    many = len(server.requests)
    assert many == len(truth.queries)
    assert command(*words)[1] == found and len(server.requests) == many


def test_ten_quotations_known_by_heart_are_removed_and_nothing_else(
    server, task, command, tmp_path
):
    folder, truth = task("relic", "clinical_trial")
    for file, row in (
        ("queries.jsonl", '{"_id": "odd", "text": "Its document is missing."}'),
        ("qrels/test.tsv", "odd\tno\t1"),
    ):
        with (folder / file).open("a") as rows:
            rows.write(f"{row}\n")
    memories, chosen = [], set()
    for place, one in enumerate(sorted(truth.queries, key=lambda one: one.query_id)):
        gold = tokens(truth.documents[max(truth.judgements["gold"].relevant(one.query_id))].text)
        width = 6 if place % 3 else 4  # four words in a row are no quotation
        if len(chosen) < 10:
            memories.append((one.text, f"I recall: {' '.join(gold[2 : 2 + width])}"))
            chosen |= {one.query_id} if width == 6 else set()
    knows(server, memories)
    words = ("--task", folder, "--kind", "mask", "--lm", server.spec, "--runs", tmp_path / "runs")
    found = command(*words, "--out", tmp_path / "out")[1]
    assert len(chosen) == 10 and found["removed"].keys() == chosen
    rest = environments.load(str(tmp_path / "out" / "release"), None, "all")
    assert {one.query_id for one in truth.queries} - {
        one.query_id for one in rest.queries
    } == chosen
    assert len(rest.documents) == len(truth.documents)
    prompts = len(server.requests)
    sampled = command(*words, "--sample", 7)[1]
    assert (
        sampled["queries"] == 7
        and sampled["removed"].keys() < chosen
        and len(server.requests) == prompts
    )


def test_what_is_like_a_wanted_text_is_for_people_to_say_or_for_a_judge(server, command, tmp_path):
    truth = environments.load("birco/clinical_trial", "mini", "all")
    gold = {
        one.query_id: sorted(truth.judgements["gold"].relevant(one.query_id))
        for one in truth.queries
    }
    first, second, third = truth.queries[:3]
    # Of the first it knows a text by heart, of the second it makes a good one up, and of the others bad ones.
    memories = {
        first.query_id: truth.documents[gold[first.query_id][-1]].text,
        second.query_id: "A trial of tea.",
    }

    def answer(prompt):
        texts = {" ".join(one.text.split()): one.query_id for one in truth.queries}
        known = memories.get(
            texts[" ".join(given(prompt, "description").split())], "A study of snow."
        )
        if "## verdicts ##" not in prompt:
            return {"guess": known}
        shown = ids(prompt.rpartition("[[ ## passages ## ]]")[2])
        grade = (
            0
            if "snow" in prompt or "Nothing in" in prompt.rpartition("[[ ## passages ## ]]")[2]
            else 2
        )
        return {
            "verdicts": json.dumps([{"id": one, "grade": grade, "reason": "so"} for one in shown])
        }

    server.answer = answer
    words = (
        "--task",
        "birco/clinical_trial",
        "--kind",
        "text",
        "--lm",
        server.spec,
        "--runs",
        tmp_path / "runs",
    )
    words += ("--retriever", f"api:{server.spec}")
    undecided = command(*words)[1]
    assert undecided["removed"] == {} and undecided["categories"]["open"] == len(truth.queries)
    judged = command(*words, "--judge", server.spec)[1]
    assert judged["removed"] == {first.query_id: f"the same as {gold[first.query_id][-1]}"}
    assert judged["categories"]["same"] == 1
    # People are shown the same guesses; what they say holds.
    out = tmp_path / "out"
    command(*words, "--judge", server.spec, "--out", out)
    items = human_review.read_offered(out)["contamination"]
    assert len(items) == len(truth.queries)
    [asked] = [row["item"] for row in items.values() if third.text in str(row["show"])]
    lines(tmp_path / "said.jsonl", [json.dumps({"item": asked, "rater": "ann", "value": "same"})])
    assert human_review.import_answers(out, [tmp_path / "said.jsonl"]) == 0
    said = command(*words, "--judge", server.spec, "--out", out)[1]
    assert said["removed"].keys() == {first.query_id, third.query_id}


@pytest.mark.parametrize(
    ("kind", "guess", "shown", "known"),
    [
        ("title", "Smoke & Honey", "a keeper of bees", "the title of d"),
        ("title", "honey, SMOKE", "a keeper of bees", "the title of d"),
        ("title", "Smoke and Hunney", "a keeper of bees", ""),
        ("title", "Smoke Honney", "a keeper of bees", "the title of d"),
        ("title", "Smoke", "a keeper of bees", ""),
        ("title", "Smoke & Honey", "was it Smoke, Honey?", ""),  # the query says it
        ("title", "", "", ""),
        ("mask", "one two three four five", "a keeper", "a run of 5 words of d"),
        ("mask", "one two three four six", "a keeper", ""),
        ("mask", "one two three four five", "one two three four five", ""),
        ("mask", "Smoke & Honey", "a keeper", ""),
    ],
)
def test_what_counts_as_a_memory(kind, guess, shown, known):
    assert (
        recall(kind, guess, Document("d", "say one two three four five", "Smoke & Honey"), shown)
        == known
    )


def test_wrong_requests_are_refused_in_a_line_and_a_dry_run_sends_nothing(
    server, command, tmp_path
):
    words = ("--task", "whatsthatbook", "--lm", server.spec, "--runs", tmp_path / "runs")
    code, said = command(*words, "--kind", "title")
    assert code == 2 and "have no titles; give --kind mask" in said
    assert command(*words, "--sample", 3, "--out", tmp_path)[0] == 2
    code, found = command(*words, "--dry-run")
    assert code == 0 and found["queries"] == 9 and found["calls"] == 9 and not server.requests


@pytest.mark.parametrize(
    "name",
    ["people:format", "wildchat", "birco/doris_mae", "writing", "tip_of_the_tongue:document"],
)
def test_of_each_protocol_what_is_left_is_a_task_for_which_everything_holds(
    name, command, tmp_path
):
    code, _ = command(
        "--task", name, "--kind", "mask", "--runs", tmp_path / "runs", "--out", tmp_path
    )
    truth, rest = (environments.load(one, None, "all") for one in (name, str(tmp_path / "release")))
    assert code == 0 and release.check_release(tmp_path) == []
    assert [one.text for one in rest.queries] == [one.text for one in truth.queries]
    assert (rest.metrics, rest.comparisons, rest.twins) == (
        truth.metrics,
        truth.comparisons,
        truth.twins,
    )


def test_where_documents_stand_for_their_passages_a_quotation_of_any_passage_counts(
    server, command, tmp_path
):
    truth = environments.load("crumb/tip_of_the_tongue", "mini", "all")
    known = truth.queries[0]
    [parent, *_] = truth.judgements["document"].relevant(known.query_id)
    last = [one for one in truth.documents if one.rpartition(":")[0] == parent][-1]
    knows(server, [(known.text, " ".join(tokens(truth.documents[last].text)[3:12]))])
    words = (
        "--task",
        "crumb/tip_of_the_tongue",
        "--data",
        "mini",
        "--kind",
        "mask",
        "--lm",
        server.spec,
    )
    found = command(*words, "--runs", tmp_path / "runs", "--out", tmp_path / "out")[1]
    assert found["removed"].keys() == {known.query_id}
    rest = environments.load(str(tmp_path / "out/release"), None, "all")
    assert (
        rest.max_p
        and len(rest.queries) == len(truth.queries) - 1
        and len(rest.documents) == len(truth.documents)
    )
    assert all(rest.qrels[one.query_id] == truth.qrels[one.query_id] for one in rest.queries)
