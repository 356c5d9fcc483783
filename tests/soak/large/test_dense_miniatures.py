"""The miniatures under the dense retriever: the table in the documents says what it gets."""

import re

import pytest
from conftest import ROOT

TABLE = (ROOT / "docs/decisions/miniatures.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("task", ["obliq/twitter", "birco/relic"])  # the others take minutes to encode
def test_the_table_in_the_documents_says_what_the_dense_retriever_gets(task, run):
    words = ("--program", "retrieve", "--task", task, "--data", "mini", "--split", "all", "--retriever", "dense")
    [cell] = re.findall(rf"^\| `{task}` \|(?:[^|]*\|){{3}} ([^|]*) \|", TABLE, re.M)[:1]
    assert float(cell) == pytest.approx(run(*words, "--json").json["metrics"]["nDCG@10"]["mean"], abs=0.002)
