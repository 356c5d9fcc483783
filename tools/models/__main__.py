"""Check a model before a run: `python -m tools.models check SPEC`.

python -m tools.models check MODEL@URL       what works there, how fast it is, and which options it needs
python -m tools.models check @URL            the names of the models that a server has

Three small calls are sent as a run sends them, within a budget, and no answer is kept. Left out: how good the answers
are, and models of embeddings.
"""

import argparse
import json
import shlex
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import dspy

from tools.console import Parser, clean, put_out, run_and_leave
from tools.errors import ProviderRefused, RunIncomplete, SextantError, UnknownName, UsageError
from tools.models import faults
from tools.models.answers import Answer
from tools.models.call import Caller, Send
from tools.models.lm import LanguageModel, Model, Settings, connect
from tools.models.prompting import UnusableAnswer
from tools.models.sending.wire import Wire
from tools.models.spec import check_key, parse, read_keys
from tools.models.terms import Budget, Patience, Terms
from tools.options import add_options, from_options, words
from tools.records import total

REQUESTS = 8  # at most: an answer may be asked for again, and a request sent again
TOKENS = 1024  # of an answer at most
PATIENCE = Patience(attempts=2, call=120.0)  # some servers load a model when it is first asked
LISTING = 5.0  # seconds

WORKS = "works"

_TEXT = "The ferry to the island sails twice a day, but never in a storm."
_QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_TOPIC = {
    "type": "object",
    "properties": {"topic": {"type": "string"}},
    "required": ["topic"],
    "additionalProperties": False,
}


