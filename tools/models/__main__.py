"""Check a model before a run: `python -m tools.models check SPEC`.

    python -m tools.models check MODEL@URL    its abilities, its speed, and the options it needs
    python -m tools.models check @URL         the names of the models that a server has

Three small calls are sent as a run sends them, within a budget, and no answer is kept. Left out:
how good the answers are, and models of embeddings.
"""

import argparse
import json
import shlex
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import dspy

from tools.cli import CommandParser, print_stdout, run_and_leave, strip_control_characters
from tools.cli_options import add_options, from_options, to_command_line
from tools.errors import ProviderRefused, RunIncomplete, SextantError, UnknownName, UsageError
from tools.models import provider_errors, server_detection
from tools.models.answer_checks import UnusableAnswer
from tools.models.budget import Budget
from tools.models.language_model import CALLS_IN_TEXT, LanguageModel, ModelSettings, connect
from tools.models.model_spec import check_key, parse
from tools.models.retry_policy import RetryPolicy
from tools.models.run_resources import RunResources
from tools.models.secrets import read_keys
from tools.models.storage.response_cache import ModelResponse
from tools.models.transport.openai_client import OpenAIClient
from tools.records import total

REQUESTS = 8  # at most, as an answer that cannot be used is asked for again
# Of an answer at most, without --max-tokens: a model that thinks takes some hundred for these
TOKENS = 512
PATIENCE = RetryPolicy(attempts=1, call=120.0)  # some servers load a model when it is first asked
LISTING = 5.0  # seconds

WORKS = "works"  # of a call; other words say what is wrong
_TEXT = "The ferry to the island sails twice a day, but never in a storm."
_QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


def parser() -> CommandParser:
    """Return the command line."""
    command_parser = CommandParser(
        prog="python -m tools.models", description="What a model can do, before a run asks it."
    )
    summary = "send three small calls; say what works, and what a run needs"
    verbs = command_parser.add_subparsers(dest="verb", required=True, metavar="check")
    verb = verbs.add_parser("check", help=summary, description=summary)
    verb.add_argument(
        "spec", metavar="SPEC", help="as for --lm; @URL alone lists the models of a server"
    )
    verb.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    add_options(verb, ModelSettings)
    return command_parser


def command(arguments: argparse.Namespace) -> int:
    """Check a model, or list the models of a server; return 0 if it answers."""
    read_keys()
    spec = arguments.spec
    settings = from_options(ModelSettings, vars(arguments))
    if spec == "offline":
        raise UsageError(
            "offline is no model, so there is nothing to check; name a model, as for --lm"
        )
    if spec.startswith("@"):
        _, url = parse(f"MODEL{spec}", "check")
        check_key(f"MODEL{spec}", settings.headers)
        findings: dict[str, Any] = {
            "models": _list_models(OpenAIClient("", url, settings=settings))
        }
        if not findings["models"]:
            raise RunIncomplete(
                f"{url} lists no models; see whether it is there, and add /v1 where that is missing"
            )
    else:
        findings = check(spec, settings)
    lines = "\n".join(
        f"{name.replace('_', ' '):<22}{_show(value)}" for name, value in findings.items()
    )
    print_stdout((json.dumps(findings) if arguments.json else lines) + "\n")
    return 0


def _show(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(strip_control_characters, value))
    return (
        "unknown"
        if value is None
        else strip_control_characters(value)
        if isinstance(value, str)
        else f"{value:,}"
    )


def check(spec: str, settings: ModelSettings) -> dict[str, Any]:
    """Return the abilities of a model and the findings. ProviderRefused or RunIncomplete if it
    does not answer.
    """
    terms = RunResources(budget=Budget(calls=REQUESTS), patience=PATIENCE)
    limit = connect(spec, terms, settings=settings).settings["max_tokens"]
    check_key(spec, settings.headers)
    model = connect(
        spec,
        terms,
        settings=replace(settings, max_tokens=settings.max_tokens or min(limit, TOKENS)),
    )
    lm = model.lm
    listed = model.lm.window
    answers = list[ModelResponse]()
    ask_caller = lm.caller.ask

    def note(*request: Any) -> ModelResponse:
        answers.append(ask_caller(*request))
        return answers[-1]

    vars(lm.caller)["ask"] = note
    lm.meet()
    structured = lm.structured
    findings = dict[str, Any](model=spec)
    asks = {
        "chat": partial(_fill, lm, "off"),
        "schema": partial(_fill, lm, "on"),
        "tools": partial(_call_tool, lm),
    }
    with model.active():
        for name, ask in asks.items():
            try:
                findings[name] = ask()
            except UnusableAnswer as error:
                findings[name] = f"not in the form asked for: {error.kind}"
            except (dspy.LMError, ProviderRefused) as error:
                if not answers:
                    raise _refusal(spec, error, lm.wire) from None
                findings[name] = _line(error)
    auto, fallback = ("schema", "chat") if structured else ("chat", "schema")
    if settings.structured == "auto" and findings[fallback] == WORKS != findings[auto]:
        settings = replace(settings, structured="off" if structured else "on")
    if lm.window and limit > lm.window // 2:  # it would leave little room for prompts
        settings = replace(settings, max_tokens=lm.window // 4)
    run = "sextant run --program multihop --task congress --limit 3 --lm"
    usage = total(answer.usage for answer in answers)
    seconds = sum(answer.seconds for answer in answers)
    first = [answer.first for answer in answers if answer.first is not None]
    thinks = any(answer.reasoning for answer in answers)
    return findings | {
        "server": lm.server.kind.name or None,
        "window": lm.window,
        "window_from": lm.window
        and ("--context" if settings.context else "prices" if listed else "the server"),
        "longest_answer": limit,
        "sent_as": " and ".join(lm.server.kind.limit),
        "price": str(model.price) if model.price else None,
        "reasoning_tokens": usage.reasoning_tokens or (None if thinks else 0),
        "first_token_seconds": round(min(first), 3) if first else None,
        "tokens_a_second": round(usage.output_tokens / (seconds - sum(first)), 1)
        if usage.output_tokens
        else None,
        "requests": terms.budget.calls,
        "tokens_in": usage.input_tokens,
        "tokens_out": usage.output_tokens,
        "first_run": shlex.join((*run.split(), spec, *to_command_line(settings))),
    }


def _fill(lm: LanguageModel, schemas: str) -> str:
    lm.caller.schemas = schemas
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
    if reply["finish"] == "length":
        return "cut off"
    if reply.get("in_text"):
        return f"a call is read out of the model's text: {CALLS_IN_TEXT}"
    return WORKS if reply["tool_calls"] else f"no call of the tool, but {reply['content'][:60]!r}"


def _refusal(
    spec: str,
    error: Exception,
    wire: OpenAIClient | None,
) -> SextantError:
    """Return the error for a model that does not answer at all, with the nearest names that its server has."""
    if provider_errors.responsible_party(error) != "refused":
        return RunIncomplete(f"{spec} does not answer: {_line(error)}")
    models = _list_models(wire) if wire else []
    if wire and models and wire.model not in models:
        return ProviderRefused(f"{_line(error)}; {UnknownName('model there', wire.model, models)}")
    return ProviderRefused(f"{spec} refuses: {_line(error)}")


def _list_models(wire: OpenAIClient) -> list[str]:
    with suppress(TypeError, KeyError):
        return [
            str(row["id"]) for row in server_detection.get_json(wire, "/models", LISTING)["data"]
        ]
    return []


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


if __name__ == "__main__":
    run_and_leave(parser(), command)
