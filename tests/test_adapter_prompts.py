"""The prompts are DSPy's own, to the letter: what is made once here, and not for every call, changes nothing."""

import dspy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.setup import SYSTEMS, trial
from programs.adapter import Adapter
from programs.passage import Passage
from tools.table import pick


class Odd(pydantic.BaseModel):
    name: str
    parts: list[dict[str, float | None]] = []


class AllKinds(dspy.Signature):
    """Do something with all of these."""

    text: str = dspy.InputField()
    texts: list[str] = dspy.InputField()
    number: float = dspy.InputField()
    passages: list[Passage] = dspy.InputField()
    odd: Odd = dspy.InputField()
    listed: str = dspy.InputField(desc="a text that may come as a list")
    anything: object = dspy.InputField()
    answer: str = dspy.OutputField()


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.fixed_dictionaries(
    {
        "text": words,
        "texts": st.lists(words, max_size=3),
        "number": st.floats(allow_nan=False) | st.integers(),
        "passages": st.lists(st.builds(Passage, id=words, text=words), max_size=3),
        "odd": st.builds(Odd, name=words),
        "listed": words | st.lists(words, max_size=3),
        "anything": st.none()
        | st.booleans()
        | st.dictionaries(words, words, max_size=2)
        | st.just({1, 2})
        | st.just(Adapter),
    }
)


@given(values, st.lists(values, max_size=2))
def test_every_value_is_written_as_dspy_writes_it(inputs, shown):
    demos = [{**demo, "answer": "yes"} for demo in shown]
    assert Adapter().format(AllKinds, demos, inputs) == dspy.ChatAdapter().format(AllKinds, demos, inputs)


def test_instructions_that_are_changed_on_the_signature_itself_are_not_missed():
    class Changing(dspy.Signature):
        """Before."""

        question: str = dspy.InputField()
        answer: str = dspy.OutputField()

    first = Adapter().format(Changing, [], {"question": "?"})
    Changing.instructions = "After."
    second = Adapter().format(Changing, [], {"question": "?"})
    assert first != second == dspy.ChatAdapter().format(Changing, [], {"question": "?"})


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_programs_system_message_is_dspys(name):
    for predictor in trial(pick("program", name, SYSTEMS), {}).predictors():
        assert Adapter().format_system_message(predictor.signature) == dspy.ChatAdapter().format_system_message(
            predictor.signature
        )
