"""Servers are told apart by what they say of their models, and their window is read where each of them has it."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sextant.tools.models import server_detection
from sextant.tools.models.transport.openai_client import OpenAIClient

# What servers of each kind answered: GET /models, and by its path what else is asked.
VLLM = {
    "object": "list",
    "data": [{"id": "tiny", "object": "model", "owned_by": "vllm", "max_model_len": 4096}],
}
LLAMA = {
    "object": "list",
    "data": [{"id": "x.gguf", "owned_by": "llamacpp", "meta": {"n_ctx_train": 131072}}],
}
OLLAMA = {
    "object": "list",
    "data": [{"id": "tiny", "owned_by": "library"}, {"id": "other", "owned_by": "library"}],
}
LOADED = {
    "models": [{"name": "other", "context_length": 1}, {"name": "tiny", "context_length": 8192}]
}
PROXY = {"data": [{"id": "tiny", "object": "model", "created": 1677610602, "owned_by": "openai"}]}
INFO = {
    "data": [
        {"model_name": "tiny", "litellm_params": {}, "model_info": {"max_input_tokens": 32768}}
    ]
}
ROUTER = {"data": [{"id": "a/b", "context_length": 1}, {"id": "tiny", "context_length": 131072}]}
SERVE = {
    "object": "list",
    "data": [{"owned_by": "HuggingFaceTB", "id": "tiny", "object": "model", "created": 1.0}],
}
ANSWERS = {
    "vllm": ({"/v1/models": VLLM}, 4096),
    "llama.cpp": (
        {"/v1/models": LLAMA, "/props": {"default_generation_settings": {"n_ctx": 2048}}},
        2048,
    ),
    "llama-cpp-python": (
        {"/v1/models": {"data": [{"id": "/m/x.gguf", "owned_by": "me", "permissions": []}]}},
        None,
    ),
    "ollama": ({"/v1/models": OLLAMA, "/api/ps": LOADED}, 8192),
    "litellm": ({"/v1/models": PROXY, "/v1/model/info": INFO}, 32768),
    "transformers": ({"/v1/models": SERVE, "/openapi.json": {"paths": {"/load_model": {}}}}, None),
    "": ({"/v1/models": ROUTER}, 131072),
}


@pytest.fixture
def asked():
    """Serves JSON by path; returns what `find` makes of it and the paths that were asked for."""
    pages, paths = {}, []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            data = json.dumps(pages.get(self.path, {"detail": "Not Found"})).encode()
            self.send_response(200 if self.path in pages else 404)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def ask(found):
        pages.update(found)
        transport = OpenAIClient("tiny", f"http://127.0.0.1:{server.server_port}/v1")
        transport.meet({}, ask=True)
        return transport.server, paths

    yield ask
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_server_is_told_by_what_it_says_of_its_models_and_so_is_its_window(kind, asked):
    pages, window = ANSWERS[kind]
    server, paths = asked(pages)
    assert (server.kind, server.window) == (server_detection.KINDS[kind], window)
    assert len(paths) <= 2


@pytest.mark.parametrize(
    "said", [{}, {"/v1/models": [1]}, {"/v1/models": {"data": [{"id": []}, 3]}}]
)
def test_a_server_that_says_nothing_of_use_is_an_unknown_one(said, asked):
    server, _ = asked(said)
    assert (server.kind.name, server.window) == ("", None)


def test_a_server_that_does_not_answer_in_time_is_an_unknown_one_and_that_is_said(capsys):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        transport = OpenAIClient("tiny", url)
        server = server_detection.detect_server(transport, "tiny", seconds=0.05)
    assert server.kind.name == ""
    assert f"{url} did not answer GET /models within 0.05 s" in capsys.readouterr().err


def test_a_provider_is_known_by_its_address_and_a_model_that_takes_one_word_only_by_its_name():
    known = {
        url: server_detection.server_from_url(f"https://{url}/v1").kind.name
        for url in ("api.openai.com", "x.openai.azure.com")
    }
    assert (
        set(known.values()) == {"openai"}
        and not server_detection.server_from_url("https://notopenai.azure.com/v1").kind.name
    )
    assert server_detection.server_from_url(
        "http://localhost/v1", "openai/gpt-5-mini"
    ).kind.limit == ("max_completion_tokens",)
    assert server_detection.server_from_url("http://localhost/v1", "tiny").kind.limit == (
        "max_tokens",
    )
