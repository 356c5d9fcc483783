"""Requests of models read back from the parts in which the ledger keeps them, with their answers.

Rows of answers.sqlite3 are checked by the forms below when they are read; storage/ledger.py writes them.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired

import zstandard
from pydantic import Field
from typing_extensions import TypedDict

from sextant.tools import schemas
from sextant.tools.errors import DataError, RunIncomplete
from sextant.tools.platform import files
from sextant.tools.records import JsonObject
from sextant.tools.schemas import Amount, Key, UsageSchema


class StoredOutput(TypedDict, total=False):
    """An answer with its accompanying data, in DSPy's form, or as a turn of an agent."""

    text: str | None
    content: str | None


Outputs = Annotated[list[str | StoredOutput | None], Field(min_length=1)]


class CassetteLine(TypedDict):
    """A line of a cassette, after the first."""

    key: Key
    outputs: Outputs
    usage: UsageSchema
    finish: str
    seconds: Amount
    reasoning: NotRequired[str]


class CallRow(TypedDict, total=False):
    """Cells of a row in answers.sqlite3."""

    key: str
    run: str
    query_id: str
    model: str
    at: Annotated[
        float, Field(ge=0, le=2**37, allow_inf_nan=False)
    ]  # the year 6325: dates end with 9999
    seconds: Amount
    fault: str
    usage: UsageSchema
    outputs: Outputs
    finish: str
    request: str | None
    reasoning: str | None
    first: Amount | None


def parse_row(columns: Sequence[str], row: Sequence[Any]) -> JsonObject:
    """Return a row by its columns, with its JSON read. ValueError for other than was written there."""
    named = dict(zip(columns, row, strict=True))
    for column in named.keys() & {"usage", "outputs"}:
        named[column] = schemas.parse_json(Any, named[column])
    schemas.validate(CallRow, named)
    return named


def read_call(path: Path, key: str) -> JsonObject | None:
    """Return the call `key` of the answers at `path`, with its request; None if it is not kept.

    It has "messages", as Chat Completions has them, "tools" and "settings"; if the prompt was not
    kept, "messages" is None, the others are empty. "outputs" is the answer as the program got it,
    "reasoning" the model's thoughts before it ("": not known), "first" the seconds to the first
    token (None: not streamed). DataError for a damaged row.
    """
    if not path.is_file():
        return None
    statement = (
        "SELECT * FROM calls WHERE key = ? AND fault = '' AND outputs IS NOT NULL ORDER BY id "
        "LIMIT 1"
    )
    with _reading(path) as reader:
        reader.row_factory = sqlite3.Row
        row = reader.execute(statement, (key,)).fetchone()
        if row is None:
            return None
        try:
            call = parse_row(row.keys(), row)
            request = _parse(_join(reader, call["request"]) if call.get("request") else b"")
        except (ValueError, TypeError, AttributeError, LookupError, zstandard.ZstdError) as error:
            mend = f"the answer {key} is damaged; sextant cache clear --key {key}"
            raise DataError(f"{path}: {mend} ({error})") from None
    fields = {
        name: call[name]
        for name in ("key", "model", "run", "query_id", "at", "seconds", "finish", "usage")
    }
    thoughts = [
        output.get("reasoning_content") for output in call["outputs"] if isinstance(output, dict)
    ]
    reasoning = call.get("reasoning") or "".join(filter(None, thoughts))
    return (
        fields
        | request
        | {"outputs": call["outputs"], "reasoning": reasoning, "first": call.get("first")}
    )


class CallTime(NamedTuple):
    """When a call was answered, in seconds since 1970, how long that took, and its tokens."""

    key: str
    at: float
    seconds: float
    tokens: int


def read_call_times(path: Path, keys: Sequence[str]) -> dict[str, CallTime]:
    """Return the times of the calls `keys` that have an answer at `path`."""
    if not keys or not path.is_file():
        return {}
    statement = (
        "SELECT key, at, seconds, usage FROM calls WHERE fault = '' AND key IN "
        "(SELECT value FROM json_each(?)) ORDER BY id DESC"
    )
    times: dict[str, CallTime] = {}
    with _reading(path) as reader:
        for key, at, seconds, usage in reader.execute(statement, (json.dumps(keys),)):
            used = files.read_object(usage) or {}
            tokens = used.get("input_tokens", 0) + used.get("output_tokens", 0)
            times[key] = CallTime(key, at, seconds, tokens)
    return times


