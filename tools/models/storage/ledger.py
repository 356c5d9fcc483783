"""The ledger of a run: it takes answers that are kept, and books what the run sends.

The answers themselves are in response_cache.py, limits on what may be sent in tools/models/call_limits.py.
"""

import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import TracebackType

from sextant.tools.errors import DataError, ProviderRefused, RunIncomplete, SessionRefusal
from sextant.tools.models.storage import request_store
from sextant.tools.models.storage.response_cache import (
    CACHED,
    INDEX,
    LONGEST_WORD,
    NAME,
    ModelResponse,
    ResponseCache,
    Row,
    UsageTotals,
    open_answers,
    storable,
)
from sextant.tools.platform import files
from sextant.tools.records import Usage, usage_from_json, usage_json

# Seconds; a query with less time left may fail for that alone: no pause between two attempts is
# longer
_SHORT = 15.0

_Failure = tuple[Exception, TracebackType | None]  # of a request that others wait for as well
_Price = Callable[[Usage], float | None]


def open_ledger(folder: Path, *, runs: Path | None = None) -> "Ledger":
    """Open the ledger of the run in `folder`, RUNS/task/name, or of a compilation anywhere in `runs`, or begin it."""
    mark = folder / "run-id"
    try:
        if not mark.exists():
            files.replace(mark, uuid.uuid4().hex[:12] + "\n")
        run = f"{folder.parent.name}/{folder.name}/{mark.read_text(encoding='utf-8').strip()}"
    except ValueError:
        mend = "sextant cache list --json has the run's id, to be put back"
        raise DataError(f"{mark} is not UTF-8; {mend}") from None
    except OSError as error:
        raise RunIncomplete(f"{mark}: {error.strerror or error}; {files.remedy(error)}") from None
    return Ledger(open_answers((runs or folder.parent.parent) / NAME), run)


