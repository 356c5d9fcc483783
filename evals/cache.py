"""`sextant cache list|show|export|clear`: the answers that were paid for, in
RUNS/answers.sqlite3.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from sextant.tools.errors import DataError, UsageError
from sextant.tools.models.storage.cassette import write_cassette
from sextant.tools.models.storage.ledger import (
    NAME,
    AnswerFilter,
    Ledger,
    ResponseCache,
    open_answers,
)
from sextant.tools.models.storage.request_store import read_call
from sextant.tools.platform.cli import (
    CommandParser,
    add_json_option,
    fit_line,
    positive,
    print_json,
    print_stderr,
    print_stdout,
    run_and_leave,
)
from sextant.tools.platform.number_format import number, plural
from sextant.tools.platform.result_table import ResultTable, show
from sextant.tools.records import JsonMapping, JsonObject, Usage, usage_from_json, usage_json
from sextant.tools.text import message_text

_BEGINS = 60  # characters of an answer in a list
_usd = partial(
    number,
    form="${:.4f}",
    unknown="unknown",
)


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant cache",
        description="The models' answers that are kept beside the runs.",
    )
    kinds = command_line.add_subparsers(
        dest="kind", required=True, metavar="list | show | export | clear"
    )

    def add_verb(name: str, about: str) -> CommandParser:
        verb = kinds.add_parser(name, help=about, description=about)
        verb.add_argument(
            "--runs", type=Path, default=Path("runs"), metavar="DIR", help="where run folders are"
        )
        add_json_option(verb)
        return verb

    listing = add_verb(
        "list", "answers and what they cost, by model, and what each run sent and used"
    )
    listing.add_argument(
        "--calls",
        action="store_true",
        help="a line for each answer: its key, its query, how it begins",
    )
    add_verb("show", "one call: the conversation that was sent, and the answer").add_argument(
        "key", metavar="KEY", help="as cache list --calls has it; its beginning will do"
    )
    exporting = add_verb("export", "answers as a cassette, for sextant run --cassette")
    exporting.add_argument("file", type=Path, metavar="FILE")
    clearing = add_verb("clear", "remove answers; the books of the runs stay")
    clearing.add_argument("--key", metavar="KEY", help="this one")
    clearing.add_argument("--days", type=positive, metavar="N", help="those older than N days")
    clearing.add_argument("--all", action="store_true", help="all of them")
    for verb in (listing, exporting, clearing):
        verb.add_argument(
            "--run", metavar="RUN", help="those that a run has used: TASK/FOLDER, or a run folder"
        )
        verb.add_argument("--model", metavar="MODEL", help="of this model, as cache list has it")
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """List, show, export or clear answers; return 0."""
    path = arguments.runs / NAME
    if not path.is_file():
        raise DataError(
            f"{path}: no answers are kept there; runs with a model put them into --runs DIR"
        )
    {
        "list": _list,
        "show": _show,
        "export": _export,
        "clear": _clear,
    }[arguments.kind](open_answers(path), arguments)
    return 0


def _list(answers: ResponseCache, arguments: argparse.Namespace) -> None:
    wanted = _wanted(answers, arguments)
    models = _sum_by_model(answers, wanted)
    runs = {run: Ledger(answers, run).usage_totals.json() for run in sorted(answers.runs())}
    result: JsonObject = {"answers": str(answers.path), "models": models, "runs": runs}
    table = _table_of_runs(runs)
    if arguments.calls:
        result["calls"] = list(_calls(answers, wanted))
        table = _table_of_calls(result["calls"])
    if arguments.json:
        print_json(result)
    else:
        show([str(answers.path), _table_of_models(models), table])


def _sum_by_model(answers: ResponseCache, wanted: AnswerFilter) -> dict[str, JsonObject]:
    """Return the answers, their usage, and the days of the first and the last, by model."""
    models: dict[str, JsonObject] = {}
    usages = defaultdict[str, Usage](Usage)
    for answer in answers.find(wanted, ("key", "model", "usage", "at")):
        model = answer["model"]
        day = _day(answer["at"])
        row = models.setdefault(model, {"answers": 0, "usage": {}, "first": day})
        usages[model] += usage_from_json(answer["usage"])
        row |= {"answers": row["answers"] + 1, "last": day}
    for model, row in models.items():
        row["usage"] = usage_json(usages[model])
    return models


def _table_of_models(models: Mapping[str, JsonMapping]) -> ResultTable:
    rows = [
        [
            name,
            f"{row['answers']:,}",
            f"{row['usage']['input_tokens']:,}",
            f"{row['usage']['output_tokens']:,}",
            _usd(row["usage"]["paid_usd"]),
            row["first"],
            row["last"],
        ]
        for name, row in models.items()
    ]
    return ResultTable(
        "",
        ["model", "answers", "tokens in", "tokens out", "price", "first", "last"],
        rows,
        names=(0, 5, 6),
    )


def _table_of_calls(calls: Sequence[JsonMapping]) -> ResultTable:
    rows = [
        [
            call["key"],
            call["at"],
            call["query_id"],
            call["model"],
            f"{call['usage']['input_tokens']:,}",
            f"{call['usage']['output_tokens']:,}",
            "kept" if call["prompt"] else "not kept",
            call["begins"],
        ]
        for call in calls
    ]
    return ResultTable(
        "",
        ["key", "answered", "query", "model", "tokens in", "tokens out", "prompt", "begins"],
        rows,
        names=(0, 1, 2, 3, 6, 7),
    )


def _table_of_runs(runs: Mapping[str, JsonMapping]) -> ResultTable:
    counts = ("sent", "answered", "failed", "cached")
    rows = [
        [
            run.rpartition("/")[0],
            *(f"{usage_totals[name]:,}" for name in counts),
            _usd(usage_totals["paid_usd"]),
            ", ".join(f"{fault}: {count}" for fault, count in usage_totals["faults"].items()),
        ]
        for run, usage_totals in runs.items()
    ]
    return ResultTable(
        "",
        ["run", "sent", "answered", "failed", "from the cache", "price", "faults"],
        rows,
        names=(0, 6),
    )


def _calls(answers: ResponseCache, wanted: AnswerFilter) -> Iterator[JsonObject]:
    """Yield the calls that have answers, each with the first words of the answer, and whether its prompt is kept."""
    for row in answers.find(
        wanted, ("key", "at", "run", "query_id", "model", "usage", "outputs", "request")
    ):
        answer = _answers(row.pop("outputs"))[0]
        has_prompt = row.pop("request") is not None
        yield row | {
            "at": _day(row["at"]),
            "prompt": has_prompt,
            "begins": " ".join(answer.split())[:_BEGINS],
        }


def _show(answers: ResponseCache, arguments: argparse.Namespace) -> None:
    key = _checked(arguments.key)
    keys = [full_key for full_key in answers.keys(AnswerFilter()) if full_key.startswith(key)]
    if not keys:
        raise DataError(f"no answer has the key {key}; cache list --calls has those there are")
    if len(keys) > 1:
        raise UsageError(f"more than one key begins with {key}: {', '.join(keys[:2])}")
    call = read_call(answers.path, keys[0]) or {}
    call["at"] = _day(call["at"])
    if arguments.json:
        print_json(call)
    else:
        print_stdout("".join(f"{fit_line(line)}\n" for line in _call_lines(call)))


def _call_lines(call: JsonObject) -> Iterator[str]:
    """Yield the lines of a call: the request, message by message, and the response."""
    usage = usage_from_json(call["usage"])
    first = number(call["first"], "{:.2f} s", "unknown")
    yield (
        f"{call['key']}  {call['model']}  {call['at']}  {call['seconds']:.1f} s, to the first "
        f"token: {first}"
    )
    yield f"query {call['query_id'] or '-'} of {call['run'].rpartition('/')[0]}"
    yield (
        f"{plural(usage.input_tokens, 'token')} in, {usage.output_tokens:,} out, price "
        f"{_usd(usage.paid_usd)}; it ended with {call['finish']}"
    )
    if call["messages"] is None:
        yield "what was sent is not here: --no-prompts, an earlier version, or cleared away since"
    messages = [(message["role"], message_text(message)) for message in call["messages"] or ()]
    messages += [("reasoning", call["reasoning"])] if call["reasoning"] else []
    messages += [("answer", text) for text in _answers(call["outputs"])]
    for role, text in messages:
        yield from ("", f"──── {role} ────", *text.expandtabs().split("\n"))


def _answers(outputs: Sequence[Any]) -> list[str]:
    return [
        message_text(output if isinstance(output, dict) else {"content": output})
        for output in outputs
    ]


def _export(answers: ResponseCache, arguments: argparse.Namespace) -> None:
    keys = answers.keys(_wanted(answers, arguments))
    run = _run(answers, arguments.run) if arguments.run else ""  # whose own answers come first
    count = write_cassette(
        arguments.file, ((key, found[0]) for key in keys if (found := answers.take(key, run)))
    )
    _report_done(
        arguments,
        f"{plural(count, 'answer is', 'answers are')} in {arguments.file}",
        {"answers": count, "file": str(arguments.file)},
    )


def _clear(answers: ResponseCache, arguments: argparse.Namespace) -> None:
    wanted = _wanted(answers, arguments)
    if wanted == AnswerFilter() and not arguments.all:
        raise UsageError("say which: --run, --model, --key, --days, or --all")
    count = answers.clear(wanted)
    _report_done(
        arguments,
        f"{plural(count, 'answer is', 'answers are')} removed; the books keep what was paid",
        {"cleared": count},
    )


def _wanted(answers: ResponseCache, arguments: argparse.Namespace) -> AnswerFilter:
    """Return which answers the options name."""
    wanted = AnswerFilter(model=arguments.model or "")
    if arguments.run:
        wanted = wanted._replace(run=_run(answers, arguments.run).rpartition("/")[0] + "/")
    if arguments.kind == "clear" and arguments.key:
        wanted = wanted._replace(key=_checked(arguments.key))
    if arguments.kind == "clear" and arguments.days:
        wanted = wanted._replace(before=time.time() - arguments.days * 86_400)
    return wanted


def _run(answers: ResponseCache, named: str) -> str:
    """Return the latest run that TASK/FOLDER or a folder names, as the table has it."""
    runs = answers.runs("/".join(Path(named).parts[-2:]) + "/")
    if not runs:
        raise DataError(f"no run {named} has answers here; cache list has those that have")
    return runs[-1]


def _checked(key: str) -> str:
    if not key or set(key) - set("0123456789abcdef"):
        raise UsageError(f"{key!r} is no key, which has hexadecimal digits")
    return key


def _report_done(arguments: argparse.Namespace, text: str, row: JsonObject) -> None:
    if arguments.json:
        print_json(row)
    else:
        print_stderr(text)


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    run_and_leave(parser(), command)
