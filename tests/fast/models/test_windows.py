"""How long an answer may be, and how much a model takes: said, asked for, or learnt from a refusal."""

import json
from pathlib import Path

import pytest
from bad_server import Fault, told

from tools.models import prompting

SPARE = 1.3  # tokens of a small model's tokenizer for each of ours


def call_tools(answer, request):
    """Have an agent search six times, each time for something else."""
    messages = request.body["messages"]
    done = sum(message["role"] == "assistant" for message in messages)
    if not request.body.get("tools") or done == 6:
        return answer
    words = messages[1]["content"].split()[-8 * done - 8 :][:8]
    called = {"name": "search", "arguments": json.dumps({"query": " ".join(words)})}
    message = {"role": "assistant", "content": "", "tool_calls": [{"id": f"c{done}", "function": called}]}
    return answer | {"choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]}


def refusing(window):
    """A server that takes `window` tokens, counts otherwise than we do, and refuses in vLLM's words."""

    def script(number, body):
        asked, answer = int(SPARE * prompting.tokens(json.dumps(body["messages"]))), body["max_tokens"]
        if asked + answer <= window:
            return Fault("fine", spoil=call_tools)
        words = (
            f"This model's maximum context length is {window} tokens. However, you requested {asked + answer} tokens"
        )
        return told("long", 400, f"{words} ({asked} in the messages, {answer} in the completion).", "BadRequestError")

    return script


@pytest.mark.parametrize("program", ["tournament", "multihop", "react"])
def test_the_first_refusal_tells_how_much_a_model_takes_and_its_query_is_answered_again(program, run, bad):
    bad.script = refusing(4096)
    job = ("--program", program, "--task", "congress", "--limit", 2, "--max-concurrent", 1, "--lm", bad.spec)
    result = run(*job, "--json")
    assert result.code == 0 and result.json["failed"] == 0 and result.json["shortened"] > 0
    refused = [one for one in bad.tries if one.status == 400]
    assert 1 <= len(refused) <= 4
    assert result.err.count("as its refusal says; --context ") == len(refused)
    config = json.loads((Path(result.json["run"]) / "config.json").read_text())
    assert config["lm"]["max_tokens"] == 4096 and config["lm"]["window"] is None, "what was asked for"
    assert {one.body["max_tokens"] for one in bad.tries if one not in refused} != {4096}, "what is left of the window"
