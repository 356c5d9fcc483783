"""Many calls at once: what our lean connection to a server sends and makes of the answers, beside DSPy's own client."""

import copy
import socket
import time

import dspy
import pytest
from openai_server import Failure

from sextant.tools.models import language_model
from sextant.tools.models.call_limits import RetryPolicy
from sextant.tools.models.provider_errors import responsible_party
from sextant.tools.models.run_resources import RunResources
from sextant.tools.records import Usage


@pytest.fixture(autouse=True)
def own_key(monkeypatch):
    monkeypatch.setenv("SEXTANT_API_KEY", "key")


def url(server):
    return server.spec.partition("@")[2]


def ours(address):
    settings, once = language_model.ModelSettings(temperature=0.0, seed=7), RetryPolicy(attempts=1)
    model = language_model.connect(
        f"tiny@{address}", RunResources(patience=once), settings=settings
    ).lm
    model.resources.answered_before = (
        True  # else a request that is refused ends the run: tools/models/client.py
    )
    return model


def dspys(address):
    """The client that DSPy makes by itself: the reference."""
    options = {"engine": "lm15", "api_base": address, "api_key": "key"}
    return dspy.LM("openai/tiny", cache=False, num_retries=0, temperature=0.0, seed=7, **options)


def soon():
    return time.monotonic() + 60


@pytest.fixture
def answering(server):
    """A server that says yes, and the connections that it was asked for."""
    server.answer = lambda prompt: {"raw": "yes"}
    server.connections = 0
    accept = server._server.get_request

    def counted():
        taken = accept()
        server.connections += 1
        return taken

    server._server.get_request = counted
    return server


def test_calls_one_after_another_go_over_one_connection_and_a_deep_copy_shares_it(answering):
    model = ours(url(answering))
    copied = copy.deepcopy(model)
    assert [one("yes?") for one in (model, model, copied, copied.copy(temperature=1.0))] == [
        ["yes"]
    ] * 4
    assert answering.connections == 1 and len(answering.requests) == 4


def test_the_request_is_the_one_that_dspys_own_client_sends(answering):
    for make in (ours, dspys):
        make(url(answering))("ü </x> \u2028", stop=["."], top_p=0.5, max_tokens=50)
    first, second = answering.requests
    assert first.pop("max_tokens") == second.pop("max_completion_tokens") == 50
    assert first == second and first["seed"] == 7 and first["temperature"] == 0.0
    assert set(answering.authorizations) == {"Bearer key"}


@pytest.mark.parametrize("word", ["max_tokens", "max_completion_tokens"])
def test_a_limit_of_one_call_is_sent_in_the_servers_word_alone(word, answering):
    model = ours(url(answering))
    model("yes?", **{word: 9})
    model.converse([{"role": "user", "content": "yes?"}], [], {word: 9})
    for request in answering.requests:
        assert request["max_tokens"] == 9 and "max_completion_tokens" not in request


def test_null_in_the_extra_body_leaves_a_field_out_at_any_depth(answering):
    extra = {"seed": None, "top_k": None, "reasoning": {"effort": None, "depth": 2}}
    settings = language_model.ModelSettings(seed=7, extra_body=extra)
    language_model.connect(f"tiny@{url(answering)}", settings=settings).lm("yes?")
    [request] = answering.requests
    assert request["reasoning"] == {"depth": 2} and not {"seed", "top_k"} & request.keys()


def test_a_setting_of_dspys_own_is_not_sent(answering):
    model = ours(url(answering))
    model("yes?")
    model("yes?", rollout_id=3, cache=False, num_retries=2, n=1)
    first, second = answering.requests
    assert first == second


FAILURES = {
    **{str(status): Failure(status) for status in (401, 402, 403, 408, 429, 500)},
    "400": Failure(400, "", "no such thing"),
    "too long": Failure(400, "context_length_exceeded", "maximum context length is 10 tokens"),
    "404": Failure(404, "model_not_found"),
    "quota": Failure(429, "insufficient_quota"),
    "429, with a time": Failure(429, retry_after=7),
    "503, with a time": Failure(503, retry_after=1.5),
    "reset": ConnectionResetError(),
}


