"""What a model can do, before a run asks it: its abilities, its speed, and the options it needs.

Three small calls are sent as a run sends them, and a longer one that measures the speed; all within
a budget, and no answer is kept. The speed is measured as in tools/models/call_limits.py. Left out: how
good the answers are, and models of embeddings.
"""

import random
import shlex
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import dspy

from sextant.tools.errors import ProviderRefused, RunIncomplete, SextantError, UnknownName
from sextant.tools.models import provider_errors, server_detection
from sextant.tools.models.answers.checks import UnusableAnswer
from sextant.tools.models.call_limits import Budget, RetryPolicy, Speed
from sextant.tools.models.language_model import (
    CALLS_IN_TEXT,
    ConnectedModel,
    LanguageModel,
    ModelSettings,
    connect,
)
from sextant.tools.models.model_spec import check_key, parse
from sextant.tools.models.prompting import PromptTooLong
from sextant.tools.models.provider_response import is_cut
from sextant.tools.models.run_resources import RunResources
from sextant.tools.models.storage.ledger import ModelResponse
from sextant.tools.models.transport.openai_client import OpenAIClient
from sextant.tools.platform.cli_options import to_command_line
from sextant.tools.records import JsonObject, total

REQUESTS = 9  # at most, as an answer that cannot be used is asked for again
# Of an answer at most, without --max-tokens: a model that thinks takes some hundred for these
TOKENS = 512
# Some servers load a model when it is first asked, others are slow
PATIENCE = RetryPolicy(attempts=1, call=300.0)
LISTING = 5.0  # seconds

WORKS = "works"  # of a call; other words say what is wrong
_TEXT = "The ferry to the island sails twice a day, but never in a storm."
# Of the call that measures the speed: tokens of its prompt and answer, at least and at most, and the
# seconds for which its prompt is read, as far as the calls before it tell
_LEAST_READ = 256
_MOST_READ = 1500
_READ_SECONDS = 10.0
_WRITTEN = 64
_SLOW = 20.0  # seconds of the calls before it, from which on a server counts as slow
# A prompt of these in a new order was never cached, and has a token for each and its blank.
_WORDS = ("ferry", "island", "storm", "harbour", "light", "rope", "sail", "tide", "gull", "rock")
_QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


def list_models(url_spec: str, settings: ModelSettings) -> JsonObject:
    """Return the names of the models that the server of `@URL` has. RunIncomplete if it lists none."""
    spec = f"MODEL{url_spec}"
    _, url = parse(spec, "check")
    check_key(spec, settings.headers)
    models = _list_models(OpenAIClient("", url, settings=settings))
    if not models:
        raise RunIncomplete(
            f"{url} lists no models; see whether it is there, and add /v1 where that is missing"
        )
    return {"models": models}


def check(spec: str, settings: ModelSettings) -> JsonObject:
    """Return the abilities of a model and the findings. ProviderRefused or RunIncomplete if it
    does not answer.
    """
    resources = RunResources(budget=Budget(calls=REQUESTS), patience=PATIENCE)
    limit = connect(spec, resources, settings=settings).settings["max_tokens"]
    check_key(spec, settings.headers)
    model = connect(
        spec,
        resources,
        settings=replace(settings, max_tokens=settings.max_tokens or min(limit, TOKENS)),
    )
    listed = model.lm.window
    answers = _keep_answers(model.lm)
    model.lm.meet()
    structured = model.lm.structured
    abilities = _try_abilities(model, answers)
    speed = _measure(model.lm, answers)
    auto, fallback = ("schema", "chat") if structured else ("chat", "schema")
    if settings.structured == "auto" and abilities[fallback] == WORKS != abilities[auto]:
        settings = replace(settings, structured="off" if structured else "on")
    window_from = "--context" if settings.context else "prices" if listed else "the server"
    first_run, command = _write_command(model.lm, settings, limit, speed)
    return {
        "model": spec,
        **abilities,
        "server": model.lm.server.kind.name or None,
        "window": model.lm.window,
        "window_from": model.lm.window and window_from,
        "longest_answer": limit,
        "sent_as": " and ".join(model.lm.server.kind.limit),
        "price": str(model.price) if model.price else None,
        **_describe_answers(answers, speed),
        "requests": resources.budget.calls,
        "tokens_in": sum(answer.usage.input_tokens for answer in answers),
        "tokens_out": sum(answer.usage.output_tokens for answer in answers),
        "first_run_minutes": first_run.minutes,
        "first_run": command,
    }


