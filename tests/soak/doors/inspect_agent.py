"""Inspect AI's mock model uses each tool of a set; prints the outcome of its query."""

import json
import sys
from pathlib import Path

from inspect_ai import eval
from inspect_ai.model import ModelOutput, ModelUsage, get_model

import sextant.evals.serving.inspect  # noqa: F401  # registers the tasks

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from tool_set_calls import PARAMETERS, SCHEMAS, script, shape

CALLS = script(strict=True)


def answer(messages, tools, tool_choice, config):
    """Make the next call, with what came of the last one."""
    if messages[-1].role == "tool":
        said, failure = messages[-1].text, messages[-1].error
        text = (failure.message if failure else said).splitlines()[0]
        call = CALLS.send((json.loads(text), failure is not None))
    else:
        described = {tool.name: tool.parameters.model_dump(exclude_none=True) for tool in tools}
        assert {name: shape(schema) for name, schema in described.items()} == SCHEMAS
        call = next(CALLS)
    made = ModelOutput.for_tool_call("mockllm/model", *call)
    made.usage = ModelUsage(input_tokens=100, output_tokens=10, total_tokens=110)
    return made


if __name__ == "__main__":
    model = get_model("mockllm/model", custom_outputs=answer)
    fields = {"split": "dev", "data": "mini", "limit": 1, "parameters": PARAMETERS}
    [log] = eval("sextant/congress", model=model, task_args=fields, display="none")
    assert log.status == "success", log.error
    [score] = log.samples[0].scores.values()
    sys.stdout.write(json.dumps(score.metadata["outcome"]))
