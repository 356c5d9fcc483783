"""Prompts are DSPy's own, to the letter, and what it can read is read as it does; other answers where they can be."""

import asyncio
import enum
import json
import re
import subprocess
import sys
from contextlib import suppress
from typing import Annotated, Any, Literal

import dspy
import pydantic
import pytest
from dspy.utils.exceptions import AdapterParseError
from hypothesis import given, settings
from hypothesis import strategies as st

from sextant.evals.running.request import SYSTEMS
from sextant.evals.running.resolve import try_construct
from sextant.tools.models.prompting import Adapter, Passage
from sextant.tools.plugins import load_object


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Verdict(pydantic.BaseModel):
    id: str
    score: float = pydantic.Field(ge=0, le=1)
    why: str | None = None


TYPES = [
    str, list[str], int, float, bool, Literal["yes", "no"], Literal[1, 2], Colour, Verdict, list[Verdict],
    dict[str, int], int | str, str | int, int | None, str | None, list[int] | None, tuple[int, str], Any, dict,
    dspy.Code, dspy.Reasoning,
]  # fmt: skip


def signature_of(kind):
    """An answer of two fields, the first one of `kind`."""
    fields = {"question": (str, dspy.InputField()), "wanted": (kind, dspy.OutputField())}
    return dspy.Signature(fields | {"words": (str, dspy.OutputField())}, "Answer.")


SIGNATURES = {str(kind): signature_of(kind) for kind in TYPES}
VALUES = [
    "", "yes", "'yes'", 'Literal["no"]', "1", "2", "1.5", "-3e2", "True", "false", "None", "null", "red", "RED",
    "green", '["a", "b"]', "['a', 'b']", '["a", "b"', "[1, 2]", "- a\n- b", '{"id": "d1", "score": 0.5}',
    '{"id": "d1", "score": 7}', '[{"id": "d1", "score": "0.25", "why": null}]', "{'a': 1}", '{"content": "thought"}',
    "(1, 'x')", '```json\n["a"]\n```', "```python\nprint(1)\n```", '"quoted"', "\ud83d\ude00",
    "\u00e9\u2028next line", "[[ ## words ## ]]",
]  # fmt: skip


def outcome(parse, signature, text):
    """What came of parsing: the values with their types, or the error in full."""
    try:
        return repr(parse(signature, text))
    except Exception as error:  # noqa: BLE001  # whatever it is, both have to raise it
        return type(error), str(error)


def assert_read_as_dspy_reads_it(signature, text):
    """DSPy is given each marker on a line of its own: it leaves a part of an indented one in the value."""
    marked = re.sub(r"[ \t]*(\[\[ ## (?:wanted|words|completed) ## \]\])", r"\n\1", text)
    expected, given = (
        outcome(dspy.ChatAdapter().parse, signature, marked),
        outcome(Adapter().parse, signature, text),
    )
    if isinstance(expected, tuple) and isinstance(given, str):  # it cannot read it, and we can
        values = Adapter().parse(signature, text)
        assert values.keys() == signature.output_fields.keys()
        for name, field in signature.output_fields.items():
            pydantic.TypeAdapter(field.annotation).validate_python(values[name])
    elif isinstance(expected, tuple):
        assert given[0] == expected[0], text  # its message has the text
    else:
        assert given == expected, text


@pytest.mark.parametrize("kind", SIGNATURES)
def test_answers_that_dspy_can_read_are_read_as_it_reads_them(kind):
    forms = [
        "[[ ## wanted ## ]]\n{}\n\n[[ ## words ## ]]\nsome\n\n[[ ## completed ## ]]\n",
        "Well.\n[[ ## words ## ]] some\nmore\n  [[ ## wanted ## ]]   {}\n[[ ## wanted ## ]]\nagain",
        "[[ ## wanted ## ]]\n{}",
        "{}",
    ]
    for form in forms:
        for value in VALUES:
            assert_read_as_dspy_reads_it(SIGNATURES[kind], form.replace("{}", value))


@pytest.mark.parametrize("kind", [list[str], dspy.Code], ids=str)
@pytest.mark.parametrize(
    "value", ["[" * 4000 + "]" * 4000, '["' + 'a "b ' * 4_000, "(" * 100_000, "-" * 5000 + "a"]
)
def test_no_answer_is_nested_too_deep_or_too_broken_for_an_end(kind, value):
    text = f"[[ ## wanted ## ]]\n{value}\n\n[[ ## words ## ]]\nsome"
    with suppress(AdapterParseError):
        Adapter().parse(signature_of(kind), text)


