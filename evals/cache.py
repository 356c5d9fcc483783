"""`sextant cache list|show|export|clear`: the answers that were paid for, in
RUNS/answers.sqlite3.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from sextant.tools.errors import DataError, UsageError
from sextant.tools.models.storage.cassette import write_cassette
from sextant.tools.models.storage.ledger import Ledger
from sextant.tools.models.storage.request_store import read_call
from sextant.tools.models.storage.response_cache import NAME, ResponseCache, open_answers
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

_USABLE = "fault = '' AND outputs IS NOT NULL"
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
        dest="kind",
        required=True,
        metavar="list | show | export | clear",
    )
    for verb, about_verb in (
        ("list", "answers and what they cost, by model, and what each run sent and used"),
        ("show", "one call: the conversation that was sent, and the answer"),
        ("export", "answers as a cassette, for sextant run --cassette"),
        ("clear", "remove answers; the books of the runs stay"),
    ):
        verb_parser = kinds.add_parser(verb, help=about_verb, description=about_verb)
        add = verb_parser.add_argument
        if verb == "show":
            add(
                "key",
                metavar="KEY",
                help="as cache list --calls has it; its beginning will do",
            )
        if verb == "export":
            add(
                "file",
                type=Path,
                metavar="FILE",
            )
        if verb == "list":
            add(
                "--calls",
                action="store_true",
                help="a line for each answer: its key, its query, how it begins",
            )
        if verb != "show":
            add(
                "--run",
                metavar="RUN",
                help="those that a run has used: TASK/FOLDER, or a run folder",
            )
            add(
                "--model",
                metavar="MODEL",
                help="of this model, as cache list has it",
            )
        if verb == "clear":
            add(
                "--key",
                metavar="KEY",
                help="this one",
            )
            add(
                "--days",
                type=positive,
                metavar="N",
                help="those older than N days",
            )
            add(
                "--all",
                action="store_true",
                help="all of them",
            )
        add(
            "--runs",
            type=Path,
            default=Path("runs"),
            metavar="DIR",
            help="where run folders are",
        )
        add_json_option(verb_parser)
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """List, show, export or clear answers; return 0."""
    path = arguments.runs / NAME
    if not path.is_file():
        raise DataError(
            f"{path}: no answers are kept there; runs with a model put them into --runs DIR"
        )
    answers = open_answers(path)
    {
        "list": _list,
        "show": _show,
        "export": _export,
        "clear": _clear,
    }[arguments.kind](answers, arguments)
    return 0


def _list(answers: ResponseCache, arguments: argparse.Namespace) -> None:
    condition, values = _condition(answers, arguments)
    models = _sum_by_model(answers, condition, values)
    # Read to its end first: an open selection holds the lock that a ledger needs.
    names = [ledger_row["run"] for ledger_row in answers.select(("run",), "GROUP BY run")]
    runs = {run: Ledger(answers, run).books.json() for run in names}
    calls = list(_calls(answers, condition, values)) if arguments.calls else []
    if arguments.json:
        written = {}
        for name, row in models.items():
            written[name] = {**row, "usage": usage_json(row["usage"])}
        result: JsonObject = {
            "answers": str(answers.path),
            "models": written,
            "runs": runs,
        }
        if arguments.calls:
            result["calls"] = calls
        print_json(result)
        return
    tables = [_table_of_models(models)]
    if arguments.calls:
        tables.append(_table_of_calls(calls))
    else:
        tables.append(_table_of_runs(runs))
    show([str(answers.path), *tables])


def _sum_by_model(
    answers: ResponseCache, condition: str, values: Sequence[Any]
) -> dict[str, JsonObject]:
    """Return the answers, their usage, and the days of the first and the last, by model."""
    models: dict[str, JsonObject] = {}
    columns = ("key", "model", "usage", "at")
    for answer_row in answers.select(columns, f"WHERE {condition} ORDER BY id", values):
        day = _day(answer_row["at"])
        row = models.setdefault(answer_row["model"], {"answers": 0, "usage": Usage(), "first": day})
        row["answers"] += 1
        row["usage"] += usage_from_json(answer_row["usage"])
        row["last"] = day
    return models


def _table_of_models(models: Mapping[str, JsonObject]) -> ResultTable:
    rows = []
    for name, row in models.items():
        usage: Usage = row["usage"]
        rows.append(
            [
                name,
                f"{row['answers']:,}",
                f"{usage.input_tokens:,}",
                f"{usage.output_tokens:,}",
                _usd(usage.paid_usd),
                row["first"],
                row["last"],
            ]
        )
    heads = ["model", "answers", "tokens in", "tokens out", "price", "first", "last"]
    return ResultTable("", heads, rows, names=(0, 5, 6))


def _table_of_calls(calls: Sequence[JsonMapping]) -> ResultTable:
    rows = []
    for call in calls:
        rows.append(
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
        )
    heads = ["key", "answered", "query", "model", "tokens in", "tokens out", "prompt", "begins"]
    return ResultTable("", heads, rows, names=(0, 1, 2, 3, 6, 7))


def _table_of_runs(runs: Mapping[str, JsonMapping]) -> ResultTable:
    rows = []
    for run, books in runs.items():
        counts = [f"{fault}: {count}" for fault, count in books["faults"].items()]
        rows.append(
            [
                run.rpartition("/")[0],
                f"{books['sent']:,}",
                f"{books['answered']:,}",
                f"{books['failed']:,}",
                f"{books['cached']:,}",
                _usd(books["paid_usd"]),
                ", ".join(counts),
            ]
        )
    heads = ["run", "sent", "answered", "failed", "from the cache", "price", "faults"]
    return ResultTable("", heads, rows, names=(0, 6))


def _calls(answers: ResponseCache, condition: str, values: Sequence[Any]) -> Iterator[JsonObject]:
    """Yield the calls that have answers, each with the first words of the answer, and whether its prompt is kept."""
    columns = ("key", "at", "run", "query_id", "model", "usage", "outputs", "request")
    for row in answers.select(columns, f"WHERE {condition} ORDER BY id", values):
        answer = _answers(row.pop("outputs"))[0]
        has_prompt = row.pop("request") is not None
        yield row | {
            "at": _day(row["at"]),
            "prompt": has_prompt,
            "begins": " ".join(answer.split())[:_BEGINS],
        }


def _show(answers: ResponseCache, arguments: argparse.Namespace) -> None:
    key = _checked(arguments.key)
    statement = (
        f"SELECT DISTINCT key FROM calls WHERE key GLOB ? AND {_USABLE} ORDER BY key LIMIT 2"
    )
    keys = [str(full_key) for (full_key,) in answers.query(statement, (f"{key}*",))]
    if not keys:
        raise DataError(f"no answer has the key {key}; cache export FILE writes them all")
    if len(keys) > 1:
        raise UsageError(f"more than one key begins with {key}: {', '.join(keys)}")
    call = read_call(answers.path, keys[0]) or {}
    call["at"] = _day(call["at"])
    print_stdout(
        json.dumps(call) + "\n"
        if arguments.json
        else "".join(f"{fit_line(line)}\n" for line in _call_lines(call))
    )


def _call_lines(call: JsonObject) -> Iterator[str]:
    """Yield the lines of a call: the request, message by message, and the response."""
    usage = usage_from_json(call["usage"])
    first = "" if call["first"] is None else f", {call['first']:.2f} s to the first token"
    seconds = f"{call['seconds']:.1f} s"
    yield f"{call['key']}  {call['model']}  {call['at']}  {seconds}{first}"
    yield f"query {call['query_id'] or '-'} of {call['run'].rpartition('/')[0]}"
    tokens = f"{plural(usage.input_tokens, 'token')} in, {usage.output_tokens:,} out"
    yield f"{tokens}, price {_usd(usage.paid_usd)}; it ended with {call['finish']}"
    if call["messages"] is None:
        yield from (
            "",
            "What was sent was not kept: by --no-prompts, by an earlier version, or cleared away "
            "since.",
        )
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
    condition, values = _condition(answers, arguments)
    keys = [
        key
        for (key,) in answers.query(
            f"SELECT DISTINCT key FROM calls WHERE {condition} ORDER BY key", values
        )
    ]
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
    condition, values = _condition(answers, arguments)
    if condition == _USABLE and not arguments.all:
        raise UsageError("say which: --run, --model, --key, --days, or --all")
    count = answers.query(f"SELECT count(*) FROM calls WHERE {condition}", values)[0][0]
    answers.clear(condition, values)
    _report_done(
        arguments,
        f"{plural(count, 'answer is', 'answers are')} removed; the books keep what was paid",
        {"cleared": count},
    )


def _condition(
    answers: ResponseCache, arguments: argparse.Namespace
) -> tuple[str, tuple[Any, ...]]:
    """Return the condition for the answers that the options name, and its values."""
    conditions: dict[str, tuple[Any, ...]] = {_USABLE: ()}
    if arguments.model:
        conditions["model = ?"] = (arguments.model,)
    if run := getattr(arguments, "run", None):
        begins = _run(answers, run).rpartition("/")[0] + "/"
        conditions["key IN (SELECT key FROM calls WHERE substr(run, 1, ?) = ?)"] = (
            len(begins),
            begins,
        )
    if key := getattr(arguments, "key", None):
        conditions["key = ?"] = (_checked(key),)
    if days := getattr(arguments, "days", None):
        conditions["at < ?"] = (time.time() - days * 86_400,)
    return " AND ".join(conditions), tuple(
        value for values in conditions.values() for value in values
    )


def _run(answers: ResponseCache, named: str) -> str:
    """Return the latest run that TASK/FOLDER or a folder names, as the table has it."""
    begins = "/".join(Path(named).parts[-2:]) + "/"
    statement = "SELECT run FROM calls WHERE substr(run, 1, ?) = ? ORDER BY id DESC LIMIT 1"
    for (run,) in answers.query(statement, (len(begins), begins)):
        return str(run)
    raise DataError(f"no run {named} has answers here; cache list has those that have")


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
