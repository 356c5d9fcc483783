"""Successive prompts of a query begin alike, so that a server reads their beginning once."""

from itertools import pairwise, takewhile
from types import SimpleNamespace

import dspy
import pytest
from dspy.adapters.utils import format_field_value
from dspy.utils.callback import BaseCallback

from sextant import environments
from sextant.evals.running.request import SYSTEMS, list_parameters
from sextant.tools.corpus import Corpus
from sextant.tools.models import language_model
from sextant.tools.plugins import load_object
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox

CLASSES = {name: load_object("program", name, SYSTEMS) for name in SYSTEMS}
LAST_IN_THE_PAPER = {"JudgeRequirement": "description"}  # figure 14 of BIRCO
SHORT = 40  # characters; of a number, or the name of a kind


class Prompts(BaseCallback):
    """Keeps the prompts of all calls, each with its signature and inputs."""

    def __init__(self):
        self.calls = {}

    def on_adapter_format_start(self, call_id, instance, inputs):
        self.calls[call_id] = SimpleNamespace(
            signature=inputs["signature"], inputs=dict(inputs["inputs"]), text=""
        )

    def on_adapter_format_end(self, call_id, outputs, exception=None):
        self.calls[call_id].text = "\n".join(message["content"] for message in outputs)

    def pairs(self):
        """Each call with the next one of the same signature."""
        by_signature = {}
        for call in self.calls.values():
            by_signature.setdefault(call.signature.__name__, []).append(call)
        return [pair for calls in by_signature.values() for pair in pairwise(calls)]


def grows(earlier, later):
    """Whether a list only has new items at its end."""
    return isinstance(earlier, list) and earlier and later[: len(earlier)] == earlier


def repeated(earlier, later):
    """How many characters of `later` could have been read before: what is the same, and the longest growing list."""
    same, growing = 0, [0]
    for name, value in earlier.inputs.items():
        if name == LAST_IN_THE_PAPER.get(later.signature.__name__):
            continue
        written = format_field_value(earlier.signature.input_fields[name], value)
        if value == later.inputs[name] and len(written) > SHORT:
            same += len(written)
        elif grows(value, later.inputs[name]):
            growing.append(len(written) - 1)  # without its last bracket
    return len(later.signature.instructions) + same + max(growing)


@pytest.mark.parametrize("name", [name for name, made in CLASSES.items() if made.offline])
def test_what_stays_the_same_or_grows_comes_before_what_changes(name):
    loaded = environments.load("congress", "mini", "dev")
    documents = Corpus(list(loaded.documents.values())[:150])
    index = BM25(documents)
    toolbox = Toolbox(documents, index, others={"bm25": index, "dense": BM25(documents, k1=2.0)})
    given = {"parallel": 1} if "parallel" in list_parameters(CLASSES[name]) else {}
    program = CLASSES[name](toolbox, **given, **({"pool": 5} if CLASSES[name].pooled else {}))
    model = language_model.connect("offline", statistics=index.statistics)
    prompts = Prompts()
    with model.active(), dspy.context(callbacks=[prompts]):
        program(query=loaded.queries[0])
    assert prompts.calls
    for earlier, later in prompts.pairs():
        letters = zip(earlier.text, later.text, strict=False)
        common = list(takewhile(lambda pair: pair[0] == pair[1], letters))
        assert len(common) >= repeated(earlier, later), later.signature