def _keep_answers(lm: LanguageModel) -> list[ModelResponse]:
    """Return a list that gets every answer of the model from now on."""
    answers = []
    ask_client = lm.client.ask

    def note(*request: Any) -> ModelResponse:
        answers.append(ask_client(*request))
        return answers[-1]

    vars(lm.client)["ask"] = note
    return answers


def _try_abilities(model: ConnectedModel, answers: list[ModelResponse]) -> JsonObject:
    """Return what became of a call of each kind; the error if the model answers none at all."""
    lm = model.lm
    asks = {
        "chat": partial(_fill, lm, "off"),
        "schema": partial(_fill, lm, "on"),
        "tools": partial(_call_tool, lm),
    }
    abilities = {}
    with model.active():
        for name, ask in asks.items():
            try:
                abilities[name] = ask()
            except UnusableAnswer as error:
                abilities[name] = f"not in the form asked for: {error.kind}"
            except (dspy.LMError, ProviderRefused) as error:
                if not answers:
                    raise _refusal(model.name, error, lm.transport) from None
                abilities[name] = _line(error)
    return abilities


def _describe_answers(answers: list[ModelResponse], speed: Speed) -> JsonObject:
    usage = total(answer.usage for answer in answers)
    seconds = sum(answer.seconds for answer in answers)
    first = [answer.first for answer in answers if answer.first is not None]
    thinks = any(answer.reasoning for answer in answers)
    written = usage.output_tokens
    per_second = speed.write or written / max(1e-9, seconds - sum(first))
    return {
        "reasoning_tokens": usage.reasoning_tokens or (None if thinks else 0),
        "first_token_seconds": round(min(first), 3) if first else None,
        "read_tokens_a_second": speed.read and round(speed.read, 1),
        "tokens_a_second": round(per_second, 1) if written else None,
    }


