"""Compiling `multihop` as most people would: DSPy's model with its cache, its Evaluate and its
teleprompter. `benchmarks.compiling` holds `sextant compile` against it.

    python benchmarks/dspy_compile_script.py TELEPROMPTER FOLDER QUERIES URL CACHE

TELEPROMPTER is bootstrap, mipro or gepa, with the options of `--budget light`. The program, its
index, and the division of the queries are those of `sextant compile`.
"""

import hashlib
import math
import sys
from pathlib import Path
from typing import Any

import dspy
from dspy.teleprompt.gepa import InstructionProposer

from sextant import environments
from sextant.programs.multihop import MultiHop
from sextant.tools import retrievers
from sextant.tools.platform.files import sextant_home
from sextant.tools.session import Toolbox

name, folder, count, url, cache = sys.argv[1:]
dspy.configure_cache(disk_cache_dir=cache)
lm = dspy.LM("openai/tiny", api_base=url, api_key="none", temperature=0.0)
dspy.configure(lm=lm, adapter=dspy.ChatAdapter())

dev = environments.load("congress", folder, "dev")
by_hash = sorted(
    dev.queries, key=lambda query: hashlib.sha256(f"0:{query.query_id}".encode()).digest()
)[: int(count)]
examples = [
    dspy.Example(query=query, query_id=query.query_id).with_inputs("query") for query in by_hash
]
train = examples[: len(examples) // 2]
validation = examples[len(examples) // 2 :]
index = retrievers.build("bm25", dev.documents, sextant_home())
program = MultiHop(Toolbox(dev.documents, index))
evaluations = 0


def discount(gains: list[float]) -> float:
    """The sum of gains, each over the logarithm of its rank."""
    return sum(gain / math.log2(rank + 2) for rank, gain in enumerate(gains))


def metric(example: Any, prediction: Any, *_: Any) -> float:
    """nDCG@10 of a ranking."""
    global evaluations
    evaluations += 1
    grades = dev.qrels[example.query_id]
    gains = [grades.get(doc_id, 0) for doc_id in prediction.ranking[:10]]
    return discount(gains) / discount(sorted(grades.values(), reverse=True)[:10])


def metric_with_words(example: Any, prediction: Any, *_: Any) -> Any:
    """The same with feedback, as GEPA needs it."""
    relevant = dev.qrels[example.query_id]
    missed = [doc_id for doc_id in relevant if doc_id not in prediction.ranking[:10]]
    words = f"{len(missed)} of {len(relevant)} relevant documents are not among the first ten."
    return dspy.Prediction(score=metric(example, prediction), feedback=words)


evaluate = dspy.Evaluate(devset=validation, metric=metric, num_threads=8, display_progress=False)
before = evaluate(program).score / 100
demonstrations: dict[str, Any] = {
    "metric": metric,
    "metric_threshold": max(before, 0.02),
    "max_bootstrapped_demos": 2,
    "max_labeled_demos": 0,
}
if name == "bootstrap":
    compiled = dspy.BootstrapFewShot(**demonstrations).compile(program, trainset=train)
elif name == "mipro":
    compiled = dspy.MIPROv2(
        **demonstrations, auto=None, num_candidates=4, num_threads=8, seed=0
    ).compile(
        program,
        trainset=train,
        valset=validation,
        num_trials=12,
        minibatch=False,
    )
else:
    compiled = dspy.GEPA(
        metric=metric_with_words,
        max_full_evals=6,
        reflection_minibatch_size=3,
        reflection_lm=lm,
        instruction_proposer=InstructionProposer(adapter=dspy.ChatAdapter()),
        num_threads=8,
        seed=0,
    ).compile(program, trainset=train, valset=validation)
after = evaluate(compiled).score / 100
compiled.save(Path(cache) / f"{name}.json")
sys.stdout.write(f"nDCG@10 {before:.4f} -> {after:.4f}, {evaluations} evaluations\n")
