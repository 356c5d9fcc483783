"""Embeddings through the OpenAI protocol, against a local server that misbehaves as it is told."""

import logging
from contextlib import nullcontext

import numpy as np
import pytest
from bad_server import (
    ABSURD_USAGE,
    GOOD,
    OWN,
    PASSING,
    REFUSING,
    UNCLEAR,
    always,
    moved,
    trickle,
    usage,
)
from openai_server import Failure, bag_of_words

from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, ProviderRefused, RunIncomplete, UsageError
from sextant.tools.models.call_limits import RetryPolicy
from sextant.tools.models.model_spec import PROVIDERS
from sextant.tools.records import Document, Query, Usage
from sextant.tools.retrievers.base import Search
from sextant.tools.retrievers.neural import model_table
from sextant.tools.retrievers.neural.api_embeddings import ApiEmbedder, ApiRetriever
from sextant.tools.retrievers.vectors.embedder import open_vectors
from sextant.tools.session import Toolbox


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("sextant.tools.models.run_resources.PATIENCE", RetryPolicy(first=0.0))


@pytest.fixture
def table(monkeypatch):
    """Rows of models, in place of those of models.toml."""

    def put(*rows: model_table.ModelRow) -> None:
        monkeypatch.setattr(model_table, "rows", lambda: {row.name: row for row in rows})

    return put


