"""The progress of a run in words.

Reasons to wait come from providers, so they are stripped of control characters. live_progress.py
and progress_display.py print them.
"""

import math

from sextant.evals.running.events import Progress
from sextant.tools.models.run_resources import CallStats
from sextant.tools.platform.cli import strip_control_characters
from sextant.tools.platform.number_format import queries
from sextant.tools.records import Usage


def plain_line(progress: Progress) -> str:
    """Return the progress in a line."""
    calls = progress.status
    usage = progress.status.usage
    noun = "call" if usage.calls == 1 and not progress.expected_calls else "calls"
    call_count = f"{_count(usage.calls)}{_of_expected(progress)} {noun}"
    if apart := ", ".join(_apart(calls)):
        call_count += f" ({apart})"
    mean = ""
    if progress.mean is not None:
        mean = f"{progress.metric} {progress.mean:.4f} so far"
    in_flight = ""
    if calls.in_flight:
        in_flight = f"{calls.in_flight} of {calls.limit} in flight"
    figures = [
        f"{progress.done}/{queries(progress.queries)}",
        _some(progress.owed, "pending"),
        _some(progress.failed, "failed"),
        mean,
        call_count,
        in_flight,
        _some(calls.waiting, "waiting"),
    ]
    if _is_paid(usage):
        tokens_in = _count(usage.input_tokens)
        figures.append(f"{tokens_in} tokens in, {_count(usage.output_tokens)} out")
        figures.append(", ".join(_dollars(progress)))
    figures += [f"{clock(progress.elapsed)} elapsed", _left(progress)]
    return "  ".join(filter(None, figures))


def waiting_words(calls: CallStats) -> str:
    """Return the reason of a wait, in a line."""
    duration = f" {math.ceil(calls.seconds)} s" if calls.seconds else ""
    waiting_calls = f"{calls.waiting} {'call waits' if calls.waiting == 1 else 'calls wait'}"
    return f"waiting{duration}: {strip_control_characters(calls.reason)}; {waiting_calls}"


def clock(seconds: float) -> str:
    """Write seconds as 12:34, or 5h06m from an hour on."""
    minutes, remaining = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}h{minutes % 60:02}m"
    return f"{minutes}:{remaining:02}"


def _left(progress: Progress) -> str:
    return (
        f"{clock(progress.left)} left" if progress.left and progress.done < progress.queries else ""
    )


def _is_paid(usage: Usage) -> bool:
    """Return whether tokens and dollars mean anything: the engine without a model has none,
    and no limit.
    """
    return bool(usage.input_tokens or usage.output_tokens or usage.paid_usd != 0)


def _of_expected(progress: Progress) -> str:
    return f" of ~{_count(progress.expected_calls)}" if progress.expected_calls else ""


def _apart(calls: CallStats) -> list[str]:
    return list(
        filter(None, (_some(calls.usage.cached_calls, "cached"), _some(calls.failed, "failed")))
    )


def _dollars(progress: Progress) -> list[str]:
    """Return dollars so far, to come, and at list price, if a part had been paid for before."""
    usage = progress.status.usage
    to_come = progress.to_come.paid_usd
    if usage.paid_usd is None:
        return ["price unknown"]
    listed = (
        ""
        if usage.list_usd is None or usage.list_usd == usage.paid_usd
        else f"{_usd(usage.list_usd)} list"
    )
    to_pay = (
        "" if to_come is None or progress.done == progress.queries else f"{_usd(to_come)} to come"
    )
    return list(filter(None, (f"{_usd(usage.paid_usd)} so far", to_pay, listed)))


def _usd(amount: float) -> str:
    return f"${amount:.4f}" if amount < 1 else f"${amount:.2f}"


def _some(count: int, label: str) -> str:
    return f"{_count(count)} {label}" if count else ""


def _count(number: float) -> str:
    """Write a count in at most four characters: 9999, 10k, 1.2M, 3B."""
    if number < 10_000:
        return str(number)
    thousands = 0
    while number >= 999.5 and thousands < 3:
        number = number / 1000
        thousands = thousands + 1
    return f"{number:.{1 if number < 9.95 else 0}f}{' kMB'[thousands]}"