class _Noting(Caller):
    """A caller that remembers the answers which it returns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.answers = list[Answer]()

    def ask(self, owner: str, key: str, made: bytes, send: Send) -> Answer:
        self.answers.append(super().ask(owner, key, made, send))
        return self.answers[-1]


def parser() -> Parser:
    """Return the command line."""
    made = Parser(prog="python -m tools.models", description="What a model can do, before a run asks it.")
    verbs = made.add_subparsers(dest="verb", required=True, metavar="check")
    verb = verbs.add_parser("check", help="send three small calls, and say what works and which options are needed")
    verb.add_argument("spec", metavar="SPEC", help="as for --lm; @URL alone lists the models of a server")
    verb.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    add_options(verb, Settings)
    return made


def command(arguments: argparse.Namespace) -> int:
    """Check a model, or list those of a server; return 0 where it answers."""
    read_keys()
    spec, settings = arguments.spec, from_options(Settings, vars(arguments))
    if spec == "offline":
        raise UsageError("offline is no model, so there is nothing to check; name a model, as for --lm")
    if spec.startswith("@"):
        _, url = parse(f"MODEL{spec}", "check")
        found: dict[str, Any] = {"models": _list_models(Wire("", url, settings=settings))}
        if not found["models"]:
            raise RunIncomplete(f"{url} lists no models; see whether it is there, and add /v1 where that is missing")
    else:
        model = connect(spec, Terms(budget=Budget(calls=REQUESTS), patience=PATIENCE), settings=settings)
        check_key(spec)
        found = check(model, settings)
    lines = [f"{name.replace('_', ' '):<22}{_show(value)}" for name, value in found.items()]
    put_out(json.dumps(found) + "\n" if arguments.json else "\n".join(lines) + "\n")
    return 0


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "seen" if value else "none seen"
    if isinstance(value, list):
        return ", ".join(map(clean, value))
    return "unknown" if value is None else clean(value) if isinstance(value, str) else f"{value:,}"


def check(model: Model, settings: Settings) -> dict[str, Any]:
    """Return what works with a model, and what was found. ProviderRefused or RunIncomplete where it does not answer."""
    lm, listed = model.lm, model.lm.window
    lm.caller = caller = _Noting(lm.model, model.terms, model.price)
    lm.meet()
    limit = lm.kwargs.get("max_tokens") or 4096
    lm.kwargs["max_tokens"] = min(limit, TOKENS)
    found = dict[str, Any](model=model.name)
    with model.active():
        for name, ask in (("chat", _chat), ("tools", _call_tool), ("schema", _fill_schema)):
            try:
                found[name] = ask(lm)
            except UnusableAnswer as error:
                found[name] = f"it answers, but not in the form asked for: {error}"
            except (dspy.LMError, ProviderRefused) as error:
                if not caller.answers:
                    raise _refusal(model.name, error, lm.wire) from None
                found[name] = _line(error)
    used, seconds = total(one.usage for one in caller.answers), sum(one.seconds for one in caller.answers)
    first = [one for one in (getattr(answer, "first", None) for answer in caller.answers) if one is not None]
    return found | {
        "server": lm.server.kind.name or None,
        "window": lm.window,
        "window_from": lm.window and ("--context" if settings.context else "prices" if listed else "the server"),
        "longest_answer": limit,
        "sent_as": " and ".join(lm.server.kind.limit),
        "price": str(model.price) if model.price else None,
        "reasoning": any(one.reasoning or one.usage.reasoning_tokens for one in caller.answers),
        "reasoning_tokens": used.reasoning_tokens,
        "first_token_seconds": round(min(first), 3) if first else None,
        "tokens_a_second": round(used.output_tokens / (seconds - sum(first)), 1) if used.output_tokens else None,
        "requests": model.terms.budget.calls,
        "tokens_in": used.input_tokens,
        "tokens_out": used.output_tokens,
        "first_run": _recommend(model, settings, limit, schema=found["schema"] == WORKS),
    }


def _chat(lm: LanguageModel) -> str:
    dspy.Predict("text -> summary, topic")(text=_TEXT)
    return WORKS


def _call_tool(lm: LanguageModel) -> str:
    tool = {"type": "function", "function": {"name": "search", "description": "Search.", "parameters": _QUERY}}
    reply = lm.converse([{"role": "user", "content": "Call the tool to search for the ferry's timetable."}], [tool])
    return WORKS if reply["tool_calls"] else f"it calls no tool, but writes {reply['content'][:60]!r}"


def _fill_schema(lm: LanguageModel) -> str:
    schema = {"name": "answer", "strict": True, "schema": _TOPIC}
    messages = [{"role": "user", "content": f"Name the topic of this text, in a JSON object. {_TEXT}"}]
    [answer] = lm(messages=messages, response_format={"type": "json_schema", "json_schema": schema})
    text = answer["text"] if isinstance(answer, dict) else answer
    with suppress(ValueError, TypeError, KeyError):
        if isinstance(json.loads(text)["topic"], str):
            return WORKS
    return f"its answer is not by the schema: {text[:60]!r}"


def _recommend(model: Model, settings: Settings, limit: int, *, schema: bool) -> str:
    """Return the command for a first run, with the options that are given or needed."""
    if settings.structured == "auto" and schema != model.lm.server.kind.schema:
        settings = replace(settings, structured="on" if schema else "off")
    if model.lm.window and limit > model.lm.window // 2:  # it would leave little room for prompts
        settings = replace(settings, max_tokens=model.lm.window // 4)
    run = "sextant run --program multihop --task congress --limit 3 --lm"
    return shlex.join((*run.split(), model.name, *words(settings)))


def _refusal(spec: str, error: Exception, wire: Wire | None = None) -> SextantError:
    """Return the error for a model that does not answer at all, with the nearest names that its server has."""
    if faults.fault(error) != "refused":
        return RunIncomplete(f"{spec} does not answer: {_line(error)}")
    there = _list_models(wire) if wire else []
    if wire and there and wire.model not in there:
        return ProviderRefused(f"{_line(error)}; {UnknownName('model there', wire.model, there)}")
    return ProviderRefused(f"{spec} refuses: {_line(error)}")


def _list_models(wire: Wire) -> list[str]:
    with suppress(ValueError, TypeError, KeyError, dspy.LMError):
        listing = json.loads(wire.post("/models", b"", time.monotonic() + LISTING).body)
        return [str(row["id"]) for row in listing["data"]]
    return []


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


if __name__ == "__main__":
    run_and_leave(parser(), command)
