"""How a run ends: no thread that answers a query outlives it."""

import pytest
from run_folders import CONFIG
from waiting import wait_for

from sextant import environments
from sextant.evals import run_folder
from sextant.evals.running import runner
from sextant.tools.errors import RunIncomplete
from sextant.tools.models import language_model
from sextant.tools.records import Submission, Trace
from sextant.tools.retrievers.lexical.bm25 import BM25


def test_a_folder_that_cannot_be_written_ends_a_run_after_the_queries_in_flight(tmp_path):
    mini = environments.load("congress", "mini", "dev")
    model = language_model.connect("offline", statistics=BM25(mini.documents).statistics)
    pending = {}
    ended = []

    def answer_later_ones_late(query):
        if query is not mini.queries[0]:
            wait_for(lambda: pending)  # until it is known that the first cannot be written
        ended.append(query)
        return Submission(query.query_id, [], Trace(query.query_id))

    with run_folder.claim(tmp_path / "runs/task/run", CONFIG) as folder:
        (folder.path / "outcomes.jsonl").mkdir()
        with pytest.raises(RunIncomplete, match="could not be written and is pending"):
            runner.run_queries(
                answer_later_ones_late, mini.queries, mini.documents, folder, model, workers=2,
                hooks=runner.QueryHooks(pending=pending.__setitem__),
            )  # fmt: skip
    assert mini.queries[1] in ended and len(ended) < len(mini.queries)
    assert pending.keys() == {query.query_id for query in ended}
