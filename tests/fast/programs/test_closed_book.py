"""What a guess from memory names, against every substring tried; and the program's calls, searches and ranking."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sextant.programs.closed_book import TITLE, ClosedBook, longest_run, search_words_of_guess
from sextant.tools.corpus import Corpus
from sextant.tools.errors import UnknownName
from sextant.tools.models import language_model
from sextant.tools.records import Document, Query
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Limits, Toolbox

LINE = "the tide went out that morning and did not come back until the spring"
CORPUS = Corpus(
    [
        Document("heading", "# The Salt Ledger\nA clerk counts barrels on a wet quay."),
        Document("titled", "A keeper of bees is accused of arson.", title="Smoke & Honey"),
        Document("quoted", f"Nobody in the village spoke of it, but {LINE}."),
        Document(
            "shorter",
            "It is said that the tide went out that morning and took the boats of others.",
        ),
        Document("other", "The tide comes twice a day to the quay, with bees."),
    ]
)
UNLIMITED = Limits()
QUERY = Query(
    "q1", "A story about a bay that runs dry, I read it as a child.", "Find the described book."
)


def guessed(server, *guesses, limits=UNLIMITED, **parameters):
    server.answer = lambda prompt: {"guesses": json.dumps(guesses)}
    with language_model.connect(server.spec).active():
        return ClosedBook(Toolbox(CORPUS, BM25(CORPUS), limits=limits), **parameters)(query=QUERY)


few_words = st.lists(st.sampled_from("abc"), max_size=14)


def by_brute_force(guess, text, query):
    """Every piece of the guess, longest first: is it in the text, and is none of its fives in the query?"""

    def inside(piece, whole):
        return any(
            whole[at : at + len(piece)] == piece for at in range(len(whole) - len(piece) + 1)
        )

    for length in range(len(guess), 4, -1):
        for first in range(len(guess) - length + 1):
            piece = guess[first : first + length]
            fives = [piece[at : at + 5] for at in range(length - 4)]
            if inside(piece, text) and not any(inside(five, query) for five in fives):
                return length
    return 0


@given(few_words, few_words, few_words)
@example(list("abcabcab"), list("cabcabcaabcabcab"), list("bcabc"))
@example(list("aaaaaaaa"), list("aaaaaa"), [])
def test_the_longest_run_is_that_of_every_piece_tried(guess, text, query):
    assert longest_run(guess, text, query) == by_brute_force(guess, text, query)


@pytest.mark.parametrize(
    ("guess", "title", "text", "query", "expected"),
    [
        ("smoke and honey", "Smoke & Honey", "", "", 0),
        ('"SMOKE, HONEY!"', "Smoke & Honey", "", "", TITLE),
        ("The Salt Ledger", "", "\n# *The Salt Ledger*\nA clerk", "", TITLE),
        ("The Salt Ledger", "", "A clerk.\nThe Salt Ledger", "", 0),  # not its first line
        (
            "The Salt Ledger",
            "",
            "# The Salt Ledger",
            "was it The Salt Ledger?",
            0,
        ),  # the query says it
        ("", "", "", "", 0),
        ("...", "", "***", "", 0),
        ("one two three four", "", "say one two three four five", "", 0),
        ("One two, three four FIVE.", "", "say one two three four five", "", 5),
        (
            "one two three four five six",
            "",
            "one two three four five six",
            "",
            TITLE,
        ),  # a text that is one line
        (
            "one two three four five six",
            "x",
            "one two three four five six",
            "one two three four five",
            5,
        ),
        (
            "one two three four five six",
            "x",
            "one two three four five six",
            "one two three four five six",
            0,
        ),
    ],
)
def test_what_is_a_sign_and_what_is_not(guess, title, text, query, expected):
    assert search_words_of_guess(guess, title, text, query) == expected


def test_the_ranking_is_the_named_documents_in_the_order_of_the_guesses_and_the_answer_the_guesses(
    server,
):
    submission = guessed(
        server, "the salt ledger", "An unknown\n book", f"I recall: {LINE}", "Smoke, Honey", LINE
    )
    assert submission.ranking == ("heading", "quoted", "titled")
    lines = submission.answer.split("\n")
    assert lines == [
        "the salt ledger",
        "An unknown book",
        f"I recall: {LINE}",
        "Smoke, Honey",
        LINE,
    ]
    [prompt] = map(str, server.requests)  # without the corpus
    assert QUERY.text in prompt and not any(document.text in prompt for document in CORPUS.values())


def test_of_two_documents_with_the_phrase_the_one_with_more_of_it_is_named(server):
    submission = guessed(server, LINE)
    assert {"quoted", "shorter"} <= set(submission.trace.steps[0].doc_ids)
    assert submission.ranking == ("quoted",)
    assert submission.trace.notes == [f"names quoted by a run of {len(LINE.split())} words: {LINE}"]


def test_out_of_searches_the_earlier_guesses_count(server):
    submission = guessed(server, "the salt ledger", "Smoke, Honey", limits=Limits(searches=1))
    assert submission.ranking == ("heading",) and submission.trace.steps[-1].argument == "budget"


@pytest.mark.parametrize(
    ("target", "answer", "texts"),
    [
        ("titles", {"guesses": json.dumps(["Smoke & Honey", "A tide"])}, 2),
        ("title", {"guess": "Smoke & Honey"}, 1),
        ("text", {"guess": f"They say {LINE}."}, 1),
        ("quotations", {"guesses": json.dumps([LINE, "bees"])}, 2),
    ],
)
def test_what_is_asked_for_is_the_target_of_the_task(target, answer, texts, server, tmp_path):
    works = tmp_path / "works.jsonl"
    works.write_text(json.dumps({"_id": QUERY.query_id, "work": "The Bay of Brine"}))
    server.answer = lambda prompt: answer
    with language_model.connect(server.spec).active():
        program = ClosedBook(Toolbox(CORPUS, BM25(CORPUS)), target=target, works=str(works))
        submission = program(query=QUERY)
    assert submission.ranking and len(submission.answer.split("\n")) == texts
    [prompt] = map(str, server.requests)
    assert ("The Bay of Brine" in prompt) == (target == "quotations")
    assert ("[[ ## most ## ]]" in prompt) == (texts > 1)


def test_a_query_whose_work_the_file_does_not_name_has_a_note_of_that(server, tmp_path):
    works = tmp_path / "works.jsonl"
    works.write_text(json.dumps({"_id": "another", "work": "The Bay of Brine"}))
    submission = guessed(server, LINE, target="quotations", works=str(works))
    assert submission.trace.notes[0] == f"{works} names no work for this query"


def test_a_target_that_there_is_none_of_is_refused_with_the_nearest():
    with pytest.raises(UnknownName, match="titles"):
        ClosedBook(Toolbox(CORPUS, BM25(CORPUS)), target="titels")
