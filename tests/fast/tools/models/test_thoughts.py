"""Thoughts that stand in the text of an answer are reasoning, and no part of the answer, whichever marks they have."""

import json

import dspy
import pytest

from sextant.programs.query_rewriting import RewriteDescription
from sextant.tools.models import language_model
from sextant.tools.models.answers.checks import COMPLETED
from sextant.tools.models.provider_response import part_thoughts
from sextant.tools.models.server_detection import KINDS
from sextant.tools.records import Usage

DRAFT = f"The form is\n[[ ## rewritten ## ]]\nzebras\n\n{COMPLETED}\nNo, rather the real one."
ANSWER = f"[[ ## rewritten ## ]]\nrope tram\n\n{COMPLETED}"


def harmony(thought, answer):
    return f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant<|channel|>final<|message|>{answer}"


WRITTEN = {
    "opened": f"<think>\n{DRAFT}\n</think>\n\n{ANSWER}",
    "opened in the prompt": f"{DRAFT}\n</think>\n\n{ANSWER}",
    "twice": f"<think>{DRAFT}</think>\n{DRAFT}</think>{ANSWER}",
    "with a tag in the thoughts": f"<think>I may write <think> {DRAFT}</think>{ANSWER}",
    "thinking": f"<thinking>{DRAFT}</thinking>\n<answer>{ANSWER}</answer>",
    "in capitals": f"<THINK>{DRAFT}</Think >{ANSWER}",
    "thought": f"<thought>{DRAFT}</thought>{ANSWER}",
    "reasoning": f"<reasoning>{DRAFT}</reasoning>{ANSWER}",
    "Seed": f"<seed:think>{DRAFT}</seed:think>{ANSWER}",
    "Mistral": f"[THINK]{DRAFT}[/THINK]{ANSWER}",
    "Kimi": f"\u25c1think\u25b7{DRAFT}\u25c1/think\u25b7{ANSWER}",
    "OpenThinker": f"<|begin_of_thought|>{DRAFT}<|end_of_thought|><|begin_of_solution|>{ANSWER}<|end_of_solution|>",
    "Cohere": f"<|START_THINKING|>{DRAFT}<|END_THINKING|><|START_RESPONSE|>{ANSWER}<|END_RESPONSE|>",
    "harmony": harmony(DRAFT, ANSWER) + "<|return|>",
    "harmony, opened in the prompt": harmony(DRAFT, ANSWER).removeprefix(
        "<|channel|>analysis<|message|>"
    ),
    "in the field": f"[[ ## rewritten ## ]]\n<think>zebras</think>\nrope tram\n\n{COMPLETED}",
    "in JSON": json.dumps({"rewritten": '<think>"zebras"</think>rope tram'}),
    "before JSON": '<think>{"rewritten": "zebras"}</think>```json\n{"rewritten": "rope tram"}\n```',
    "before JSON, opened in the prompt": '{"rewritten": "zebras"} no</think>{"rewritten": "rope tram"}',
}


def rewritten(model):
    with model.active():
        return dspy.Predict(RewriteDescription)(objective="", description="a tram").rewritten


@pytest.mark.parametrize("form", WRITTEN)
def test_thoughts_in_the_text_are_kept_as_reasoning_and_are_no_answer(form, server, place):
    server.answer = lambda prompt: {"raw": WRITTEN[form]}
    model = language_model.connect(server.spec)
    model.begin(place, Usage())
    assert rewritten(model) == "rope tram" and len(server.requests) == 1
    [(reasoning, outputs)] = model.resources.ledger.answers.query(
        "SELECT reasoning, outputs FROM calls"
    )
    assert "zebras" in reasoning and "zebras" not in outputs


def test_an_answer_with_thoughts_that_an_earlier_version_kept_is_read_without_them(server, place):
    server.answer = lambda prompt: {"raw": ANSWER}
    model = language_model.connect(server.spec)
    model.begin(place, Usage())
    assert rewritten(model) == "rope tram"
    kept = json.dumps([WRITTEN["opened"]])
    model.resources.ledger.answers.query("UPDATE calls SET outputs = ?", [kept])
    assert rewritten(model) == "rope tram" and len(server.requests) == 1


TAGS = """
    think mm:think seed:think seed:cot_budget_reflect antthinking thinking thought thoughts reason reasoning
    reflection scratchpad inner_monologue internal_monologue inner_thoughts analysis chain_of_thought thinking_process
"""
MARKS = {
    "Gemma 4": ("<|channel>thought", "<channel|>"),
    "MedGemma": ("<unused94>thought", "<unused95>"),
    "Apertus": ("<|inner_prefix|>", "<|inner_suffix|>"),
} | {tag: (f"<{tag}>", f"</{tag}>") for tag in TAGS.split()}


@pytest.mark.parametrize("name", MARKS)
def test_thoughts_between_any_marks_that_models_write_are_parted_from_the_answer(name):
    opening, closing = MARKS[name]
    assert part_thoughts(f"{opening}\nzebras{closing}\nrope tram") == ("zebras", "rope tram")
    assert part_thoughts(f"zebras\n{closing}\nrope tram") == ("zebras", "rope tram")


@pytest.mark.parametrize(
    "text",
    [
        ANSWER,
        "1 < 2 and I think so",
        "analysis of trams",
        "a <b>bold</b> word",
        "</thin>",
    ],
)
def test_a_text_without_such_marks_stays_as_it_is(text):
    assert part_thoughts(text) == ("", text)


def test_a_tag_that_the_instruction_asks_for_is_a_field_of_the_answer(server):
    server.answer = lambda prompt: {"raw": "<reasoning>so</reasoning>\n<words>rope tram</words>"}
    with language_model.connect(server.spec).active(), dspy.context(adapter=dspy.XMLAdapter()):
        made = dspy.ChainOfThought("query -> words")(query="?")
    assert (made.reasoning, made.words) == ("so", "rope tram")


def test_tokens_that_end_a_turn_are_no_part_of_it():
    assert part_thoughts("rope tram<|im_end|>\n</s>") == ("", "rope tram")


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("kind", ["llama.cpp", "vllm"])
def test_an_answer_is_ended_at_its_last_line_only_where_the_model_does_not_think_aloud(
    kind, thinks, server
):
    """A draft in the thoughts has that line, too: no stop text and no leaving of the stream may take it for the end."""
    server.answer = lambda prompt: {"raw": f"{DRAFT}</think>{ANSWER}" if thinks else ANSWER}
    model = language_model.connect(
        server.spec, settings=language_model.ModelSettings(structured="off")
    )
    model.lm.transport.server = model.lm.transport.server._replace(kind=KINDS[kind])
    assert [rewritten(model) for _ in range(3)] == ["rope tram"] * 3
    stops = [COMPLETED in request.get("stop", ()) for request in server.requests]
    assert stops == [False, *[kind == "llama.cpp" and not thinks] * 2]
