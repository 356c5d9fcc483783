"""Every program ranks with a model of a small window: its largest prompt leaves room for an answer."""

import re
from types import SimpleNamespace

import dspy
import pytest
from dspy.utils.callback import BaseCallback

from sextant import environments
from sextant.evals.running.request import SYSTEMS
from sextant.tools.corpus import Corpus
from sextant.tools.models import language_model
from sextant.tools.models.model_spec import ModelSettings
from sextant.tools.models.prompting import PromptTooLong
from sextant.tools.models.tokens import count_prompt_tokens
from sextant.tools.plugins import load_object
from sextant.tools.records import SURFACING
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox

CLASSES = {name: load_object("program", name, SYSTEMS) for name in SYSTEMS}
ANSWER = 64  # tokens, at least
LISTWISE = ("rank", "tournament")
TOO_LARGE = ("grep", "pages", "planner", "react")  # for 1,024 tokens, with the congress objective


class Prompts(BaseCallback):
    """Keeps how many tokens each prompt has."""

    def __init__(self):
        self.sizes = []

    def on_lm_start(self, call_id, instance, inputs):
        self.sizes.append(count_prompt_tokens(inputs["messages"]))


@pytest.fixture(scope="module")
def mini():
    loaded = environments.load("congress", "mini", "dev")
    documents = Corpus(list(loaded.documents.values())[:150])
    index = BM25(documents)
    toolbox = Toolbox(documents, index, others={"bm25": index, "dense": BM25(documents, k1=2.0)})
    return SimpleNamespace(query=loaded.queries[0], toolbox=toolbox, statistics=index.statistics)


def answer(mini, name, window):
    # A call of a listwise program has many documents of its pool, of the others one.
    small = {"pool": 5} if CLASSES[name].pooled and name not in LISTWISE else {}
    program = CLASSES[name](mini.toolbox, **small)
    settings = ModelSettings(context=window)
    model = language_model.connect("offline", statistics=mini.statistics, settings=settings)
    prompts = Prompts()
    with model.active(), dspy.context(callbacks=[*dspy.settings.callbacks, prompts]):
        return program(query=mini.query), prompts.sizes


ASKING = [name for name, made in CLASSES.items() if made.offline]
SMALL = [(name, 2048) for name in ASKING]
SMALLEST = [(name, 1024) for name in ASKING if name not in TOO_LARGE]


@pytest.mark.parametrize(("name", "window"), SMALL + SMALLEST)
def test_it_ranks_with_a_model_that_takes_little(name, window, mini):
    submission, sizes = answer(mini, name, window)
    surfaced = any(step.tool in SURFACING for step in submission.trace.steps)
    assert surfaced and (submission.ranking or name == "closed_book")
    assert max(sizes) + ANSWER <= window


@pytest.mark.parametrize("name", LISTWISE)
def test_fewer_documents_share_a_call_where_the_shortest_texts_do_not_fit(name, mini):
    submission, _ = answer(mini, name, 1024)
    notes = [step.argument for step in submission.trace.steps if step.tool == "shorten"]
    assert any(re.fullmatch(r"passages: \d+ in a call in place of 20", note) for note in notes)
    assert len(submission.ranking) == 100


@pytest.mark.parametrize("name", TOO_LARGE)
def test_where_no_prompt_fits_the_error_says_by_how_much(name, mini):
    with pytest.raises(PromptTooLong, match=r"\d+ tokens larger than what the model takes"):
        answer(mini, name, 1024)
