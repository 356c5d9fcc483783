"""A local server that speaks the OpenAI chat protocol, so that the real client, prompts and parser are tested.

It reads the prompt as a model would: which fields are asked for, which passages were shown. What it answers, and
whether it fails, is decided by a function that tests may replace.
"""

import json
import re
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Failure(Exception):
    def __init__(self, status: int, code: str = "", message: str = "no", retry_after: float | None = None) -> None:
        super().__init__(status)
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after


def sensible(prompt: str) -> dict[str, Any]:
    """Fields as a model would fill them: a search of words from the description, the first passage kept."""
    description = re.findall(r"\[\[ ## description ## \]\]\n(.*?)\n\n(?:\[\[|Respond)", prompt, re.S)[-1]
    asked = re.findall(r"starting with the field `\[\[ ## (\w+) ## \]\]`", prompt)[-1]
    words = re.findall(r"[a-z]{5,}", description.lower())
    if asked != "selected":
        return {asked: " ".join(words[:8])}
    shown = re.findall(r'"id": ?"([^"]+)"', prompt)
    return {"selected": json.dumps([shown[0], "an-id-that-was-never-shown"]), "observations": " ".join(words[8:16])}


class OpenAIServer:
    def __init__(self, answer: Callable[[str], dict[str, Any]] = sensible, delay: float = 0.0) -> None:
        self.answer = answer
        self.delay = delay
        self.page: bytes | None = None  # sent instead of any answer, as a gateway would
        self.requests: list[dict[str, Any]] = []
        self.authorizations: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.requests.append(body)
                outer.authorizations.append(self.headers["authorization"])
                time.sleep(outer.delay)
                retry_after = None
                prompt = "\n\n".join(_text(message["content"]) for message in body["messages"])
                try:
                    status, reply = 200, _reply(body["model"], outer.answer(prompt), prompt)
                except Failure as failure:
                    status, retry_after = failure.status, failure.retry_after
                    reply = {"error": {"message": failure.message, "code": failure.code, "type": failure.code}}
                data = outer.page or json.dumps(reply).encode()
                self.send_response(status)
                if retry_after is not None:
                    self.send_header("retry-after", str(retry_after))
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.spec = f"tiny@http://127.0.0.1:{self._server.server_port}/v1"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _reply(model: str, fields: dict[str, Any], prompt: str) -> dict[str, Any]:
    raw = fields.get("raw")
    text = raw or "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in [*fields.items(), ("completed", "")])
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {
            "prompt_tokens": len(prompt) // 4,
            "completion_tokens": len(text) // 4,
            "total_tokens": len(prompt) // 4 + len(text) // 4,
        },
    }
