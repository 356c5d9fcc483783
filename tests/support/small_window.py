"""What a server of a small window answers to prompts that are too long for it."""

import json

from bad_server import Fault, told

from sextant.tools.models.tokens import count_tokens

SPARE = 1.3  # tokens of a small model's tokenizer for each of ours


def call_tools(answer, request):
    """Have an agent search six times, each time for something else."""
    messages = request.body["messages"]
    done = sum(message["role"] == "assistant" for message in messages)
    if not request.body.get("tools") or done == 6:
        return answer
    words = messages[1]["content"].split()[-8 * done - 8 :][:8]
    called = {"name": "search", "arguments": json.dumps({"query": " ".join(words)})}
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"c{done}", "function": called}],
    }
    return answer | {"choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]}


def refusing(window):
    """A server that takes `window` tokens, counts otherwise than we do, and refuses in vLLM's words."""

    def script(number, body):
        asked, answer = (
            int(SPARE * count_tokens(json.dumps(body["messages"]))),
            body["max_tokens"],
        )
        if asked + answer <= window:
            return Fault("fine", spoil=call_tools)
        words = f"maximum context length is {window} tokens. However, you requested {asked + answer} tokens"
        return told(
            "long",
            400,
            f"{words} ({asked} in the messages, {answer} in the completion).",
            "BadRequestError",
        )

    return script
