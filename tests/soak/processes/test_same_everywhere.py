"""Another process, with another hash seed, gives the same answers and hits."""

import json
import os
import subprocess
import sys

from conftest import ROOT
from tiny_models import bert

from sextant.tools import retrievers
from sextant.tools.models.run_resources import RunResources


def test_offline_gives_the_same_answer_in_every_process():
    script = (
        "from sextant import environments; from sextant.tools.models import language_model as lm;"
        "from sextant.programs.multihop import MultiHop;"
        "from sextant.tools.retrievers.lexical.bm25 import BM25; from sextant.tools.session import Toolbox;"
        "mini = environments.load('congress', 'mini', 'dev'); index = BM25(mini.documents);"
        "model = lm.connect('offline', statistics=index.statistics);"
        "program = MultiHop(Toolbox(mini.documents, index));\n"
        "with model.active():\n"
        "    for query in mini.queries[:6]:\n"
        "        s = program(query=query); print(s.ranking, s.trace.notes, [t.argument for t in s.trace.steps])"
    )
    outputs = set()
    for seed in ("1", "2"):
        surroundings = {"PYTHONHASHSEED": seed, "PATH": "", "PYTHONPATH": str(ROOT)}
        outputs.add(
            subprocess.check_output([sys.executable, "-c", script], env=surroundings, text=True)
        )
    assert len(outputs) == 1 and outputs != {""}


SPECS = [  # MODEL is a tiny one, made on the spot
    *(
        "bm25",
        "bm25(analyzer=english,k1=1.2)",
        "bm25s",
        "rank_bm25",
        "pool_bm25",
        "dense",
        "dense(search=int8)",
    ),
    *("dense:MODEL", "chroma:dense:MODEL", "fusion(bm25,dense:MODEL,weights=[2,1])"),
    *(
        "rerank(fusion(bm25,rank_bm25),dense:MODEL)",
        "lens(dense:MODEL,attribute=authorship,query=true)",
    ),
]
QUERIES = ["blue blood octopus", "heart", "why is the blood of an octopus blue blue blood"]
ELSEWHERE = """
import json, sys
from pathlib import Path
from sextant.tools.corpus import Corpus
from sextant.tools.records import Document
from sextant.tools.models.run_resources import RunResources
from sextant.tools.retrievers import build
home, specs, queries, documents = json.loads(sys.stdin.read())
corpus = Corpus(Document(*document) for document in documents)
made = [build(spec, corpus, Path(home), resources=RunResources()) for spec in specs]
print(json.dumps([[retriever.search(query, 5) for query in queries] for retriever in made]))
"""


def test_another_process_gives_the_same_hits_to_the_last_digit(corpus, tmp_path):
    model = bert(tmp_path / "bert")
    specs = [spec.replace("MODEL", str(model)) for spec in SPECS]
    given = json.dumps(
        [str(tmp_path), specs, QUERIES, [(d.doc_id, d.text) for d in corpus.values()]]
    )
    surroundings = os.environ | {"OMP_NUM_THREADS": "2"}
    words = [sys.executable, "-c", ELSEWHERE]
    found = subprocess.run(
        words, input=given, capture_output=True, text=True, check=True, env=surroundings
    )
    built = [retrievers.build(spec, corpus, tmp_path, resources=RunResources()) for spec in specs]
    here = [[retriever.search(query, 5) for query in QUERIES] for retriever in built]
    assert json.loads(found.stdout) == json.loads(json.dumps(here))