@pytest.fixture
def as_openai(monkeypatch, server):
    """The local server, in the place of OpenAI's."""
    url = server.spec.partition("@")[2]
    monkeypatch.setitem(PROVIDERS, "openai", (url, (), "OPENAI_API_KEY"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    return server


def unit(texts):
    vectors = bag_of_words(texts)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def sent(server):
    return [text for request in server.requests for text in request["input"]]


def fail_times(times, failure):
    """An `embed` that fails so often, and works from then on."""
    left = iter([failure] * times)

    def embed(texts):
        if error := next(left, None):
            raise error
        return bag_of_words(texts)

    return embed


def test_hits_are_those_of_brute_force_over_the_vectors_that_the_server_gives(server, corpus):
    texts = list(corpus.texts())
    hits = ApiRetriever(corpus, None, server.spec).search("blue blood of an octopus", 4)
    scores = unit(texts) @ unit(["blue blood of an octopus"])[0]
    best = np.argsort(-scores)[:4]
    assert [hit.doc_id for hit in hits] == [corpus.doc_ids[row] for row in best]
    np.testing.assert_allclose([hit.score for hit in hits], scores[best], atol=1e-6)


def test_a_repeated_text_is_sent_and_paid_for_once(as_openai, table, corpus, tmp_path):
    table(model_table.ModelRow("openai/tiny", "api", price=2.0))
    retriever = ApiRetriever(corpus, tmp_path, "openai/tiny")
    as_openai.requests.clear()
    toolbox = Toolbox(corpus, retriever)
    costs = []
    for number in range(2):
        session = toolbox.open(Query(f"q{number}", "red blood"))
        session.search("red blood")
        costs.append(session.usage)
    assert sent(as_openai) == ["red blood"]
    assert costs == [Usage(calls=1, input_tokens=2, paid_usd=4e-6, list_usd=4e-6), Usage()]
    ApiRetriever(corpus, tmp_path, "openai/tiny")  # its vectors are kept
    assert sent(as_openai) == ["red blood"]


def test_a_cost_that_nobody_knows_is_not_nothing(as_openai, table):
    table(model_table.ModelRow("openai/tiny", "api", price=0.0))
    embedder = ApiEmbedder("openai/tiny")
    embedder.documents(["one text"])
    used = embedder.take_usage()
    assert used.paid_usd is None and used.list_usd is None
    assert embedder.take_usage() == Usage()


def test_formats_and_instructions_of_the_row_reach_the_server(server, table):
    table(
        model_table.ModelRow(
            "org/tiny",
            "dense",
            query="Instruct: {instruction}\nQuery: {query}",
            document="passage: {text}",
        )
    )
    embedder = ApiEmbedder(server.spec.replace("tiny@", "org/tiny@"))
    embedder.documents(["a text"])
    embedder.queries([Search("a query", "find it")])
    assert sent(server)[1:] == ["passage: a text", "Instruct: find it\nQuery: a query"]
    assert server.requests[0]["model"] == "org/tiny"


def test_blank_documents_are_not_sent_and_get_the_zero_vector(server):
    vectors = ApiEmbedder(server.spec).documents(["a text", " \n", "another", "\0"])
    assert not vectors[[1, 3]].any() and vectors[[0, 2]].any(axis=1).all()
    assert {" \n", "\0"}.isdisjoint(sent(server))


def test_the_number_of_dimensions_is_asked_for_and_checked(server):
    embedder = ApiEmbedder(server.spec, dimensions=24)
    embedder.documents(["a text"])
    assert [request["dimensions"] for request in server.requests] == [24]
    with pytest.raises(DataError, match="24 numbers where 8 are expected"):
        ApiEmbedder(server.spec, dimensions=8).documents(["a text"])


def test_requests_hold_no_more_texts_and_bytes_than_every_provider_takes(server):
    embedder = ApiEmbedder(server.spec)
    texts = [f"text {number}" for number in range(230)] + ["a long text " * 10_000] * 3
    vectors = embedder.documents(texts)
    assert [len(request["input"]) for request in server.requests] == [1, 100, 100, 32, 1]
    np.testing.assert_allclose(vectors, unit(texts), atol=1e-6)


def test_openai_gets_as_many_texts_as_have_their_vectors_in_one_answer(as_openai):
    ApiEmbedder("openai/text-embedding-3-small").documents(
        [f"text {number}" for number in range(1100)]
    )
    assert [len(request["input"]) for request in as_openai.requests] == [1, 1024, 76]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (413, "batch size 100 > maximum allowed batch size 32"),  # Hugging Face's TEI
        (422, "List should have at most 32 items after validation, not 100"),  # infinity
        (
            400,
            "* BatchEmbedContentsRequest.requests: at most 32 requests can be in one batch",
        ),  # Gemini
        (400, "Requested 350000 tokens, max 300000 tokens per request"),  # OpenAI
    ],
)
def test_a_server_that_takes_fewer_texts_gets_fewer(server, status, words):
    def embed(texts):
        if len(texts) > 32:
            raise Failure(status, message=words)
        return bag_of_words(texts)

    server.embed = embed
    texts = [f"text {number}" for number in range(200)]
    np.testing.assert_allclose(ApiEmbedder(server.spec).documents(texts), unit(texts), atol=1e-6)
    refused = [len(request["input"]) for request in server.requests if len(request["input"]) > 32]
    assert refused == [100, 50]  # and not for the second hundred
    answered = [
        text
        for request in server.requests
        if len(request["input"]) <= 32
        for text in request["input"]
    ]
    assert answered == ["dimension", *texts]


def test_a_text_that_is_too_long_loses_its_end_and_the_loss_is_counted(server, table):
    table(model_table.ModelRow("tiny", "dense", max_query_tokens=50, max_document_tokens=50))

    def embed(texts):
        if any(len(text.split()) > 50 for text in texts):
            raise Failure(400, message="maximum context length is 50 tokens")
        return bag_of_words(texts)

    server.embed = embed
    embedder = ApiEmbedder(server.spec)
    long = " ".join(f"w{number}" for number in range(100, 180))
    texts = ["short", long, "brief"]
    vectors = embedder.documents(texts)
    kept = sent(server)[-2]
    assert long.startswith(kept) and 45 <= len(kept.split()) <= 50
    np.testing.assert_allclose(vectors, unit(["short", kept, "brief"]), atol=1e-6)
    embedder.queries([Search(long)])
    assert 25 <= embedder.left_out(long) <= 40
    assert embedder.left_out("short") == 0