def _write_command(
    lm: LanguageModel,
    settings: ModelSettings,
    limit: int,
    speed: Speed,
) -> tuple["FirstRun", str]:
    """Return a first run and its command line, with the options that the model needs."""
    if lm.window and limit > lm.window // 2:  # it would leave little room for prompts
        settings = replace(settings, max_tokens=lm.window // 4)
    most = settings.max_tokens or limit
    first_run = _choose_first_run(speed, most)
    if first_run.max_tokens < most:
        settings = replace(settings, max_tokens=first_run.max_tokens)
    words = ["sextant", "run", *first_run.words.split(), "--lm", lm.spec]
    if lm.server.kind.name in _ONE_AT_A_TIME:
        words += ["--max-concurrent", "1"]
    return first_run, shlex.join((*words, *to_command_line(settings)))


class FirstRun(NamedTuple):
    """A run to begin with."""

    words: str  # of its command
    max_tokens: int  # of an answer
    minutes: int | None  # that it takes at most, as far as that can be told; None for no speed


class _Candidate(NamedTuple):
    words: str
    calls: int  # of all its queries, repairs included
    prompt: int  # tokens of a call on the miniature of congress, as `--dry-run` counts them
    answer: int  # tokens of a call
    max_tokens: int


# From the one that shows most to the one that takes least.
_CANDIDATES = (
    _Candidate("--program multihop --task congress --limit 3", 38, 3300, 300, 1024),
    _Candidate("--program multihop --task congress --limit 2 -P hops=2", 15, 3300, 300, 512),
    _Candidate(
        "--program multihop --task congress --limit 1 -P hops=2 -P per_hop=10", 5, 2500, 300, 512
    ),
    _Candidate("--program rewrite --task congress --limit 3", 4, 600, 200, 256),
    _Candidate("--program rewrite --task congress --limit 1", 2, 600, 128, 128),
)
_FIVE_MINUTES = 300.0
_ONE_AT_A_TIME = ("llama.cpp", "llama-cpp-python", "ollama")  # on most machines


def _choose_first_run(speed: Speed, max_tokens: int) -> FirstRun:
    """Return the first candidate that ends in five minutes at this speed, or the smallest."""
    needed = 0.0
    for candidate in _CANDIDATES:
        seconds = speed.seconds(candidate.prompt, min(max_tokens, candidate.answer))
        if seconds is None:  # a provider that does not stream: nearly all are fast
            return FirstRun(candidate.words, max_tokens, None)
        needed = candidate.calls * seconds
        if needed <= _FIVE_MINUTES:
            break
    # The first is for fast servers, where long answers do no harm.
    most = max_tokens if candidate is _CANDIDATES[0] else min(max_tokens, candidate.max_tokens)
    return FirstRun(candidate.words, most, ceil(needed / 60))


def _draw_prompt(words: int) -> str:
    """Return a prompt of `words` random words, of which no server has kept the beginning."""
    drawn = random.Random(time.time_ns())
    text = " ".join(drawn.choice(_WORDS) for _ in range(words))
    return f"{text}\n\nDescribe an island with these in a hundred words."


def _measure(lm: LanguageModel, answers: list[ModelResponse]) -> Speed:
    """Return the speed at which the model reads a long prompt and writes some words; it is kept.

    If that call fails and the `answers` before it were slow, their own speed, which is kept nowhere.
    """
    meter = lm.client.meter
    before = meter.speed.read or _MOST_READ / _READ_SECONDS
    room = (lm.window or 4 * _MOST_READ) // 4
    words = max(_LEAST_READ, min(round(before * _READ_SECONDS), _MOST_READ, room))
    meter.forget()
    with suppress(dspy.LMError, ProviderRefused, PromptTooLong):
        lm(messages=[{"role": "user", "content": _draw_prompt(words)}], max_tokens=_WRITTEN)
    meter.keep()
    usage = total(answer.usage for answer in answers)
    seconds = sum(answer.seconds for answer in answers)
    if meter.speed.seconds(1, 1) is None and seconds > _SLOW:
        return Speed(usage.input_tokens / seconds, usage.output_tokens / seconds)
    return meter.speed


def _fill(lm: LanguageModel, schemas: str) -> str:
    lm.client.schemas = schemas
    dspy.Predict("text -> summary, topic")(text=_TEXT)
    return WORKS


def _call_tool(lm: LanguageModel) -> str:
    tool = {
        "type": "function",
        "function": {"name": "search", "description": "Search.", "parameters": _QUERY},
    }
    reply = lm.converse(
        [{"role": "user", "content": "Call the tool to search for the ferry's timetable."}], [tool]
    )
    if is_cut(reply["finish"]):
        return "cut off"
    if reply.get("in_text"):
        return f"a call is read out of the model's text: {CALLS_IN_TEXT}"
    return WORKS if reply["tool_calls"] else f"no call of the tool, but {reply['content'][:60]!r}"


def _refusal(
    spec: str,
    error: Exception,
    transport: OpenAIClient | None,
) -> SextantError:
    """Return the error for a model that does not answer at all, with the nearest names that its server has."""
    if provider_errors.responsible_party(error) != "refused":
        return RunIncomplete(f"{spec} does not answer: {_line(error)}")
    models = _list_models(transport) if transport else []
    if transport and models and transport.model not in models:
        return ProviderRefused(
            f"{_line(error)}; {UnknownName('model there', transport.model, models)}"
        )
    return ProviderRefused(f"{spec} refuses: {_line(error)}")


def _list_models(transport: OpenAIClient) -> list[str]:
    with suppress(TypeError, KeyError):
        return [
            str(row["id"])
            for row in server_detection.get_json(transport, "/models", LISTING)["data"]
        ]
    return []


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
