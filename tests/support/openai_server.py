"""A local server that speaks the OpenAI protocol, so that the real client, prompts and parser are tested.

It reads the prompt as a model would: which fields are asked for, which passages were shown. Embeddings are sums of a
vector a word. What it answers, and whether it fails, is decided by functions that tests may replace.
"""

import base64
import json
import re
import threading
import time
import zlib
from collections.abc import Callable
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np


class Failure(Exception):
    def __init__(
        self, status: int, code: str = "", message: str = "no", retry_after: float | None = None
    ) -> None:
        super().__init__(status)
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after


def prompts(server: "OpenAIServer") -> list[str]:
    """The messages of each request as one text."""
    return [
        "\n\n".join(_text(message["content"]) for message in body["messages"])
        for body in server.requests
    ]


def asked(prompt: str) -> str:
    """The first output field that a prompt asks for: which signature it is."""
    return re.findall(
        r"(?:starting with the field `\[\[ ## |in the following order of fields: `)(\w+)", prompt
    )[-1]


def given(prompt: str, field: str) -> str:
    """What an input field of a prompt holds."""
    return re.findall(rf"\[\[ ## {field} ## \]\]\n(.*?)\n\n(?:\[\[|Respond)", prompt, re.S)[-1]


def ids(prompt: str) -> list[str]:
    """The documents in a prompt, in order."""
    return re.findall(r'"id": ?"([^"]+)"', prompt)


def sensible(prompt: str) -> dict[str, Any]:
    """Fields as a model would fill them: a search of words from the description, the first passage kept."""
    field = asked(prompt)
    words = re.findall(r"[a-z]{5,}", given(prompt, "description").lower())
    if field != "selected":
        return {field: " ".join(words[:8])}
    selected = [ids(prompt)[0], "an-id-that-was-never-shown"]
    return {"selected": json.dumps(selected), "observations": " ".join(words[8:16])}


def annotate(prompt: str) -> dict[str, Any]:
    """An annotation of every passage of a lens's prompt."""
    shown = ids(prompt.rpartition("[[ ## passages ## ]]")[2])
    return {"annotations": json.dumps([{"id": one, "text": f"a note of {one}"} for one in shown])}


def fill(prompt: str) -> dict[str, Any]:
    """What a model might say, longer than the engine without a model: by the names of the fields, or by tools."""
    described = given(prompt, "description") if "## description ##" in prompt else prompt
    about = re.findall(r"[a-z]{5,}", described.lower())
    said = " ".join(about[:30])
    if "[[ ##" not in prompt:  # a conversation with tools
        turn = prompt.count('"doc_id"')
        if "grep for" in prompt:  # as agents/grep.py tells it
            return {"tool_calls": [("grep", {"pattern": f"(?i){about[turn % 7]}"})]}
        return {"tool_calls": [("search", {"query": " ".join(about[turn % 7 : turn % 7 + 6])})]}
    shown = list(dict.fromkeys(ids(prompt)))
    listed = prompt.partition("Your output fields are:")[2].partition("All interactions")[0]
    earlier = len(
        re.findall(r'"', (re.findall(r"earlier_searches ## \]\]\n(.*)", prompt) or [""])[-1])
    )
    earlier += int((re.findall(r"## hop ## \]\]\n(\d+)", prompt) or ["0"])[-1])
    varied = [
        " ".join(about[n + earlier : n + earlier + 5]) or f"{said} {n} {earlier}" for n in range(3)
    ]
    ways = [{"question": said, "search": text} for text in varied]
    values = {
        "search": varied[0],
        "selected": json.dumps(shown[:3]),
        "observations": said,
        "ranked": json.dumps(shown[::-1]),
        "quotes": json.dumps([said]),
        "score": "4",
        "requirements": json.dumps(varied),
        "searches": json.dumps(varied),
        "judgements": json.dumps([{"id": one, "grade": 2, "evidence": said} for one in shown[:2]]),
        "plan": json.dumps(ways),
        "further": json.dumps(ways),
        "subqueries": json.dumps(
            [{"search": text, "reading": text, "role": "may", "weight": 0.5} for text in varied]
        ),
    }
    return {
        name: values.get(name, said) for name in re.findall(r"^\d+\. `(\w+)`", listed, re.MULTILINE)
    }


def bag_of_words(texts: list[str]) -> np.ndarray:
    """A vector of 24 numbers for each text: the mean of one a word, so that texts with common words are near."""
    return np.array(
        [
            np.mean([_word(word) for word in re.findall(r"\w+", text.lower()) or [""]], axis=0)
            for text in texts
        ]
    )


@cache
def _word(word: str) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(word.encode())).standard_normal(24)


