"""Evaluate Inspect AI's mock model on a task, with a script in the place of a model:

    python examples/trainers/inspect_eval.py
    sextant import logs/NAME.json --task congress --split dev

A real one: inspect eval sextant/congress --model openai/gpt-5-mini -T split=dev --log-format json
"""

import json

from inspect_ai import eval
from inspect_ai.model import ModelOutput, ModelUsage, get_model

import sextant.evals.serving.inspect  # noqa: F401  # registers the tasks; `inspect eval` finds them by itself


def answer(messages, tools, tool_choice, config):
    """Search in the words of the query, select the first document found, and hand in."""
    results = [message for message in messages if message.role == "tool"]
    if not results:
        query = json.loads(next(message for message in messages if message.role == "user").text)[
            "query"
        ]
        call = ("search", {"query": query, "k": 5})
    elif len(results) == 1:
        call = ("select", {"doc_ids": [json.loads(results[0].text)[0]["doc_id"]]})
    else:
        call = ("submit", {})
    made = ModelOutput.for_tool_call("mockllm/model", *call)
    made.usage = ModelUsage(input_tokens=100, output_tokens=10, total_tokens=110)
    return made


if __name__ == "__main__":
    model = get_model("mockllm/model", custom_outputs=answer)
    fields = {"task_args": {"split": "dev"}, "log_format": "json", "display": "none"}
    [log] = eval("sextant/congress", model=model, **fields)
    means = {score.name: round(score.metrics["mean"].value, 4) for score in log.results.scores}
    print(log.status, log.location, json.dumps(means))
