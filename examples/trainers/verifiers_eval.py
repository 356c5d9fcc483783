"""Evaluate a script in the place of a model, in verifiers' own evaluator, over our taskset:

    python examples/trainers/verifiers_eval.py

A real model: PYTHONPATH=examples/trainers vf-eval sextant_tasks -m MODEL
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import verifiers.v1 as vf
from mcp import Client
from openai import AsyncOpenAI
from verifiers.v1.cli.eval.main import main
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.runtimes import ProgramResult

__all__ = ["LoopHarness"]


class LoopHarness(vf.Harness[HarnessConfig]):
    """Calls the model, and the tools that it asks for, in this process."""

    SUPPORTS_MCP = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None
    ):
        model, messages = (
            AsyncOpenAI(base_url=endpoint, api_key=secret),
            [{"role": "user", "content": data.prompt}],
        )
        [url] = mcp_urls.values()
        async with Client(url) as tools:
            listed = (await tools.list_tools()).tools
            named = [{"name": tool.name, "parameters": tool.input_schema} for tool in listed]
            functions = [{"type": "function", "function": one} for one in named]
            while True:
                answer = await model.chat.completions.create(
                    model=ctx.model, messages=messages, tools=functions
                )
                message = answer.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    return ProgramResult(0, "", "")
                for call in message.tool_calls:
                    result = await tools.call_tool(
                        call.function.name, json.loads(call.function.arguments)
                    )
                    messages.append(
                        {"role": "tool", "tool_call_id": call.id, "content": result.content[0].text}
                    )


class Script(BaseHTTPRequestHandler):
    """A model's server: it searches in the words of the query, and stops without handing in."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", "content": "done"}
        if len(asked["messages"]) == 1:
            arguments = json.dumps(
                {"query": json.loads(asked["messages"][0]["content"])["query"], "k": 20}
            )
            call = {
                "id": "1",
                "type": "function",
                "function": {"name": "search", "arguments": arguments},
            }
            message |= {"content": None, "tool_calls": [call]}
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "stop" if message["content"] else "tool_calls",
        }
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": "script",
            "choices": [choice],
        }
        text = json.dumps(body | {"usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    here = str(Path(__file__).parent)
    sys.path.insert(0, here)  # where the taskset and the harness are found by name
    os.environ |= {"SCRIPT_KEY": "none", "PYTHONPATH": here}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Script)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/v1"
    words = [
        "sextant_tasks",
        "--env.taskset.tools.data",
        "mini",
        "--env.agent.harness.id",
        "verifiers_eval",
    ]
    words += ["--env.agent.runtime.type", "subprocess"]
    words += [
        "-m",
        "script",
        "--client.base-url",
        address,
        "--client.api-key-var",
        "SCRIPT_KEY",
        "--no-push",
    ]
    main([*words, "--no-rich", "-n", "4", "-o", "outputs", "--run.dir", "script"])
    episodes = map(json.loads, Path("outputs/script/traces.jsonl").read_text().splitlines())
    print(json.dumps({one["task"]["data"]["id"]: one["traces"][0]["rewards"] for one in episodes}))