def test_a_text_that_is_refused_is_named_and_what_came_before_is_kept(server, corpus, tmp_path):
    def embed(texts):
        if any("giraffe" in text for text in texts):
            raise Failure(400, "content_filter", message="unsafe")
        return bag_of_words(texts)

    server.embed = embed
    with pytest.raises(DataError, match=r"refuses the text 'A giraffe has one heart.*unsafe"):
        open_vectors(ApiEmbedder(server.spec), corpus, tmp_path)
    embedder = ApiEmbedder(server.spec)
    embedder.documents(["a text"])
    with pytest.raises(
        ValueError, match="unsafe"
    ):  # who wrote the query is at fault, and not the run
        embedder.queries([Search("a giraffe")])


def test_an_outage_says_that_the_same_command_goes_on_and_it_does(server, tmp_path, monkeypatch):
    monkeypatch.setattr("sextant.tools.retrievers.neural.api_embeddings._MOST_TEXTS_ELSEWHERE", 10)
    corpus = Corpus(Document(f"d{number}", f"text number {number}") for number in range(25))
    answers = iter([True] * 3)  # the dimension, and two blocks

    def embed(texts):
        if not next(answers, False):
            raise Failure(500)
        return bag_of_words(texts)

    server.embed = embed
    with pytest.raises(RunIncomplete, match="is kept, and the same command goes on"):
        open_vectors(ApiEmbedder(server.spec), corpus, tmp_path)
    before = set(sent(server)[:21])
    server.requests.clear()
    server.embed = bag_of_words
    vectors = open_vectors(ApiEmbedder(server.spec), corpus, tmp_path)
    np.testing.assert_allclose(vectors, unit(list(corpus.texts())), atol=1e-6)
    assert not set(sent(server)) & (before - {"dimension"})


# How a search ends, by what becomes of each of its requests; without the faults of a chat's choices alone.
ENDS = [
    *((fault, None) for fault in GOOD.values()),
    *((fault, RunIncomplete) for fault in (trickle(0.05), *PASSING.values(), *UNCLEAR.values())),
    *((fault, ProviderRefused) for fault in REFUSING.values()),
    *((fault, ValueError) for fault in OWN.values()),
]
OF_A_CHAT = ("empty_choice", "bad_utf8", "filtered", "null_content", "inside")


@pytest.mark.parametrize(
    ("fault", "error"),
    [pytest.param(*end, id=end[0].kind) for end in ENDS if not end[0].kind.startswith(OF_A_CHAT)],
)
def test_only_what_is_said_of_the_text_is_its_fault_and_every_request_has_an_end(
    bad, monkeypatch, fault, error
):
    embedder = ApiEmbedder(bad.spec)
    embedder.documents(["a text"])
    bad.script = always(fault)
    seconds = (
        0.05 if error is RunIncomplete else 30.0
    )  # what is an answer may come late on a slow machine
    monkeypatch.setattr(embedder._api.resources, "patience", RetryPolicy(first=0.0, call=seconds))
    with pytest.raises(error) if error else nullcontext():
        embedder.queries([Search("a query")])


@pytest.mark.parametrize(
    "reported",
    [
        *ABSURD_USAGE,
        *({"prompt_tokens": count} for count in (-3, 1.5, 10**30)),
        {"total_tokens": 1e9},
    ],
)
def test_a_report_that_cannot_be_true_is_not_believed(bad, reported):
    bad.script = always(usage(reported))
    embedder = ApiEmbedder(bad.spec)
    embedder.documents(["a text"])
    used = embedder.take_usage()
    assert (used.input_tokens, used.unmetered, used.paid_usd) == (0, used.calls, None)


def test_a_redirect_is_not_followed_with_a_text_or_a_key(bad, elsewhere):
    bad.script = always(moved(f"http://localhost:{elsewhere.port}/v1/embeddings"))
    with pytest.raises(ProviderRefused, match="redirects to http://localhost"):
        ApiEmbedder(bad.spec).documents(["a text"])
    assert len(bad.tries) == 1 and not elsewhere.tries