def test_a_type_that_cannot_be_hashed_is_read():
    without_hash = Annotated[list[int], []]
    signature = signature_of(list[without_hash])
    read = Adapter().parse(signature, '[[ ## wanted ## ]]\n[["1", 2]]\n[[ ## words ## ]]\nsome')
    assert read == {"wanted": [[1, 2]], "words": "some"}


# What a process has of DSPy, before and after Sextant has answered a call in it.
UNTOUCHED = """
import logging
import sys

import dspy
import dspy.adapters.utils
import dspy.clients.lm


def snapshot():
    held = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("dspy", "pydantic"):
            held[name] = dict(vars(module))
            for member in list(vars(module).values()):
                if isinstance(member, type) and member.__module__.startswith("dspy."):
                    held[name, member.__qualname__] = dict(vars(member))
    return held


before = snapshot()
level = logging.getLogger("dspy.clients.lm").level
adapter = dspy.settings.adapter

from sextant.tools.models import language_model
from sextant.tools.models.answers import checks
from sextant.tools.models.prompting import Adapter

with dspy.context(lm=dspy.utils.DummyLM([{"ids": "[1]"}]), adapter=Adapter()):
    assert dspy.Predict("question -> ids: list[int]")(question="?").ids == [1]
after = snapshot()
for name, members in before.items():
    for member, value in members.items():
        if after[name].get(member) is not value:
            print(name, member)
if logging.getLogger("dspy.clients.lm").level != level or dspy.settings.adapter is not adapter:
    print("settings")
"""


def test_dspy_is_left_as_it_was_for_a_users_own_code():
    script = [sys.executable, "-c", UNTOUCHED]
    ended = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


class Found(dspy.Signature):
    """Find."""

    question: str = dspy.InputField()
    selected: list[str] = dspy.OutputField()
    what_fits: str = dspy.OutputField()


LOOSE = {
    "in one line": '[[ ## selected ## ]] ["d1"] [[ ## what_fits ## ]] all [[ ## completed ## ]]',
    "indented": '  [[ ## selected ## ]]  ["d1"]\n\t[[ ## what_fits ## ]] all',
    "without blanks, in another case": '[[##Selected##]]\n["d1"]\n[[## WHAT_FITS ##]]\nall',
    "in bold": '**[[ ## selected ## ]]**\n["d1"]\n**[[ ## what_fits ## ]]**\nall',
    "JSON behind words": 'By {these}, I say:\n{"selected": ["d1"], "what_fits": "all"}',
    "JSON with other names": '```json\n{"Selected": "d1", "What fits": "all"}\n```',
    "JSON within JSON": '{"answer": {"selected": ["d1"], "what_fits": "all"}}',
}


@pytest.mark.parametrize("form", LOOSE)
def test_fields_in_a_form_of_their_own_are_read(form):
    assert Adapter().parse(Found, LOOSE[form]) == {"selected": ["d1"], "what_fits": "all"}


@pytest.mark.parametrize(
    "text", ["d1 fits, and all.", "selected: d1", '{"selected": ["d1"]}', "I'm sorry, but I can't."]
)
def test_an_answer_without_all_of_its_fields_stays_unread(text):
    with pytest.raises(AdapterParseError):
        Adapter().parse(Found, text)


def test_a_value_by_itself_is_that_of_the_only_field_where_its_type_tells():
    assert Adapter().parse(dspy.Signature("q -> score: float"), "8/10") == {"score": 8.0}
    assert Adapter().parse(dspy.Signature("q -> ids: list[str]"), '```json\n["d1", 2]\n```') == {
        "ids": ["d1", "2"]
    }
    with pytest.raises(AdapterParseError):
        Adapter().parse(dspy.Signature("q -> words"), "rope tram")


def test_calls_are_read_in_the_form_of_a_model_where_dspys_is_asked_for():
    asked = dspy.Signature("q, tools: list[dspy.Tool] -> thought, calls: dspy.ToolCalls")
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "trams"}}\n</tool_call>'
    for answer in (f"I look.\n{call}", f"[[ ## thought ## ]]\nI look.\n[[ ## calls ## ]]\n{call}"):
        read = Adapter().parse(asked, answer)
        [made] = read["calls"].tool_calls
        assert (read["thought"], made.name, made.args) == ("I look.", "search", {"query": "trams"})


