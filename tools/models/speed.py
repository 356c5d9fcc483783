"""How fast a server reads prompts and writes answers, measured from its answers.

The measure of each model at its server is kept in $SEXTANT_HOME/speeds.json, for the forecast of
the next run and the time limit of its first calls. It never shapes a prompt: the same command has
to send the same prompts on every machine.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from typing_extensions import TypedDict

from sextant.tools import schemas
from sextant.tools.platform import files
from sextant.tools.records import Usage

NAME = "speeds.json"
# Tokens of a prompt or an answer below which the delay of a request hides the speed.
_LEAST_READ = 128
_LEAST_WRITTEN = 8
_FASTEST = 1e9  # more is a mistake
_SAMPLES = 32  # latest answers whose median counts
_SECONDS = 60.0  # between two times that a measure is kept on disk


class Speed(NamedTuple):
    """Tokens a second; None if that was not measured."""

    read: float | None = None  # of prompts, without what the server had cached
    write: float | None = None  # of answers, from their first token on

    def seconds(self, tokens_in: float, tokens_out: float) -> float | None:
        """Return how long a call of these tokens takes; None for an unknown speed."""
        if not (self.read and self.write):
            return None
        return tokens_in / self.read + tokens_out / self.write

    def __str__(self) -> str:
        read = _write_figure(self.read)
        written = _write_figure(self.write)
        return f"reads {read} and writes {written} tokens a second"


UNKNOWN = Speed()


class SpeedMeter:
    """The speed of a model: medians over its latest answers. Threads share it."""

    def __init__(self, spec: str = "") -> None:
        """Begin with the kept measure of the model `spec`; "" keeps none."""
        self._spec = spec
        self._read = deque[float](maxlen=_SAMPLES)
        self._written = deque[float](maxlen=_SAMPLES)
        if spec:
            known = read_speeds().get(spec, UNKNOWN)
            self._read += filter(None, [known.read])
            self._written += filter(None, [known.write])
        self._kept = float("-inf")  # when, by time.monotonic
        self._lock = threading.Lock()

    @property
    def speed(self) -> Speed:
        """The speed so far."""
        with self._lock:
            read = median(self._read) if self._read else None
            written = median(self._written) if self._written else None
            return Speed(read, written)

    def add(
        self,
        usage: Usage,
        seconds: float,
        first: float | None,
        timings: Any = None,
    ) -> None:
        """Count an answer that took `seconds`, `first` of them to its first token.

        `timings` are llama.cpp's own; they leave out the time that a request waited for a slot.
        """
        read, written = _own_speeds(timings)
        if first is not None and 0 < first < seconds:
            tokens_in = usage.input_tokens - usage.cached_tokens
            if read is None and tokens_in >= _LEAST_READ:
                read = tokens_in / first
            if written is None and usage.output_tokens > _LEAST_WRITTEN:
                written = (usage.output_tokens - 1) / (seconds - first)
        with self._lock:
            self._read += filter(None, [read])
            self._written += filter(None, [written])
            due = bool(read or written) and time.monotonic() - self._kept > _SECONDS
        if due:
            self.keep()

    def forget(self) -> None:
        """Begin again, as nothing had been measured."""
        with self._lock:
            self._read.clear()
            self._written.clear()

    def keep(self) -> None:
        """Write the measure to disk; a disk that takes nothing loses it, and nothing else."""
        self._kept = time.monotonic()
        speed = self.speed
        if not self._spec or speed == UNKNOWN:
            return
        speeds = read_speeds() | {self._spec: speed}
        rows = {spec: kept._asdict() for spec, kept in speeds.items()}
        path = _path()
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.replace(path, json.dumps(rows, indent=2) + "\n")


_Rate = Annotated[float, Field(gt=0, lt=_FASTEST)]


class _Row(TypedDict):
    """A measure in the file."""

    read: _Rate | None
    write: _Rate | None


def _write_figure(speed: float | None) -> str:
    if speed is None:
        return "?"
    if speed < 100:
        return f"{speed:.3g}"
    return f"{speed:,.0f}"


def read_speeds() -> dict[str, Speed]:
    """Return the kept measures by model; none if the file is missing or damaged."""
    with suppress(OSError, ValueError):
        rows = schemas.parse_json(dict[str, _Row], _path().read_text(encoding="utf-8"))
        return {spec: Speed(**row) for spec, row in rows.items()}
    return {}


def _path() -> Path:
    return files.sextant_home() / NAME


def _own_speeds(timings: Any) -> tuple[float | None, float | None]:
    """Return the speeds in llama.cpp's timings, each None if too few tokens were measured."""
    if not isinstance(timings, Mapping):
        return None, None
    read = None
    written = None
    if (_rate(timings, "prompt_n") or 0) >= _LEAST_READ:
        read = _rate(timings, "prompt_per_second")
    if (_rate(timings, "predicted_n") or 0) > _LEAST_WRITTEN:
        written = _rate(timings, "predicted_per_second")
    return read, written


def _rate(row: Mapping[str, Any], name: str) -> float | None:
    value: Any = row.get(name)
    if type(value) not in (int, float):  # isinstance would let True through
        return None
    return float(value) if 0 < value < _FASTEST else None
