"""Searches of a server elsewhere: asked as Anserini and Search-R1 are, and held to what every retriever has to do."""

from contextlib import closing

import pytest
from search_server import SearchServer

from sextant.tools.errors import DataError, ProviderRefused, RunIncomplete, UsageError
from sextant.tools.models.call_limits import RetryPolicy
from sextant.tools.models.run_resources import RunResources
from sextant.tools.retrievers import build, canonicalize, contract


@pytest.fixture
def searches():
    with closing(SearchServer(contract.CORPUS)) as made:
        yield made


def specs(url):
    return f"http({url}/v1/a%2Fb)", f"http({url},dialect=search-r1)"


def http(spec, attempts=2):
    return build(
        spec,
        contract.CORPUS,
        resources=RunResources(patience=RetryPolicy(attempts=attempts, first=0.0)),
    )


def test_a_server_elsewhere_keeps_the_contract_of_retrievers(searches):
    text, (anserini, search_r1) = "blue blood octopus", specs(searches.url)
    assert {holds: wrong for holds, wrong in contract.run(canonicalize(anserini)) if wrong} == {}
    plain = build("bm25", contract.CORPUS).search(text, 4)
    assert http(anserini).search(text, 4) == plain == http(search_r1).search(text, 4)


@pytest.mark.parametrize("dialect", [0, 1])
def test_ids_that_the_task_lacks_are_left_out_and_said_once(searches, dialect, caplog):
    made = http(specs(searches.url)[dialect])
    plain = made.search("blue blood", 3)
    searches.more = [f"strange{n}" for n in range(7)]
    assert made.search("blue blood", 3) == plain == made.search("blue blood", 3)
    assert [record.message.count("strange0") for record in caplog.records] == [1]


def test_a_server_that_fails_is_asked_again_and_one_that_refuses_is_not(searches):
    spec = specs(searches.url)[0]
    searches.failures = [503]
    assert http(spec).search("blood", 2)
    searches.failures = [500, 500]
    with pytest.raises(RunIncomplete, match="status 500"):
        http(spec).search("blood", 2)
    searches.failures, before = [400], len(searches.paths)
    with pytest.raises(ProviderRefused, match="Unable to open index: octo"):
        http(spec).search("blood", 2)
    assert len(searches.paths) == before + 1
    with pytest.raises(DataError, match="search-r1"):
        searches.search_r1 = lambda body: {"results": []}
        http(specs(searches.url)[1]).search("blood", 2)


def test_long_searches_are_cut_to_what_an_address_holds_and_it_is_told(searches):
    made, long = http(specs(searches.url)[0]), "blood " * 3000
    assert made.search(long, 2)
    assert max(map(len, searches.paths)) < 8000
    assert 1000 < made.left_out(long) < 3000 and made.left_out("blood") == 0


def test_a_key_goes_along_and_what_is_no_address_is_refused(searches, monkeypatch):
    monkeypatch.setenv("SEXTANT_API_KEY", "the-key-of-this-server")
    http(specs(searches.url)[1]).search("blood", 1)
    assert searches.headers[-1]["Authorization"] == "Bearer the-key-of-this-server"
    for spec in ("http:8081", "http(ftp://x/y)", "http"):
        with pytest.raises(UsageError):
            http(spec)
