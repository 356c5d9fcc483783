"""Arguments of the tools in the forms that clients send: each has one meaning, or is refused in one line."""

import json

import pytest

from sextant.evals.serving.rl_training import Turns, open_training
from sextant.tools.models.answers.arguments import _FORMS, list_strange

WORDS = "a shop in the night"


def search(**arguments):
    return json.loads(open_training(data="mini").open().act("search", arguments).text)


@pytest.mark.parametrize("k", [5, 5.0, "5", "5.0", " 5 "])
def test_a_number_is_taken_as_a_number_and_as_text(k):
    assert search(query=WORDS, k=k) == search(query=WORDS, k=5)


@pytest.mark.parametrize("left_out", [None, "", " "])
def test_null_and_an_empty_text_stand_for_an_argument_that_is_left_out(left_out):
    assert search(query=WORDS, k=left_out) == search(query=WORDS)


@pytest.mark.parametrize("k", [True, "true", 0, -1, 5.5, "five", [5], 1e300, float("nan")])
def test_what_is_no_number_of_documents_is_refused_in_one_line(k):
    assert (
        "search takes a whole number of at least 1 as k, not" in search(query=WORDS, k=k)["error"]
    )


@pytest.mark.parametrize("query", [None, True, ["a", "b"], {"text": "a"}])
def test_what_is_no_text_is_refused_in_one_line(query):
    assert search(query=query)["error"].startswith("search ")


@pytest.mark.parametrize("sent", [None, "", "null", [WORDS], WORDS, "{", b"", 5])
def test_arguments_that_are_no_object_are_refused_in_one_line(sent):
    seen = json.loads(open_training(data="mini").open().act("search", sent).text)
    assert seen["error"].startswith("search ")


def played():
    episode = open_training(data="mini").open()
    found = json.loads(episode.act("search", {"query": WORDS}).text)
    return episode, [one["doc_id"] for one in found]


# What clients make of the two ids {0} and {1}.
FORMS = [
    ["{0}", "{1}"],
    '["{0}", "{1}"]',
    "['{0}', '{1}']",
    "{0}, {1}",
    "{0}\n{1}",
    [" {0}", '"{1}"'],
    [{"doc_id": "{0}", "title": ""}, {"id": "{1}"}],
    '[{"docId": "{0}"}, {"doc_id": "{1}"}]',
    [None, "{0}", "{1}", "{0}"],
]


def fill(form, ids):
    return json.loads(json.dumps(form).replace("{0}", ids[0]).replace("{1}", ids[1]))


@pytest.mark.parametrize("name", ["doc_ids", "docIds", "doc-ids", "DocId"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_list_of_ids_is_read_in_any_form_and_under_any_spelling(form, name):
    episode, found = played()
    assert json.loads(episode.act("submit", {name: fill(form, found[2:4])}).text) == {
        "submitted": 2
    }
    assert episode.submission.ranking == tuple(found[2:4])


@pytest.mark.parametrize(
    "form", ["{0}", " {0}", ["{0}"], {"doc_id": "{0}"}, '{"docid": "{0}"}'], ids=str
)
def test_one_id_is_read_in_any_form_also_where_a_list_is_wanted(form):
    episode, found = played()
    assert json.loads(episode.act("read", {"doc_id": fill(form, found)}).text)["doc_id"] == found[0]
    assert json.loads(episode.act("select", {"doc_ids": fill(form, found)}).text) == {
        "selected": found[:1]
    }


def test_ids_that_are_numbers_are_those_of_documents_with_such_ids(tmp_path):
    texts = {"101": "a tram on a rope", "102": "a tram on rails"}
    rows = {
        "corpus.jsonl": [{"_id": doc_id, "text": text} for doc_id, text in texts.items()],
        "queries.jsonl": [{"_id": "1", "text": "tram"}],
    }
    for name, lines in rows.items():
        (tmp_path / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n1\t101\t1\n")
    for sent in ([101, 102.0], 101, "101", "[101, 102]"):
        episode = open_training(task=str(tmp_path), split="test", allow_test=True).open()
        episode.act("search", {"query": "tram"})
        assert json.loads(episode.act("read", {"doc_id": 101}).text)["text"] == texts["101"]
        assert "submitted" in json.loads(episode.act("submit", {"doc_ids": sent}).text)
        assert episode.submission.ranking[0] == "101"


def test_submitting_says_which_ids_were_left_out():
    episode, found = played()
    assert json.loads(episode.act("submit", {"doc_ids": ["invented", found[0], 7]}).text) == {
        "submitted": 1,
        "unknown": ["invented", "7"],
    }


@pytest.mark.parametrize(
    ("answer", "text"), [(True, "true"), (3, "3"), (["a"], '["a"]'), (None, ""), ("\ud800", "?")]
)
def test_an_answer_may_be_any_json(answer, text):
    episode, _ = played()
    episode.act("submit", {"answer": answer})
    assert episode.submission.answer == text


def test_arguments_of_the_clients_own_are_left_out_and_named():
    sent = {"query": WORDS, "sessionId": 5, "toolCallId": "x"}
    assert search(**sent) == search(query=WORDS)
    assert list_strange(_FORMS["search"], sent) == ["sessionId", "toolCallId"]
    assert search(q=WORDS)["error"] == "search needs query, and has no 'q'"


@pytest.mark.parametrize("name", ["arguments", "parameters"])
@pytest.mark.parametrize("form", [dict, json.dumps])
def test_a_call_that_is_written_as_text_may_have_its_arguments_as_text(name, form):
    turns = Turns(open_training(data="mini"))
    seen = turns.take(json.dumps({"name": "search", name: form({"query": WORDS, "k": "2"})}))
    assert json.loads(seen.text) == search(query=WORDS, k=2)


def test_calls_in_tags_are_read_in_linear_time_and_one_without_an_end_is_none():
    """Quadratic time would take an hour."""
    turns = Turns(open_training(data="mini"))
    call = json.dumps({"name": "search", "arguments": {"query": WORDS, "k": 2}})
    found = json.dumps(search(query=WORDS, k=2))
    seen = turns.take(f"<tool_call>{call}</tool_call> then " + "<tool_call>" * 300_000)
    assert json.loads(seen.text) == json.loads(found)


def test_what_an_agent_used_is_read_as_leniently():
    episode, _ = played()
    episode.charge({"calls": "2", "tokens_in": 900.0, "tokens_out": None, "usd": "0.002"})
    used = episode.desk.session.usage
    assert (used.calls, used.input_tokens, used.output_tokens, used.paid_usd) == (2, 900, 0, 0.002)