LINES = st.sampled_from(
    [
        "[[ ## wanted ## ]]",
        " [[ ## words ## ]] on the line",
        "[[ ## other ## ]]",
        "[[ ## completed ## ]]",
        "",
        *VALUES,
    ]
)


@given(st.sampled_from(sorted(SIGNATURES)), st.lists(LINES | st.text(max_size=8), max_size=8))
@settings(max_examples=100)
def test_lines_in_any_order_are_read_as_dspy_reads_them(kind, lines):
    assert_read_as_dspy_reads_it(SIGNATURES[kind], "\n".join(lines))


def test_fields_with_defaults_and_instructions_that_changed_are_dspys():
    class Lenient(dspy.Signature):
        """Before."""

        question: str = dspy.InputField()
        answer: str = dspy.OutputField()
        votes: int = dspy.OutputField(default=3)
        tags: list[str] = dspy.OutputField(default_factory=list)

    for text in (
        "[[ ## answer ## ]]\nyes",
        "[[ ## votes ## ]]\n4\n[[ ## answer ## ]]\nno",
        "[[ ## votes ## ]]\nx",
    ):
        assert_read_as_dspy_reads_it(Lenient, text)
    first = Adapter().parse(Lenient, "[[ ## answer ## ]]\nyes")["tags"]
    assert first is not Adapter().parse(Lenient, "[[ ## answer ## ]]\nyes")["tags"]
    before = Adapter().format(Lenient, [], {"question": "?"})
    Lenient.instructions = "After."
    after = Adapter().format(Lenient, [], {"question": "?"})
    assert before != after == dspy.ChatAdapter().format(Lenient, [], {"question": "?"})


class Recorder(dspy.LM):
    """A model that keeps what reaches it, and gives one answer."""

    def __init__(self, answer):
        super().__init__("openai/none", cache=False)
        self.answer, self.asked = answer, []

    def __call__(self, prompt=None, *, messages=None, **settings):
        self.asked.append((messages, settings))
        return self.answer

    async def acall(self, prompt=None, *, messages=None, **settings):
        return self(messages=messages, **settings)


class Read(dspy.Signature):
    """Read the passages."""

    passages: list[Passage] = dspy.InputField()
    notes: list[str] = dspy.InputField()
    selected: list[str] = dspy.OutputField()
    observations: str = dspy.OutputField()


class Remember(dspy.Signature):
    """Go on."""

    history: dspy.History = dspy.InputField()
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