def embeddings(request: dict[str, Any], vectors: np.ndarray) -> dict[str, Any]:
    """The answer to a request for embeddings, in the encoding that it asks for."""
    written = [vector.astype("<f4") for vector in vectors]
    if request.get("encoding_format") == "base64":
        data = [base64.b64encode(vector.tobytes()).decode() for vector in written]
    else:
        data = [vector.tolist() for vector in written]
    tokens = sum(len(text.split()) for text in request["input"])
    return {
        "object": "list",
        "model": request["model"],
        "data": [
            {"object": "embedding", "index": index, "embedding": one}
            for index, one in enumerate(data)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def streamed(reply: dict[str, Any], letters: int = 7) -> list[bytes]:
    """The events of a stream that says the same as a reply of Chat Completions, a few letters at a time."""
    [choice], about = reply["choices"], {**reply, "object": "chat.completion.chunk", "usage": None}

    def parts(text: str) -> list[str]:
        return [text[at : at + letters] for at in range(0, len(text), letters)]

    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning_content", "refusal", "content"):
        deltas += [{name: part} for part in parts(choice["message"].get(name) or "")]
    for index, call in enumerate(choice["message"].get("tool_calls") or ()):
        function = call["function"]
        deltas.append(
            {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}
        )
        more = [
            {"index": index, "function": {"arguments": part}}
            for part in parts(function["arguments"])
        ]
        deltas += [{"tool_calls": [one]} for one in more]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]})
    events = [about | {"choices": [one]} for one in choices] + [
        about | {"choices": [], "usage": reply.get("usage")}
    ]
    return [f"data: {json.dumps(event)}\n\n".encode() for event in events] + [b"data: [DONE]\n\n"]


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # connections at once; by default 5, and others wait for seconds


class OpenAIServer:
    def __init__(
        self, answer: Callable[[str], dict[str, Any]] = sensible, delay: float = 0.0
    ) -> None:
        self.answer = answer
        self.delay = delay
        self.pace = 0.0  # seconds from one event of a stream to the next
        self.embed: Callable[[list[str]], np.ndarray] = bag_of_words
        self.spoil: Callable[[dict[str, Any]], dict[str, Any]] = lambda reply: (
            reply
        )  # what is done to embeddings
        self.page: bytes | None = None  # sent instead of any answer, as a gateway would
        self.requests: list[dict[str, Any]] = []
        self.authorizations: list[str] = []
        self.headers: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = (
                True  # head and body are sent apart, and the second would wait 40 ms
            )

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.requests.append(body)
                outer.authorizations.append(self.headers["authorization"])
                outer.headers.append(dict(self.headers))
                time.sleep(outer.delay)
                retry_after = None
                try:
                    status, reply = 200, outer.reply(self.path, body)
                except ConnectionResetError:  # nothing is sent back
                    self.close_connection = True
                    return
                except Failure as failure:
                    status, retry_after = failure.status, failure.retry_after
                    reply = {
                        "error": {
                            "message": failure.message,
                            "code": failure.code,
                            "type": failure.code,
                        }
                    }
                streams = body.get("stream") and status == 200 and not outer.page
                pieces = streamed(reply) if streams else [outer.page or json.dumps(reply).encode()]
                self.send_response(status)
                if retry_after is not None:
                    self.send_header("retry-after", str(retry_after))
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(sum(map(len, pieces))))
                self.end_headers()
                for piece in pieces:
                    self.wfile.write(piece)
                    time.sleep(outer.pace)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # a client that went away is no news
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.spec = f"tiny@http://127.0.0.1:{self._server.server_port}/v1"

    def reply(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/embeddings"):
            return self.spoil(embeddings(body, self.embed(body["input"])))
        prompt = "\n\n".join(_text(message["content"]) for message in body["messages"])
        return _reply(body["model"], self.answer(prompt), prompt)

    def answer_in_turn(self, *answers: dict[str, Any]) -> None:
        """Give each request the next of these answers."""
        remaining = iter(answers)
        self.answer = lambda prompt: next(remaining)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _text(content: Any) -> str:
    return (
        content
        if isinstance(content, str)
        else "".join(part.get("text", "") for part in content or ())
    )


def _reply(model: str, fields: dict[str, Any], prompt: str) -> dict[str, Any]:
    """`raw` is the text as it is; `tool_calls` has (name, arguments), `finish` and `refusal` what the protocol has."""
    fields = dict(fields)
    calls, finish, refusal = (
        fields.pop("tool_calls", None),
        fields.pop("finish", "stop"),
        fields.pop("refusal", None),
    )
    raw = fields.pop("raw", "" if calls or refusal else None)
    text = raw
    if text is None:
        text = "\n\n".join(
            f"[[ ## {name} ## ]]\n{value}" for name, value in [*fields.items(), ("completed", "")]
        )
    message = {"role": "assistant", "content": text}
    if refusal:
        message["refusal"] = refusal
    if calls:
        written = [
            (name, given if isinstance(given, str) else json.dumps(given)) for name, given in calls
        ]
        message["tool_calls"] = [
            {
                "id": f"call-{number}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for number, (name, arguments) in enumerate(written)
        ]
    choice = {"index": 0, "finish_reason": "tool_calls" if calls else finish, "message": message}
    used = {"prompt_tokens": len(prompt) // 4, "completion_tokens": len(text) // 4}
    usage = used | {"total_tokens": sum(used.values())}
    about = {"id": "x", "object": "chat.completion", "created": 1, "model": model}
    return about | {"choices": [choice], "usage": usage}
