"""What retrievers ask of an API is in the run's budget and in its books, which are the server's own."""

import pytest
from openai_server import Failure, annotate, bag_of_words

from sextant.tools.errors import BudgetReached
from sextant.tools.models.call_limits import Budget, RetryPolicy
from sextant.tools.models.run_resources import RunResources
from sextant.tools.records import Usage
from sextant.tools.retrievers.base import Search
from sextant.tools.retrievers.neural.api_embeddings import ApiEmbedder

RETRIEVE = ("--program", "retrieve", "--task", "congress", "--data", "mini", "--split", "dev")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("sextant.tools.models.run_resources.PATIENCE", RetryPolicy(first=0.0))


@pytest.fixture
def priced(tmp_path, server):
    """A file of prices, by which a token of the server's embeddings costs a ten-thousandth of a dollar."""
    path = tmp_path / "prices.toml"
    path.write_text(f'as_of = 2026-11-01\n["{server.spec}"]\ninput = 100\noutput = 0\n')
    return path


def tokens(server):
    return sum(len(text.split()) for request in server.requests for text in request["input"])


def test_requests_that_fail_are_booked_as_such(run, server):
    failures = iter([Failure(500), Failure(429), None, Failure(503)])

    def embed(texts):
        if failure := next(failures, None):
            raise failure
        return bag_of_words(texts)

    server.embed = embed
    usage_totals = run(*RETRIEVE, "--retriever", f"api:{server.spec}", "--json").json["ledger"]
    assert usage_totals["faults"] == {"429": 1, "500": 1, "503": 1} and usage_totals["sent"] == len(
        server.requests
    )
    assert usage_totals["input_tokens"] and usage_totals["paid_usd"] is None, (
        "nobody has said what the server costs"
    )


def test_a_budget_of_calls_stops_an_index_which_then_goes_on(run, server, monkeypatch):
    monkeypatch.setattr("sextant.tools.retrievers.neural.api_embeddings._MOST_TEXTS_ELSEWHERE", 8)
    ask = (*RETRIEVE, "--retriever", f"api:{server.spec}", "--json")
    stopped = run(*ask, "--budget-calls", "4")
    assert stopped.code == 8 and len(server.requests) == 4
    assert "has embedded is kept, and the same command with a larger budget goes on" in stopped.err
    again = run(*ask, "--budget-calls", "4")
    assert again.code == 8 and len(server.requests) == 5, "dimension: what was spent before counts"
    done = run(*ask)
    assert done.code == 0
    texts = [
        text for request in server.requests for text in request["input"] if text != "dimension"
    ]
    assert len(texts) == len(set(texts)), "no text was embedded twice"
    assert done.json["ledger"]["sent"] == len(server.requests)


def test_a_budget_in_dollars_is_kept_over_index_queries_and_sittings(run, server, priced):
    ask = (
        *RETRIEVE,
        "--retriever",
        f"api:{server.spec}",
        "--prices",
        priced,
        "--json",
        "--max-concurrent",
        "2",
    )
    whole = run(*ask, "--runs", priced.parent / "other").json["ledger"]["paid_usd"]
    of_index = 1e-4 * sum(
        len(t.split()) for r in server.requests for t in r["input"] if len(r["input"]) > 1
    )
    server.requests.clear()
    budget = round((of_index + whole) / 2 - of_index, 5)  # the index is there already
    stopped = run(*ask, "--budget-usd", budget)
    assert stopped.code == 8 and 0 < stopped.json["owed"] < 12
    assert stopped.json["ledger"]["paid_usd"] <= budget + 2 * 0.01
    assert run(*ask, "--budget-usd", budget).json["owed"] == stopped.json["owed"]
    done = run(*ask, "--budget-usd", 10 * budget)
    assert done.code == 0 and done.json["ledger"]["paid_usd"] == pytest.approx(
        1e-4 * tokens(server)
    )


def test_a_budget_in_dollars_is_refused_where_nobody_knows_what_the_api_takes(run, server):
    for spec in (f"api:{server.spec}", f"fusion(bm25,chroma:api:{server.spec})"):
        result = run(*RETRIEVE, "--retriever", spec, "--budget-usd", "1")
        assert result.code == 2 and f"the price of {server.spec} is not known" in result.err
    assert not server.requests


def test_a_model_and_its_retriever_share_one_budget_and_one_ledger(run, server):
    ask = (
        "--program",
        "multihop",
        *RETRIEVE[2:],
        "--lm",
        server.spec,
        "--retriever",
        f"api:{server.spec}",
        "--json",
    )
    whole = run(*ask).json["ledger"]
    assert whole["sent"] == len(server.requests)
    asked = len(server.requests)
    ask = (*ask, "-P", "hops=3")
    stopped = run(*ask, "--budget-calls", "20")
    assert (
        stopped.code == 8 and stopped.json["ledger"]["sent"] == len(server.requests) - asked == 20
    )
    done = run(*ask, "--budget-calls", "10000")
    assert done.code == 0 and done.json["ledger"]["sent"] == len(server.requests) - asked


def test_what_an_interrupted_index_has_cost_counts_once(server, place):
    resources = RunResources(budget=Budget(calls=10))
    embedder = ApiEmbedder(server.spec, resources=resources)
    embedder.resume(Usage(calls=6, input_tokens=60))
    embedder.documents(["five words are in here"])  # and one request for the dimension
    resources.open(place)
    embedder.resume(Usage(calls=6, input_tokens=60))  # once there are books, they have it
    assert resources.usage_totals.sent == 8 and resources.usage_totals.usage.input_tokens == 66
    embedder.queries([Search("one")])
    embedder.queries([Search("two")])
    with pytest.raises(BudgetReached):
        embedder.queries([Search("three")])


@pytest.fixture
def compile_booked(command_of, tmp_path):
    """Compile for writing with these words: the exit code, and what the books have been sent."""
    from sextant.evals import cache
    from sextant.optimizers import compile as module

    def compiled(*words):
        runs = ("--runs", tmp_path / "runs")
        code = command_of(module)(
            "--task", "writing", "--data", "mini", "--limit", 4, *words, *runs
        ).code
        [usage_totals] = command_of(cache)("list", "--json", *runs).json["runs"].values()
        return code, usage_totals["sent"]

    return compiled


@pytest.mark.parametrize(
    ("retriever", "values"),
    [
        ("lens(bm25,model=SERVER,attribute={x})", "stance|proof"),
        ("api:SERVER(dimensions={x})", "20|22"),
    ],
)
def test_an_index_that_is_opened_while_tuning_is_in_the_books(
    server, compile_booked, retriever, values
):
    server.answer = annotate
    server.embed = lambda texts: bag_of_words(texts)[:, : int(server.requests[-1]["dimensions"])]
    tuned = ("--retriever", retriever.replace("SERVER", server.spec), "--range", f"x={values}")
    for calls in (40, 400):
        limits = ("--budget-calls", calls, "--max-concurrent", 1)
        code, sent = compile_booked("--program", "retrieve", "--optimizer", "tune", *tuned, *limits)
        assert sent == len(server.requests)
    assert code == 0