READ = {"passages": [Passage(id="d1", text='a "quoted" text\n')], "notes": ["one"]}
ANSWER = '[[ ## selected ## ]]\n["d1"]\n[[ ## observations ## ]]\nfits'
TALK = {"history": dspy.History(messages=[{"question": "?", "answer": "!"}]), "question": "and?"}
DEMO = {"passages": [], "notes": [], "selected": ["d7"], "observations": "x"}
CALLS = {
    "plain": (Read, READ, [], [ANSWER], {}),
    "settings": (
        Read,
        READ,
        [],
        [ANSWER],
        {"temperature": 0.5, "max_tokens": 9, "tools": [], "tool_choice": "auto"},
    ),
    "demonstrations": (Read, READ, [DEMO, {"notes": ["n"], "selected": []}], [ANSWER], {}),
    "several answers": (Read, READ, [], [ANSWER, ANSWER.replace("fits", "fits not")], {"n": 2}),
    "with probabilities": (
        Read,
        READ,
        [],
        [{"text": ANSWER, "logprobs": {"tokens": [1]}}],
        {"logprobs": True},
    ),
    "history": (Remember, TALK, [], ["[[ ## answer ## ]]\nno"], {}),
    "reasoning": (
        dspy.ChainOfThought(Read).predict.signature,
        READ,
        [],
        [f"[[ ## reasoning ## ]]\nso\n{ANSWER}"],
        {},
    ),
    "dspy's own type": (
        *(signature_of(dspy.Reasoning), {"question": "?"}, []),
        *(["[[ ## wanted ## ]]\na\n[[ ## words ## ]]\nb"], {}),
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_sent_and_what_comes_back_is_what_dspys_adapter_sends_and_gives(call):
    signature, inputs, demos, answer, settings = CALLS[call]
    seen = []
    for one in (Adapter(), dspy.ChatAdapter()):
        model, awaited = Recorder(answer), Recorder(answer)
        with dspy.context(lm=model, adapter=one):
            given = one(model, dict(settings), signature, demos, dict(inputs))
            later = asyncio.run(one.acall(awaited, dict(settings), signature, demos, dict(inputs)))
        assert given == later and model.asked == awaited.asked
        seen.append((given, model.asked))
    assert seen[0] == seen[1]


def test_refine_adds_its_advice_to_the_prompt():
    rewards = iter([0.0, 1.0])
    advice = '[[ ## discussion ## ]]\n-\n[[ ## advice ## ]]\n{"self": "name it"}'

    class Advised(Recorder):
        def __call__(self, prompt=None, *, messages=None, **settings):
            super().__call__(messages=messages, **settings)
            return [advice if "[[ ## advice ## ]]" in messages[0]["content"] else ANSWER]

    model = Advised([])
    with dspy.context(lm=model, adapter=Adapter(), trace=[]):
        refined = dspy.Refine(
            dspy.Predict(Read), 2, lambda inputs, answer: next(rewards), threshold=1.0
        )
        assert refined(**READ).selected == ["d1"]
    assert "[[ ## hint_ ## ]]\nname it" in model.asked[-1][0][-1]["content"]


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


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
KINDS = st.fixed_dictionaries(
    {
        "text": TEXT,
        "texts": st.lists(TEXT, max_size=3),
        "number": st.floats(allow_nan=False) | st.integers(),
        "passages": st.lists(st.builds(Passage, id=TEXT, text=TEXT), max_size=3),
        "odd": st.builds(Odd, name=TEXT),
        "listed": TEXT | st.lists(TEXT, max_size=3),
        "anything": st.booleans()
        | st.dictionaries(TEXT | st.integers(), TEXT | st.floats(), max_size=2)
        | st.sampled_from([None, {1, 2}, Adapter]),
    }
)


@given(KINDS, st.lists(KINDS, max_size=2))
def test_every_value_is_written_as_dspy_writes_it(inputs, shown):
    demos = [{**demo, "answer": "yes"} for demo in shown]
    assert Adapter().format(AllKinds, demos, inputs) == dspy.ChatAdapter().format(
        AllKinds, demos, inputs
    )


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_programs_system_message_is_dspys_but_for_schemas_with_references(name):
    note = "must adhere to the JSON schema: "
    for predictor in try_construct(load_object("program", name, SYSTEMS), {}).predictors():
        ours = Adapter().format_system_message(predictor.signature).split("\n")
        theirs = dspy.ChatAdapter().format_system_message(predictor.signature).split("\n")
        for our_line, their_line in zip(ours, theirs, strict=True):
            if "$ref" in their_line:
                their_line = their_line.partition(note)[0]
                our_line = our_line.partition(note)[0]
            assert our_line == their_line


@pytest.mark.parametrize(
    ("answer", "report"),
    [
        (
            {"refusal": "I will not help."},
            "(finish reason refusal), in these words: 'I will not help.'",
        ),
        (
            {"raw": "Not\nthis.", "finish": "content_filter"},
            "(finish reason content_filter), in these words: 'Not this.'",
        ),
        ({"raw": "", "finish": "SAFETY"}, "(finish reason SAFETY) and gave no reason"),
        (
            {"raw": "I'm sorry, but no."},
            '(finish reason stop), in these words: "I\'m sorry, but no."',
        ),
    ],
)
def test_a_model_that_refuses_is_reported_in_its_own_words_and_at_no_line(
    answer, report, run, server, tmp_path
):
    program = (
        tmp_path / f"asks_{tmp_path.name}.py"
    )  # modules of one process need names of their own
    program.write_text(
        "import dspy\n\n\n"
        "class Asks(dspy.Module):\n"
        "    def __init__(self, search):\n"
        "        super().__init__()\n"
        "        self.search, self.ask = search, dspy.Predict('question -> search')\n\n"
        "    def forward(self, question):\n"
        "        return dspy.Prediction(ranking=self.search(self.ask(question=question).search))\n"
    )
    server.answer = lambda prompt: answer
    for name in ("rewrite", "react", f"{program}:Asks"):
        done = run("--program", name, "--task", "congress", "--limit", 1, "--lm", server.spec)
        assert done.code == 7
        file = max(
            (tmp_path / "runs").glob("*/*/outcomes.jsonl"), key=lambda file: file.stat().st_mtime_ns
        )
        error = json.loads(file.read_text())["error"]
        assert error.endswith(f"the model refused to answer {report}"), name
