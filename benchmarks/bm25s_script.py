"""A search evaluation as most people would write it: bm25s, PyStemmer and pytrec_eval, from the
files to nDCG@10. `benchmarks.whole` holds `sextant run` against it.

    python benchmarks/bm25s_script.py FOLDER    # a data folder in OBLIQ-Bench's layout
"""

import gzip
import json
import sys
from pathlib import Path

import bm25s
import pytrec_eval
import Stemmer

congress = Path(sys.argv[1]) / "tip-of-tongue" / "congress"
with gzip.open(congress / "corpus" / "corpus.jsonl.gz", "rt") as file:
    corpus = [json.loads(line) for line in file]
queries = [json.loads(line) for line in (congress / "queries+qrels" / "queries.jsonl").open()]
qrels: dict[str, dict[str, int]] = {}
for line in (congress / "queries+qrels" / "qrels.tsv").read_text().splitlines()[1:]:
    query_id, doc_id, grade = line.split("\t")
    qrels.setdefault(query_id, {})[doc_id] = int(grade)

options = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
index = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
index.index(bm25s.tokenize([row["text"] for row in corpus], **options), show_progress=False)
words = bm25s.tokenize([row["text"] for row in queries], **options)
documents, scores = index.retrieve(words, k=1000, show_progress=False)

run = {}
for query, found, values in zip(queries, documents.tolist(), scores.tolist(), strict=True):
    run[query["_id"]] = {
        corpus[row]["_id"]: score for row, score in zip(found, values, strict=True)
    }
measured = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut_10"}).evaluate(run)
mean = sum(values["ndcg_cut_10"] for values in measured.values()) / len(queries)
sys.stdout.write(f"nDCG@10 {mean:.4f}\n")