class Ledger:
    """The ledger of a run: it looks up stored answers and records the run's requests. Threads share
    it.
    """

    def __init__(self, answers: ResponseCache, run: str) -> None:
        self.answers = answers
        answers.settle()
        self.run = storable(run)
        self._lock = threading.Lock()
        # By key: requests on their way, with what an equal one waits for, if there is one
        self._sent = dict[str, Future[_Failure | None] | None]()
        self.usage_totals, self._marks = answers.books_and_marks(
            self.run
        )  # those of earlier sittings included
        self.cassette: tuple[Mapping[str, ModelResponse], str] | None = None  # as in Terms

    @contextmanager
    def turn(
        self,
        query_id: str,
        key: str,
        model: str,
        price: _Price = lambda usage: None,
        *,
        deadline: float = math.inf,
    ) -> Iterator[ModelResponse | None]:
        """Give the block an answer to its request; None if there is none, and the block has to send
        and book it.

        `price` gives the list price of an answer, if that was not known when it came. An equal
        request that is in flight is waited for, until the `deadline` by time.monotonic;
        TimeoutError then. An Exception of the block is raised by all that wait, which would
        otherwise fail in sequence. They try themselves if it may be of this query alone: a limit of
        its session, or a deadline that is near.
        """
        self._wait_for_turn(key, deadline)
        failure = None
        try:
            yield self._take(storable(query_id), key, model, price)
        except Exception as error:
            if deadline - time.monotonic() > _SHORT and not isinstance(error, SessionRefusal):
                failure = error, error.__traceback__
            raise
        finally:
            with self._lock:
                awaited = self._sent.pop(key)
            if awaited:
                awaited.set_result(failure)

    def _wait_for_turn(self, key: str, deadline: float) -> None:
        """Wait until no other request for `key` is in flight. Raises its failure, if that is for
        all.
        """
        while True:
            with self._lock:
                if key not in self._sent:
                    self._sent[key] = None
                    return
                awaited = self._sent[key] = self._sent[key] or Future()
            try:
                failure = awaited.result(min(deadline - time.monotonic(), threading.TIMEOUT_MAX))
            except TimeoutError:
                raise TimeoutError(
                    "the same request of another query is not answered yet"
                ) from None
            if failure:
                raise failure[0].with_traceback(
                    failure[1]
                )  # where it went wrong, without those that have waited

    def _take(self, query_id: str, key: str, model: str, price: _Price) -> ModelResponse | None:
        if self.cassette is None:
            cached = self.answers.take(key, self.run, query_id)
        elif key in self.cassette[0]:
            cached = self.cassette[0][key], "", ""
        else:
            reason = (
                "it was recorded with another command, data or version; name a new file to record"
            )
            raise ProviderRefused(
                f"{self.cassette[1]} has no answer to a call of query {query_id!r}: {reason}"
            )
        if cached is None:
            return None
        answer, run, payer = cached
        if run == self.run and payer == query_id:
            return answer  # this query's own, from an earlier sitting: paid for by it, then as now
        list_usd = answer.usage.list_usd
        if list_usd is None and not answer.usage.unmetered:
            list_usd = price(answer.usage)  # nobody knew it then
        usage = replace(answer.usage, paid_usd=0.0, list_usd=list_usd, cached_calls=1)
        with self._lock:  # it is booked once, in however many sittings the query asks
            is_booked = (mark := hash((query_id, key))) in self._marks
            self._marks.add(mark)
        if not is_booked:
            self._book(cached=1, usage=Usage(list_usd=list_usd))
            row = self._row(query_id, key, model, ModelResponse([], usage, answer.finish), CACHED)
            self.answers.write([row | {"outputs": None}], wait=False)
        return answer._replace(usage=usage)

    def answered(
        self,
        query_id: str,
        key: str,
        model: str,
        answer: ModelResponse,
        sent: request_store.Packed | None = None,
    ) -> None:
        """Book an answered request, packed by kept.pack; it is on disk when this returns, or RunIncomplete."""
        request, parts = sent or (None, {})
        self.answers.write(
            [self._row(query_id, key, model, answer, "") | {"request": request}], parts
        )
        self._book(sent=1, answered=1, usage=answer.usage)

    def used_by_query(self) -> dict[str, Usage]:
        """Return query_id -> the usage of its answered requests, cached answers included."""
        usage_by_query = dict[str, Usage]()
        condition = "WHERE run = ? AND query_id != '' AND fault IN ('', ?, ?)"
        for row in self.answers.select(("query_id", "usage"), condition, (self.run, CACHED, INDEX)):
            query_id = row["query_id"]
            usage_by_query[query_id] = usage_by_query.get(query_id, Usage()) + usage_from_json(
                row["usage"]
            )
        return usage_by_query

    def gather(self, shard: "Ledger") -> None:
        """Take over the rows of a shard's ledger that are not here yet, all or none."""
        self.answers.gather(self.run, shard.answers, shard.run)

    def speed(self) -> dict[str, float]:
        """Return the median of seconds to a first token, and tokens a second from there; {} if none
        was streamed.
        """
        statement = (
            "SELECT first, seconds - first, json_extract(usage, '$.output_tokens') FROM calls"
        )
        rows = self.answers.query(
            f"{statement} WHERE run = ? AND fault = '' AND first IS NOT NULL", (self.run,)
        )
        firsts, writing, tokens = zip(*rows, strict=True) if rows else ((), (), ())
        rate = {"tokens_a_second": round(sum(tokens) / sum(writing), 1)} if sum(writing) else {}
        return {"first_token_seconds": median(firsts)} | rate if rows else {}

    def book(
        self,
        model: str,
        usage: Usage,
        *,
        fault: str = "",
        seconds: float = 0.0,
        query_id: str = "",
        key: str = "",
    ) -> None:
        """Book a request without an answer, by its `fault`; without a fault, the cost of an index."""
        row = self._row(
            query_id,
            key,
            model,
            ModelResponse([], usage, "" if fault else "stop", seconds),
            fault or INDEX,
        )
        with suppress(RunIncomplete) if fault else nullcontext():  # the failure itself is reported
            self.answers.write([row])
        calls = 0 if fault else usage.calls
        self._book(
            sent=1 if fault else calls, answered=calls, fault=fault and row["fault"], usage=usage
        )

    def _book(
        self, *, usage: Usage, sent: int = 0, answered: int = 0, cached: int = 0, fault: str = ""
    ) -> None:
        with self._lock:
            old = self.usage_totals
            faults = {**old.faults, fault: old.faults.get(fault, 0) + 1} if fault else old.faults
            self.usage_totals = UsageTotals(
                old.sent + sent,
                old.answered + answered,
                old.cached + cached,
                faults,
                old.usage + usage,
            )

    def _row(self, query_id: str, key: str, model: str, answer: ModelResponse, fault: str) -> Row:
        try:
            outputs = json.dumps(answer.outputs)
        except TypeError:
            outputs = None  # an output that JSON cannot hold: better paid for again than changed
        return {
            "key": key,
            "run": self.run,
            "query_id": storable(query_id),
            "model": storable(model),
            "at": round(time.time(), 3),
            "seconds": round(answer.seconds, 3),
            "fault": storable(fault)[:LONGEST_WORD],
            "usage": json.dumps(usage_json(answer.usage)),
            "outputs": outputs,
            "finish": storable(answer.finish)[:LONGEST_WORD],
            "request": None,
            "reasoning": storable(answer.reasoning) or None,
            "first": None if answer.first is None else round(answer.first, 3),
        }
