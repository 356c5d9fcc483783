"""What a person sees: progress on stderr, the table of scores on stdout. Computes nothing.

Colours and a live line on a terminal, plain lines elsewhere; rich itself honours NO_COLOR. Ids and errors come from
data and models, so they are stripped of control characters before they are printed.
"""

import io
import json
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import rich.box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task
from rich.table import Table
from rich.text import Text

from tools.command import clean, put_out, say

# A plain progress line is due after this many seconds or this share of the queries, whichever comes first.
PLAIN_SECONDS = 5.0
PLAIN_SHARE = 0.25


class _Talk(Console):
    """The console for talk: when nobody listens, because the pipe is closed or the disk full, it falls silent."""

    def __init__(self) -> None:
        super().__init__(stderr=True, highlight=False, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        self.quiet = True  # rich would end the program


def queries(count: int) -> str:
    """So many queries, in words."""
    return f"{count} {'query' if count == 1 else 'queries'}"


class Watch:
    """The progress of one run: queries done, running mean of the headline metric, calls, time, time left."""

    def __init__(
        self,
        queries: int,
        earlier: Sequence[float | None],
        metric: str,
        calls: Callable[[], int],
        *,
        quiet: bool = False,
    ) -> None:
        """`earlier` has the metric's values of queries answered before; `calls` tells the model calls so far."""
        self._queries = queries
        self._metric = metric
        self._values = [value for value in earlier if value is not None]
        self._done = self._earlier = len(earlier)
        self._calls = calls
        self._failed = 0
        self._quiet = quiet
        self._started = self._printed = time.monotonic()
        self._printed_at = self._earlier
        self._live: Progress | None = None
        console = _Talk()
        if not quiet and console.is_terminal:
            # The bar is last: it is what a narrow terminal may cut off.
            self._live = Progress(MofNCompleteColumn(), _About(self), BarColumn(bar_width=20), console=console)
            self._row = self._live.add_task("", total=queries, completed=self._earlier)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def add(self, value: float | None, *, failed: bool) -> None:
        """One more query is answered, with this value of the headline metric, None where that is undefined for it."""
        self._values += [] if value is None else [value]
        self._done += 1
        self._failed += failed
        done, now = self._done, time.monotonic()
        if self._live:
            self._live.update(self._row, completed=done)
        elif not self._quiet and (
            done == self._queries
            or now - self._printed >= PLAIN_SECONDS
            or done - self._printed_at >= PLAIN_SHARE * self._queries
        ):
            self._printed, self._printed_at = now, done
            say(f"{done}/{self._queries} queries  {self.about()}")

    def about(self) -> str:
        """Everything but the bar, in one line."""
        elapsed = time.monotonic() - self._started
        answered = self._done - self._earlier
        parts = [f"{self._metric} {sum(self._values) / len(self._values):.4f} so far"] if self._values else []
        parts.append(f"{self._calls()} calls")
        if self._failed:
            parts.append(f"{self._failed} failed")
        parts.append(f"{_clock(elapsed)} elapsed")
        if answered:
            parts.append(f"{_clock(elapsed / answered * (self._queries - self._done))} left")
        return "  ".join(parts)


class _About(ProgressColumn):
    """The words beside the bar; asked for by rich several times a second, so the clock and the calls go on."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def render(self, task: Task) -> Text:
        return Text(self._watch.about())


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def show(scores: dict[str, Any], *, as_json: bool = False) -> None:
    """Print a run's scores, or what is known of an unfinished one, on stdout."""
    if as_json:
        put_out(json.dumps(scores) + "\n", kept="in the run folder")
        return
    tables = [_table(scores["metrics"], scores["judgements"])] if scores["metrics"] else []
    if scores.get("losses", {}).get("queries"):
        tables += [losses_table(scores["losses"])]
    put_out(printed([*_headings(scores), *tables, *_footings(scores)]), kept="in the run folder")


def printed(parts: Iterable[str | Table]) -> str:
    """Lines and tables as they are printed on stdout; control characters and markup in lines are made harmless."""
    text = io.StringIO()
    # Rich looks at the real stdout for width and colours, but writes into the text, so that it meets no closed pipe.
    # A file or pipe has no width; rich takes 80 then, and would fold the cells of a wide table.
    real = Console()
    console = Console(
        file=text,
        highlight=False,
        soft_wrap=True,
        width=real.width if real.is_terminal else max(real.width, 200),
        force_terminal=real.is_terminal,
        color_system=real.color_system,  # type: ignore[arg-type]
    )
    for part in parts:
        console.print(plain(part) if isinstance(part, str) else part)
    return text.getvalue()


def plain(text: str) -> str:
    """Text of the data in a cell: no markup, no control characters."""
    return escape(clean(text))


def task_line(scores: dict[str, Any]) -> str:
    """What was asked: task, split, judgements, and whether it is invented data."""
    kind = scores["data"]
    note = "mini: bundled, invented; not comparable with published figures" if kind == "mini" else kind
    judgements = f", {scores['judgements']} judgements" if scores.get("judgements", "gold") != "gold" else ""
    return f"{scores['task']}  {scores['split']} split{judgements}  ({note})"


def system_line(scores: dict[str, Any]) -> str:
    """What answered: program, retriever, model."""
    model = "offline, no language model" if scores["lm"] == "offline" else scores["lm"]
    compiled = scores.get("compiled")
    prompts = f", compiled by {compiled['optimizer']} ({compiled['digest']})" if compiled else ""
    return f"{scores['program']} over {scores['retriever']}, model: {model}{prompts}"


def _headings(scores: dict[str, Any]) -> list[str]:
    lines = [task_line(scores), system_line(scores)]
    compiled = scores.get("compiled")
    if compiled and compiled.get("task") == scores["task"] and scores["split"] != "test":
        lines.append("dev queries are among these: it was compiled on them")
    if pool := scores["pool"]:
        what = "with every relevant document put in: a ceiling" if pool["kind"] == "oracle" else "of what was found"
        lines.append(f"pools of {pool['size']} {what}, from {', '.join(pool['of'])}")
    return lines


def _table(metrics: dict[str, dict[str, Any]], judgements: str) -> Table:
    """One row a metric; other judgements of the same metric, "nDCG@10 [pooled]", are columns of its row."""
    names = [name for name in metrics if "[" not in name]
    others = list(dict.fromkeys(name[name.index("[") + 1 : -1] for name in metrics if "[" in name))
    resampled = any("resampled" in metrics[name] for name in names)
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("metric")
    table.add_column(judgements if others else "mean", justify="right")
    table.add_column("95 % interval", justify="right")
    if resampled:
        table.add_column("mean of 1,000 resamples", justify="right")
    for other in others:
        table.add_column(escape(other), justify="right")
    for name in names:
        value = metrics[name]
        low, high = value["low"], value["high"]
        if value["mean"] is None:
            table.add_row(escape(name), "undefined", "for all of these queries")
            continue
        cells = ["too few queries" if low is None or high is None else f"{low:.4f} to {high:.4f}"]
        if resampled:
            means = value.get("resampled")
            cells.append(f"{means['mean']:.4f} +- {means['error']:.4f}" if means else "")
        cells += [_mean(metrics.get(f"{name} [{other}]")) for other in others]
        few = f" ({queries(value['queries'])})" if "queries" in value else ""
        table.add_row(escape(name) + few, f"{value['mean']:.4f}", *cells)
    return table


WIDTH = 30  # characters of a waterfall: all of the recall


def losses_table(losses: dict[str, Any]) -> Table:
    """A waterfall: what of recall was found, and where the rest was lost; fates that no document had are left out."""
    from evals.attribution import WORDS

    k = losses["cutoff"]
    shares, documents = losses["at"][str(k)], losses["documents"]
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"R@{k}: what became of relevant documents")
    table.add_column("share", justify="right")
    table.add_column("documents", justify="right")
    table.add_column("", no_wrap=True)
    reached = 0.0
    for fate, words in WORDS.items():
        if documents[fate]:
            start, end = (round(WIDTH * edge) for edge in (reached, reached + shares[fate]))
            reached += shares[fate]
            bar = " " * start + "█" * max(end - start, 1)
            table.add_row(words.format(k=k), f"{shares[fate]:.4f}", str(documents[fate]), bar)
    return table