def changed(change):
    def spoil(reply):
        change(reply["data"])
        return reply

    return spoil


def test_vectors_out_of_order_are_put_in_order(server):
    server.spoil = changed(lambda data: data.reverse())
    texts = ["one text", "another text", "a third"]
    np.testing.assert_allclose(ApiEmbedder(server.spec).documents(texts), unit(texts), atol=1e-6)


def test_floats_are_taken_where_base64_was_asked_for(server):
    server.spoil = changed(lambda data: [one.update(embedding=list(range(1, 25))) for one in data])
    [vector] = ApiEmbedder(server.spec).documents(["a text"])
    np.testing.assert_allclose(
        vector, np.arange(1, 25) / np.linalg.norm(np.arange(1, 25)), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop(), "2 vectors for 3 texts"),
        (lambda data: data.append(data[0]), "4 vectors for 3 texts"),
        (lambda data: data[0].update(index=1), "numbers"),
        (lambda data: data[0].update(embedding="!"), "0 numbers where 24"),
        (lambda data: data[0].update(embedding=None), "1? ?numbers where 24"),
        (lambda data: data[0].update(embedding=[1.0] * 25), "25 numbers where 24"),
        (lambda data: data[1].update(embedding=[0.0] * 24), "a vector of zeros"),
        (lambda data: data[0].update(embedding=[[1.0] * 24] * 3), "a vector for each token"),
    ],
)
def test_an_answer_that_is_not_one_vector_a_text_is_data_that_is_damaged(server, change, message):
    embedder = ApiEmbedder(server.spec)
    assert embedder.dimension == 24
    server.spoil = changed(change)
    with pytest.raises(DataError, match=message):
        embedder.documents(["one", "two", "three"])


def test_the_key_goes_to_the_provider_and_nowhere_else(as_openai, server, corpus, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "sextant")
    for before in range(290, 300):  # near where the message is cut
        told = "Incorrect API key provided: ".ljust(before, ".") + "sk-secret"
        as_openai.embed = fail_times(1, Failure(401, message=told + "x" * 50))
        with pytest.raises(ProviderRefused, match="Incorrect API key") as caught:
            ApiEmbedder("openai/text-embedding-3-large").documents(["a text"])
        assert "sk-" not in str(caught.value)
    as_openai.embed = bag_of_words
    retriever = ApiRetriever(corpus, tmp_path, "openai/text-embedding-3-large")
    assert set(server.authorizations) == {"Bearer sk-secret"}
    files = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"sk-secret" not in files and "sk-secret" not in retriever.name + caplog.text
    server.authorizations.clear()
    ApiEmbedder(server.spec).documents(["a text"])
    assert "Bearer sk-secret" not in server.authorizations


def test_a_provider_without_its_key_is_refused_before_anything_is_sent(monkeypatch):
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    with pytest.raises(ProviderRefused, match=r"\$GEMINI_API_KEY"):
        ApiEmbedder("gemini/gemini-embedding-2", dimensions=8).queries([Search("words")])


@pytest.mark.parametrize(
    "spec",
    [
        "text-embedding-3-large",
        "nobody/model",
        "openai/",
        "m@http://u:p@host/v1",
        "@http://h",
    ],
)
def test_a_model_that_is_nowhere_is_a_mistake_in_the_command(spec):
    with pytest.raises(UsageError, match="api:") as caught:
        ApiEmbedder(spec)
    assert "u:p" not in str(caught.value)


def test_the_models_of_the_table_have_what_a_client_must_know():
    rows = [row for row in model_table.rows().values() if row.kind == "api"]
    assert {row.name.partition("/")[0] for row in rows} == set(PROVIDERS)
    assert all(
        row.price > 0 and row.max_document_tokens == row.max_query_tokens > 0 and row.source
        for row in rows
    )
