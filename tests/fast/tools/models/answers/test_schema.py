"""Signatures go to a server that takes JSON schemas as schemas, and whatever form an answer has, it is read."""

import json
from typing import Any

import dspy
import jsonschema
import openai
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_server import Failure, _reply, prompts

from sextant.agents.react import React
from sextant.evals.running.request import SYSTEMS
from sextant.evals.running.resolve import try_construct
from sextant.programs.passage_reading import RankWithReasons
from sextant.programs.pointwise import ThinkThenScore
from sextant.tools.models import language_model
from sextant.tools.models.answers.checks import (
    JSON_FORM,
    MARKER_FORM,
    bound_schema,
    inline_schema,
    make_schema,
    require_known_ids,
    require_known_row_ids,
    schema_constraints,
    state_most_items,
)
from sextant.tools.models.model_spec import ServerInfo
from sextant.tools.models.prompting import Adapter, _system_message
from sextant.tools.models.server_detection import KINDS
from sextant.tools.plugins import load_object

TASK = ("--task", "congress", "--split", "dev", "--limit", "3", "--json")


def answer_by(schema, defs=None):
    """The least that a schema allows, but one element in each list."""
    defs = schema.get("$defs", defs)
    if "$ref" in schema:
        return answer_by(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "enum" in schema:
        return schema["enum"][0]
    kinds = {"string": "[[ ## selected ## ]]\n{}", "number": 0.5, "integer": 1, "boolean": True}
    if schema["type"] == "array":
        return [answer_by(schema["items"], defs)]
    if schema["type"] == "object":
        return {name: answer_by(one, defs) for name, one in schema["properties"].items()}
    return kinds[schema["type"]]


class Condition(pydantic.BaseModel):
    """A condition of a plan."""

    search: str = pydantic.Field(description="a search text")
    weight: float = 1.0


class Plan(pydantic.BaseModel):
    title: str
    conditions: list[Condition]


class Tree(pydantic.BaseModel):
    children: list["Tree"]


plans = st.builds(
    Plan, title=st.text(), conditions=st.lists(st.builds(Condition, search=st.text()))
)


@given(plans, st.sampled_from(["title", "conditions", "search"]))
def test_a_schema_without_references_takes_and_refuses_what_pydantics_takes_and_refuses(plan, name):
    inlined = inline_schema(list[Plan])
    assert "$" not in json.dumps(inlined)
    value = [plan.model_dump()]
    changed = json.loads(json.dumps(value).replace(f'"{name}":', '"other":'))
    for example in (value, changed):
        by_pydantic = jsonschema.Draft202012Validator(
            pydantic.TypeAdapter(list[Plan]).json_schema()
        )
        by_ours = jsonschema.Draft202012Validator(inlined)
        assert by_ours.is_valid(example) == by_pydantic.is_valid(example)


def test_a_type_that_contains_itself_keeps_its_references():
    assert inline_schema(Tree) is None


@pytest.mark.parametrize("structured", [False, True])
def test_prompts_show_the_schema_of_a_field_without_references(structured):
    class Split(dspy.Signature):
        """Split a request."""

        request: str = dspy.InputField()
        plan: list[Condition] = dspy.OutputField()

    form = JSON_FORM if structured else MARKER_FORM
    with_references = form.format_system_message(Split)
    assert "$ref" in with_references
    prompt = _system_message(form, Split, Split.__doc__)
    assert "$ref" not in prompt and "a search text" in prompt
    assert len(prompt) < len(with_references)


def bare(schema):
    """The schema without titles and defaults, which OpenAI's own function leaves in it."""
    if not isinstance(schema, dict):
        return schema
    return {name: bare(one) for name, one in schema.items() if name not in ("title", "default")}


# The calls of agents with tools have no strict schema.
STRICT = [name for name in SYSTEMS if not issubclass(load_object("program", name, SYSTEMS), React)]


@pytest.mark.parametrize("name", STRICT)
def test_every_programs_signature_has_openais_strict_schema_and_an_answer_by_it_is_read(name):
    for predictor in try_construct(load_object("program", name, SYSTEMS), {}).predictors():
        fields = predictor.signature.output_fields
        told = {
            key: (one.annotation, pydantic.Field(description=one.json_schema_extra["desc"]))
            for key, one in fields.items()
        }
        theirs = openai.pydantic_function_tool(pydantic.create_model("Answer", **told))["function"][
            "parameters"
        ]
        schema = make_schema(predictor.signature)
        assert schema == bare(theirs) and list(schema["properties"]) == list(fields)
        answer = answer_by(schema)
        jsonschema.validate(answer, schema)
        read = Adapter().parse(predictor.signature, f"```json\n{json.dumps(answer, indent=1)}\n```")
        assert list(read) == list(fields) and pydantic.TypeAdapter(Any).dump_python(read) == answer


@pytest.mark.parametrize(
    "kind", [dspy.ToolCalls, list[dspy.Code], dict[str, Any], list[Any], tuple[int, str], object]
)
def test_what_a_strict_schema_cannot_say_is_asked_for_in_markers(kind):
    assert (
        make_schema(
            dspy.Signature({"q": (str, dspy.InputField()), "a": (kind, dspy.OutputField())})
        )
        is None
    )


def by_schema(path, body):
    answer = answer_by(body["response_format"]["json_schema"]["schema"])
    return _reply(
        "tiny",
        {"raw": json.dumps(answer | {"selected": []} if "selected" in answer else answer)},
        "prompt",
    )


def test_a_program_asks_by_schemas_for_json_and_every_answer_is_usable(run, server):
    server.reply = by_schema
    result = run("--program", "multihop", *TASK, "--lm", server.spec, "--structured", "on")
    assert result.code == 0 and result.json["usage"]["repairs"] == 0, result.err
    assert all(
        "Respond with a JSON object" in prompt and "completed" not in prompt
        for prompt in prompts(server)
    )


@pytest.mark.parametrize("when", ["auto", "on"])
def test_a_server_that_refuses_schemas_is_asked_in_markers_from_then_on_or_where_they_are_wanted_not_at_all(
    when, run, server, monkeypatch
):
    answer = server.reply

    def refuse(path, body):
        if "response_format" in body:
            raise Failure(400, "", "response_format is not supported")
        return answer(path, body)

    server.reply = refuse
    monkeypatch.setattr(language_model.LanguageModel, "server", ServerInfo(KINDS["vllm"]))
    result = run(
        "--program",
        "multihop",
        *TASK,
        "--lm",
        server.spec,
        "--structured",
        when,
        "--max-concurrent",
        1,
    )
    sent = ["response_format" in body for body in server.requests]
    if when == "on":
        assert result.code == 4 and all(sent) and "leave out --structured on" in result.err
    else:
        assert (
            result.code == 0
            and sum(sent) == sent[0]
            and result.err.count("takes no JSON schema") == 1
        )


@pytest.mark.parametrize("finish", ["length", "stop"])
def test_an_answer_that_ran_away_is_not_shown_again_and_is_bounded_where_a_grammar_can_do_that(
    finish, run, server, monkeypatch
):
    def run_away(path, body):
        again = len(body["messages"]) > 2 or "Keep the answer short" in str(body["messages"])
        said = {"raw": '{"rewritten": "a"}'} if again else {"raw": "word " * 5000, "finish": finish}
        return _reply("tiny", said, "?")

    server.reply = run_away
    monkeypatch.setattr(language_model.LanguageModel, "server", ServerInfo(KINDS["vllm"]))
    job = (
        "--program",
        "rewrite",
        *TASK,
        "--lm",
        server.spec,
        "--max-tokens",
        1000,
        "--max-concurrent",
        1,
    )
    assert run(*job).code == 0
    for body in server.requests[1::2]:
        shown = str(body["messages"]).count("word word")
        assert shown == 0 if finish == "length" else shown < 2100
        # The room is shared with the rationale.
        text = body["response_format"]["json_schema"]["schema"]["properties"]["rewritten"]
        assert text.get("maxLength") == (250 if finish == "length" else 1500)


@pytest.mark.parametrize("kind", ["vllm", "llama.cpp"])
@pytest.mark.parametrize(
    "words", [("rank",), ("decompose",), ("subtask", "-P", "pool=5", "-P", "ties=bm25")]
)
def test_behind_a_server_with_bounds_the_least_that_a_schema_allows_is_a_usable_answer(
    words, kind, run, server, monkeypatch
):
    def least(path, body):
        schema = body["response_format"]["json_schema"]["schema"]
        empty = {
            name: []
            for name, one in schema["properties"].items()
            if "items" in one and not one.get("minItems")
        }
        return _reply("tiny", {"raw": json.dumps(answer_by(schema) | empty)}, "prompt")

    server.reply = least
    monkeypatch.setattr(language_model.LanguageModel, "server", ServerInfo(KINDS[kind]))
    result = run("--program", *words, *TASK, "--lm", server.spec)
    assert result.code == 0 and result.json["usage"]["repairs"] == 0, result.err


def test_a_list_of_ids_has_each_of_them_once_at_most_and_no_others():
    class Select(dspy.Signature):
        """Select."""

        passages: list[str] = dspy.InputField()
        selected: list[str] = dspy.OutputField()

    constraints = schema_constraints([require_known_ids("selected", ["d2", "d1", "d3"])])
    for brief in (False, True):
        schema = bound_schema(make_schema(Select), 1000, constraints, brief=brief)
        selected = schema["properties"]["selected"]
        assert (selected["items"]["enum"], selected["maxItems"]) == (["d1", "d2", "d3"], 3)


def test_texts_of_a_list_that_is_stated_to_be_short_share_the_characters_of_an_answer():
    constraints = schema_constraints([state_most_items("quotes", 3)])
    schema = bound_schema(
        make_schema(ThinkThenScore), 4096, constraints, brief=False, good_tokens=1000
    )
    quotes = schema["properties"]["quotes"]
    assert quotes["maxItems"] == 3
    assert quotes["items"]["maxLength"] == 3 * 1000 // 3
    assert schema["properties"]["thinking"]["maxLength"] == 4096 * 3 // 2


def test_reasons_of_ranked_passages_share_the_characters_of_an_answer():
    doc_ids = [f"d{number}" for number in range(10)]
    constraints = schema_constraints([require_known_row_ids("ranked", doc_ids)])
    schema = bound_schema(
        make_schema(RankWithReasons), 4096, constraints, brief=False, good_tokens=1000
    )
    row = schema["$defs"]["RankedPassage"]["properties"]
    assert row["id"]["enum"] == doc_ids
    assert (
        row["reason"]["maxLength"] == 3 * 1000 // 10 - 60
    )  # for the id, and JSON's own characters