def _mean(measured: dict[str, Any] | None) -> str:
    return "" if measured is None or measured["mean"] is None else f"{measured['mean']:.4f}"


def _bounds(bounds: dict[str, Any]) -> list[str]:
    """The floor and the ceiling that lie beside the run, where they have been run."""
    from evals.bounds import LABELS

    known = [(label, bounds[kind]) for kind, label in LABELS.items() if bounds.get(kind)]
    return [f"{label} of {bounds['metric']}: {one['mean']:.4f} ({one['what']})" for label, one in known]


def _footings(scores: dict[str, Any]) -> list[str]:
    usage = scores["usage"]
    price = "price unknown" if usage["list_usd"] is None else f"${usage['list_usd']:.4f}"
    asked = queries(scores["queries"])
    if scores["failed"]:
        asked += f", {scores['failed']} failed (scored 0; their errors are in outcomes.jsonl)"
    if scores["owed"]:
        asked += f", {scores['owed']} still owed: unfinished, so there is no score"
    lines = [*_bounds(scores.get("bounds", {})), *scores.get("notes", []), asked]
    used = "what it used is not known" if usage["calls"] is None else f"{usage['calls']} calls"
    if scores["lm"] != "offline" and usage["calls"] is not None:
        used += f", {usage['input_tokens']} tokens in, {usage['output_tokens']} out, {price}"
    if usage["repairs"]:
        used += f", {usage['repairs']} answers asked for again"
    if scores["invented_ids"]:
        used += f", {scores['invented_ids']} invented ids dropped"
    if scores["unusable"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in scores["unusable"].items())
        lines.append(f"answers that could not be used: {kinds}")
    if scores["followed"]:
        lines.append(f"documents that speak to the model, and were kept or obeyed: {scores['followed']}")
    if scores["shortened"]:
        lines.append(f"prompts shortened to fit the model: {scores['shortened']}")
    if scores["searches_cut"]:
        used += f", {scores['searches_cut']} searches cut to what the retriever's model takes"
    if scores.get("looks", 0) > 1 and scores["split"] != "dev":
        lines.append(
            f"look {scores['looks']} at test queries of {scores['task']} ({scores['data']}) with {scores['program']}"
        )
    if "seconds" in scores:
        used += f", {scores['seconds']:.1f} s"
    return [*lines, used, f"run: {scores['run']}"]
