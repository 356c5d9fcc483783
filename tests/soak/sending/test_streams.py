"""A long answer through a gateway that cuts connections on which nothing has come for a while."""

import contextlib
import socket
import threading
from urllib.parse import urlsplit

import dspy
import pytest

from sextant.tools.models import language_model
from sextant.tools.models.call_limits import RetryPolicy
from sextant.tools.models.run_resources import RunResources

SILENCE = 1.0  # seconds; gateways have 60


def pass_on(client, address):
    with client, socket.create_connection(address) as upstream, contextlib.suppress(OSError):
        asked = iter(lambda: client.recv(65536), b"")
        threading.Thread(
            target=lambda: [upstream.sendall(data) for data in asked], daemon=True
        ).start()
        upstream.settimeout(SILENCE)
        try:
            while data := upstream.recv(65536):
                client.sendall(data)
        finally:
            client.shutdown(socket.SHUT_RDWR)  # a close would wait for the thread that reads


@pytest.fixture
def gateway(server):
    url = urlsplit(server.spec.partition("@")[2])
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threading.Thread(
                        target=pass_on, args=(client, (url.hostname, url.port)), daemon=True
                    ).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"tiny@http://127.0.0.1:{listener.getsockname()[1]}/v1"


def test_a_streamed_answer_comes_through_where_a_silent_one_is_cut_off(server, gateway):
    server.answer = lambda prompt: {"raw": "on and on " * 20}

    def ask(stream):
        return language_model.connect(
            gateway,
            RunResources(patience=RetryPolicy(attempts=1)),
            settings=language_model.ModelSettings(stream=stream),
        ).lm("yes?")

    server.pace = 0.1
    assert ask("on") == ["on and on " * 20]
    server.delay = 3 * SILENCE
    with pytest.raises(dspy.LMTransportError, match="closed the connection"):
        ask("off")