def raised(model):
    with pytest.raises(dspy.LMError) as caught:
        model("yes?")
    return caught.value


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES.keys())
def test_a_failure_is_the_error_that_dspys_own_client_makes_of_it(failure, server):
    server.answer = lambda prompt: (_ for _ in ()).throw(failure)
    mine, reference = raised(ours(url(server))), raised(dspys(url(server)))
    # A server that did not get the request in time has too much to do, as with 429: less is sent at once.
    kind = dspy.LMRateLimitError if reference.status == 408 else type(reference)
    assert (
        isinstance(mine, kind) and kind is not dspy.LMUnexpectedError and len(server.requests) == 2
    )
    facts = (
        responsible_party,
        dspy.is_retryable_lm_error,
        lambda error: (error.status, error.retry_after, error.provider_code),
    )
    assert [fact(mine) for fact in facts] == [fact(reference) for fact in facts]


def test_a_certificate_that_nobody_vouches_for_is_refused_with_what_to_do(server, certificate):
    server._server.socket = certificate[1].wrap_socket(server._server.socket, server_side=True)
    address = url(server).replace("http:", "https:")
    error = raised(
        language_model.connect(f"tiny@{address}", RunResources(patience=RetryPolicy(attempts=1))).lm
    )
    assert (
        responsible_party(error) == "refused"
        and "$SSL_CERT_FILE" in str(error)
        and not dspy.is_retryable_lm_error(error)
    )


def test_a_server_that_is_not_there_is_the_providers_fault():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    mine, reference = raised(ours(address)), raised(dspys(address))
    assert isinstance(mine, dspy.LMTransportError) and type(reference) is dspy.LMTransportError
    assert responsible_party(mine) == responsible_party(
        reference
    ) == "provider" and dspy.is_retryable_lm_error(mine)


@pytest.mark.parametrize(
    ("finish", "refusal"),
    [("stop", None), ("length", None), ("content_filter", None), ("stop", "I won't")],
)
def test_why_an_answer_ended_and_what_it_used_is_as_with_dspys_own_client(
    finish, refusal, server, place
):
    fields = {"raw": "" if refusal else "yes", "finish": finish, "refusal": refusal}
    server.answer = lambda prompt: fields
    reply = server.reply
    details = {
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    server.reply = lambda path, body: (
        (answer := reply(path, body)) | {"usage": answer["usage"] | details}
    )
    model = language_model.connect(server.spec)
    model.begin(place, Usage())
    outputs = model.lm("is it yes?")
    [(_, answer)] = model.resources.ledger.answers.of_run(model.resources.ledger.run)
    with dspy.track_usage() as tracker:
        reference = dspys(url(server))
        # The words of a refusal, which DSPy's client leaves out, are what a failed query reports.
        assert outputs == [text or refusal or "" for text in reference("is it yes?")]
    response, [used] = reference.history[-1]["response"], tracker.usage_data["openai/tiny"]
    refused = any(type(part).__name__ == "RefusalPart" for part in response.message.parts)
    assert answer.outputs == outputs and answer.finish == (
        "refusal" if refused else response.finish_reason
    )
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (
        used["prompt_tokens"],
        used["completion_tokens"],
    )
    assert answer.usage.cached_tokens == used["prompt_tokens_details"]["cached_tokens"] == 1


def test_a_key_that_a_server_says_back_as_why_it_ended_is_taken_out(server, monkeypatch):
    key = "sk-very-secret-0123456789"
    monkeypatch.setenv("SEXTANT_API_KEY", key)
    server.answer = lambda prompt: {"raw": "yes", "finish": f"stop {key}"}
    transport = language_model.connect(server.spec).lm.transport
    body = transport.body([{"role": "user", "content": "?"}], (), {})
    assert transport.send(body, "", None, soon()).finish == "stop ***"


@pytest.mark.parametrize("key", ["", "here", "EMPTY"])
def test_a_word_of_an_answer_that_is_also_the_key_of_a_local_server_stays_as_it_is(
    key, server, monkeypatch
):
    monkeypatch.setenv("SEXTANT_API_KEY", key)
    server.answer = lambda prompt: {"raw": "none of them is here, nonetheless; EMPTY"}
    assert language_model.connect(server.spec).lm("yes?") == [
        "none of them is here, nonetheless; EMPTY"
    ]