class CallTexts:
    """The texts of calls in a file of answers, with requests in the parts that they are kept in."""

    def __init__(self, reader: sqlite3.Connection) -> None:
        self._reader = reader

    def calls(self, key: str) -> list[tuple[list[int], list[Any], str]]:
        """Return the ids of a request's parts, the outputs and the reasoning of each answer."""
        statement = "SELECT request, outputs, reasoning FROM calls WHERE fault = '' AND key = ?"
        return [
            (files.loads(request or "[]"), files.loads(outputs or "[]"), reasoning or "")
            for request, outputs, reasoning in self._reader.execute(statement, [key])
        ]

    def parts(self, part_ids: Sequence[int]) -> Iterator[tuple[int, str]]:
        """Yield the ids and texts of parts, JSON with its lines and quotation marks as shown."""
        statement = "SELECT id, text FROM parts WHERE id IN (SELECT value FROM json_each(?))"
        for part_id, packed in self._reader.execute(statement, [json.dumps(part_ids)]):
            text = zstandard.decompress(packed).decode("utf-8", "replace")
            yield part_id, text.replace("\\n", "\n").replace('\\"', '"')


@contextmanager
def open_call_texts(path: Path) -> Iterator[CallTexts | None]:
    """Open the texts of the answers at `path`, to be read; None if there is no such file."""
    if not path.is_file():
        yield None
        return
    with _reading(path) as reader:
        yield CallTexts(reader)


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    uri = f"{path.resolve().as_uri()}?mode=ro"
    with translate_sqlite_errors(path), closing(sqlite3.connect(uri, uri=True)) as reader:
        yield reader


def _join(reader: sqlite3.Connection, request: str) -> bytes:
    """Return a request of its parts; b"" if one was cleared away by another process."""
    statement = (
        "SELECT text FROM json_each(?) AS one LEFT JOIN parts ON parts.id = one.value ORDER BY "
        "one.key"
    )
    texts = [text for (text,) in reader.execute(statement, (request,))]
    return b"" if None in texts else b"".join(map(zstandard.decompress, texts))


def _parse(request: bytes) -> JsonObject:
    """Return the messages, tools and settings of a request, whichever the protocol, or DSPy's pair of both."""
    if not request:
        return {"messages": None, "tools": [], "settings": {}}
    try:
        parsed = json.loads(request)
    except ValueError:  # lone surrogates on their way through DSPy
        parsed = [request.decode("utf-8", "replace"), {}]
    messages, settings = (
        parsed
        if isinstance(parsed, list)
        else (parsed.pop("messages", None) or parsed.pop("input"), parsed)
    )
    messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    return {
        "messages": [_message(item) for item in messages],
        "tools": settings.pop("tools", []),
        "settings": settings,
    }


def _message(item: JsonObject) -> JsonObject:
    """Return an item of the Responses protocol as a message of Chat Completions."""
    if item.get("type") == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if item.get("type") == "function_call_output":
        return {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
    if item.get("type") == "reasoning":
        return {"role": "assistant", "content": "", "reasoning_items": [item]}
    return {"role": "user", **item}


@contextmanager
def translate_sqlite_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors about the file at `path` into ours, which name a remedy."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        operational = isinstance(error, sqlite3.OperationalError)
        if operational and ("disk" in str(error) or "unable to open" in str(error)):
            raise RunIncomplete(f"{path}: {error}; {files.remedy(error)}") from None
        if operational and "locked" in str(error):
            raise RunIncomplete(
                f"{path}: {error} by another process; the same command goes on"
            ) from None
        if not path.is_file():
            raise RunIncomplete(f"{path} cannot be made: {error}; choose another --runs") from None
        raise DataError(
            f"{path}: {error}; keep it, as its answers were paid for: sqlite3 {path} .recover | "
            f"sqlite3 NEWFILE saves "
            "what can be read, to be put in its place; or choose another --runs"
        ) from None
    except OSError as error:
        raise RunIncomplete(f"{path}: {error.strerror or error}") from None
