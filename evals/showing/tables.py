"""Lines and tables in three forms: printed in the terminal, as GitHub's Markdown, and as LaTeX with
booktabs.

Ids, paths and names come from data: in each form they are text, without markup, control characters
or further columns. The terminal has colours where it takes them; rich honours NO_COLOR. A run's
scores are printed from here.
"""

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evals.measuring.scored import list_bounds
from evals.measuring.traces import WORDS
from programs import SCHEMES
from tools.console import clean, is_terminal, number, ordinal, plural, put_out, queries, spell_in

WIDTH = 80  # characters that a table has to fit into, where its cells are short
BAR = 30  # characters of a waterfall: all of the recall


class Best(str):
    """A cell that is the better of a row: bold."""

    __slots__ = ()


class Grid(NamedTuple):
    """A table. The columns in `names` hold words, the others numbers."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: Sequence[int] = (0,)
    note: str = ""  # what a reader has to know of it where it stands alone


Part = str | Grid


def printed(parts: Iterable[Part]) -> str:
    """Return lines and tables as they are printed on stdout; text of the data is shown as it
    is, never as markup.
    """
    text = io.StringIO()
    # Rich writes into the text, so that it meets no closed pipe, with the width and colours of the
    # real stdout. A file or pipe has no width; rich takes 80 then, and would fold the cells of a
    # wide table.
    real = Console()
    width = (real.width or WIDTH) if is_terminal(sys.stdout) else max(real.width, 200)
    as_real: Any = {
        "width": width,
        "force_terminal": real.is_terminal,
        "color_system": real.color_system,
    }
    console = Console(file=text, highlight=False, soft_wrap=True, **as_real)
    for part in parts:
        if isinstance(part, Grid) and part.title:
            console.print(_plain(part.title, real.encoding))
        console.print(
            _plain(part, real.encoding) if isinstance(part, str) else _draw(part, real.encoding)
        )
    return text.getvalue()


def _plain(text: str, encoding: str) -> Text:
    return Text(spell_in(encoding, clean(text)), style="bold" if isinstance(text, Best) else "")


def _draw(grid: Grid, encoding: str) -> Table:
    widths = [max(map(len, column)) for column in zip(grid.heads, *grid.rows, strict=True)]
    padding = (0, 0 if sum(widths) + 3 * len(widths) > WIDTH else 1)
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=padding, collapse_padding=False)
    for place, head in enumerate(grid.heads):
        side: Any = "left" if place in grid.names else "right"
        # On a narrow terminal a number goes on in the next line; rich would cut it.
        table.add_column(_plain(head, encoding), justify=side, no_wrap=not head, overflow="fold")
    for row in grid.rows:
        table.add_row(*(_plain(cell, encoding) for cell in row))
    return table


def to_markdown(parts: Sequence[Part]) -> str:
    """Return lines and tables as Markdown; the notes of tables are left out, because the
    lines say the same.
    """
    blocks = [""]
    for part in parts:
        if isinstance(part, str):
            text = in_markdown(part)
            together = blocks[-1] and text and not blocks[-1].endswith("|")
            blocks[-1:] = [f"{blocks[-1]}\\\n{text}"] if together else [blocks[-1], text]
            continue
        rule = [":---" if place in part.names else "---:" for place in range(len(part.heads))]
        rows = [[in_markdown(cell) for cell in part.heads], rule]
        rows += [
            [_embolden(cell, in_markdown(cell), "**", "**") for cell in row] for row in part.rows
        ]
        blocks += [
            f"**{in_markdown(part.title)}**",
            "\n".join(f"| {' | '.join(row)} |" for row in rows),
        ]
    return "\n\n".join(filter(None, blocks)) + "\n"


def in_markdown(text: str) -> str:
    """Return text that GitHub shows as it is: what has a meaning there has a backslash, also
    the bar between cells.
    """
    text = re.sub(r"([\\`*_\[\]<>#|~&$])", r"\\\1", clean(text))
    # So has the sign that begins a list, or the point after its number.
    return re.sub(r"^(\s*)(\d*)([-+]|(?<=\d)[.)])(\s)", r"\1\2\\\3\4", text).strip()


def to_latex(parts: Sequence[Part]) -> str:
    """Return floats with captions and booktabs' rules; lines are comments, because a paper
    has its own words.
    """
    blocks = [
        _float(part) if isinstance(part, Grid) else f"% {clean(part)}".rstrip()
        for part in parts
        if part
    ]
    return "\n".join(["% \\usepackage{booktabs}", *blocks]) + "\n"


def _float(grid: Grid) -> str:
    def cell(text: str, place: int) -> str:
        return _embolden(text, _in_latex(text, number=place not in grid.names), "\\textbf{", "}")

    caption = ". ".join(_in_latex(text) for text in (grid.title, grid.note) if text)
    columns = "".join("l" if place in grid.names else "r" for place in range(len(grid.heads)))
    rows = [" & ".join(cell(text, place) for place, text in enumerate(row)) for row in grid.rows]
    head = f"{' & '.join(map(_in_latex, grid.heads))} \\\\"
    begin = f"\\begin{{table}}\n\\centering\n\\caption{{{caption}}}\n\\begin{{tabular}}{{{columns}}}\n\\toprule"
    end = "\\bottomrule\n\\end{tabular}\n\\end{table}"
    return "\n".join([begin, head, "\\midrule", *(f"{row} \\\\" for row in rows), end])


_NAMED = {
    "\\": "backslash",
    "~": "asciitilde",
    "^": "asciicircum",
    "<": "less",
    ">": "greater",
    "|": "bar",
}
_LATEX = str.maketrans(
    {sign: f"\\text{name}{{}}" for sign, name in (_NAMED | {"`": "asciigrave"}).items()}
    | {sign: f"{{{sign}}}" for sign in "[]*"}  # after the end of a row they would be an argument
    | {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {"\N{REPLACEMENT CHARACTER}": "?"}
)


def _in_latex(text: str, *, number: bool = False) -> str:
    escaped = clean(text).translate(_LATEX)
    if number:
        return re.sub(r"(?<!\w)([-+])(?=[\d.])", r"$\1$", escaped).replace("\\textless{}", "$<$")
    return re.sub(r"-(?=-)", "-{}", escaped)  # two in a row would become a dash


def _embolden(cell: str, text: str, start: str, end: str) -> str:
    return f"{start}{text}{end}" if isinstance(cell, Best) else text


def to_csv(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


FORMS: dict[str, Callable[[Sequence[Part]], str]] = {
    "terminal": printed,
    "markdown": to_markdown,
    "latex": to_latex,
}


def model(name: str, program: str = "") -> str:
    """Return a model's name as it is shown; agents outside have one of their own."""
    if program.partition(":")[0] in SCHEMES:
        return "the agent's own"
    return "offline, no language model" if name == "offline" else name


def task_line(scores: dict[str, Any]) -> str:
    """Return the task, split and judgements of a run, and whether its data is invented."""
    kind = scores["data"]
    note = (
        "mini: bundled, invented; not comparable with published figures" if kind == "mini" else kind
    )
    judgements = (
        f", {scores['judgements']} judgements" if scores.get("judgements", "gold") != "gold" else ""
    )
    return f"{scores['task']}  {scores['split']} split{judgements}  ({note})"


def system_line(scores: dict[str, Any]) -> str:
    """Return the program, retriever and model of a run."""
    system = (
        f"{scores['program']} over {scores['retriever']}, model: "
        f"{model(scores['lm'], scores['program'])}"
    )
    if compiled := scores.get("compiled"):
        system += f", compiled by {compiled['optimizer']} ({compiled['digest']})"
        system += (
            f", prompts: {clean(compiled['file'])} (edited: {compiled['edited']})"
            if "edited" in compiled
            else ""
        )
    return system


def show_scores(scores: dict[str, Any], *, as_json: bool = False) -> None:
    """Print a run's scores, or what is known of an unfinished one, on stdout."""
    if as_json:
        put_out(json.dumps(scores) + "\n", kept="in the run folder")
        return
    tables: list[Part] = [_metrics_table(scores["metrics"], scores)] if scores["metrics"] else []
    if (part := scores.get("partial", {})).get("queries"):
        done = f"{part['queries']} of {queries(scores['queries'])}"
        head = f"partial: over the {done} that are answered; no score of the run"
        tables = [head, _metrics_table(part["metrics"], part)]
    if scores.get("losses", {}).get("queries"):
        tables += [_losses_table(scores["losses"])]
    put_out(printed([*_headings(scores), *tables, *_footings(scores)]), kept="in the run folder")


def _headings(scores: dict[str, Any]) -> list[str]:
    lines = [task_line(scores), system_line(scores)]
    if scores["split"] != "test" and scores["task"] in (scores.get("compiled") or {}).get(
        "task", ""
    ).split(","):
        lines.append("dev queries are among these: it was compiled on them")
    if scores.get("isolated"):
        lines.append(f"the program ran {scores['isolated']}")
    if pool := scores["pool"]:
        what = (
            "with every relevant document put in: a ceiling"
            if pool["kind"] == "oracle"
            else "of what was found"
        )
        lines.append(f"pools of {pool['size']} {what}, from {', '.join(pool['of'])}")
    return lines


def _metrics_table(metrics: dict[str, dict[str, Any]], scores: dict[str, Any]) -> Grid:
    names = [name for name in metrics if "[" not in name]
    others = list(dict.fromkeys(name[name.index("[") + 1 : -1] for name in metrics if "[" in name))
    resampled = any("resampled" in metrics[name] for name in names)
    heads = ["metric", scores["judgements"] if others else "mean", "95 % interval"]
    heads += [*(["mean of 1,000 resamples"] if resampled else []), *others]
    unjudged = scores.get("unjudged", {})
    heads += ["judged (pooled)", "if the rest were right"] if unjudged else []
    rows = []
    for name in names:
        value = metrics[name]
        low = value["low"]
        high = value["high"]
        means = value.get("resampled")
        if value["mean"] is None:
            rows.append([name, "undefined", "for all of these queries", *[""] * (len(heads) - 3)])
            continue
        row = [
            name + (f" ({queries(value['queries'])})" if "queries" in value else ""),
            f"{value['mean']:.4f}",
        ]
        row += ["too few queries" if low is None or high is None else f"{low:.4f} to {high:.4f}"]
        if resampled:
            row.append(f"{means['mean']:.4f} +- {means['error']:.4f}" if means else "")
        beside = [metrics.get(f"{name} [{other}]", {}).get("mean") for other in others]
        left = unjudged.get(name, {})
        beside += [left.get(key) for key in ("judged", "right")] if unjudged else []
        rows.append([*row, *(number(mean, unknown="") for mean in beside)])
    return Grid("", heads, rows)


def _losses_table(losses: dict[str, Any]) -> Grid:
    k = losses["cutoff"]
    shares = losses["at"][str(k)]
    documents = losses["documents"]
    rows = []
    reached = 0.0
    for fate, words in WORDS.items():
        if documents[fate]:
            start, end = (round(BAR * edge) for edge in (reached, reached + shares[fate]))
            reached += shares[fate]
            bar = " " * start + "█" * max(end - start, 1)
            rows.append([words.format(k=k), f"{shares[fate]:.4f}", str(documents[fate]), bar])
    return Grid(
        "",
        [f"R@{k}: what became of relevant documents", "share", "documents", ""],
        rows,
        names=(0, 3),
    )


def _footings(scores: dict[str, Any]) -> list[str]:
    found = scores.get("bounds", {})
    usage = scores["usage"]
    ledger = scores.get("ledger", {})
    lines = [
        f"{label} of {found['metric']}: {one['mean']:.4f} ({one['what']})"
        for label, one in list_bounds(found)
    ]
    many = queries(scores["queries"])
    if scores["failed"]:
        many += f", {scores['failed']} failed (scored 0; their errors are in outcomes.jsonl)"
    if scores["owed"]:
        many += f", {scores['owed']} unanswered, so there is no score yet"
    lines += [*scores.get("notes", []), many]
    for one in scores.get("failures", ()):
        at = f", at {one['at']}" if one["at"] and ", line " not in one["error"] else ""
        lines.append(
            f"failed: {queries(one['queries'])}, first {one['first']}, with {one['error']}{at}"
        )
    used = "what it used is not known" if usage["calls"] is None else f"{usage['calls']} calls"
    metered = scores["lm"] != "offline" or scores["program"].partition(":")[0] in SCHEMES
    if usage["calls"] and (metered or usage.get("unmetered")):
        used += _used(usage)
    used += f", {usage['repairs']} answers asked for again" if usage["repairs"] else ""
    used += f", {scores['invented_ids']} invented ids dropped" if scores["invented_ids"] else ""
    cut = scores["searches_cut"]
    used += f", {cut} searches cut to what the retriever's model takes" if cut else ""
    used += f", {scores['seconds']:.1f} s" if "seconds" in scores else ""
    if scores["unusable"]:
        lines.append(f"answers that could not be used: {_kinds(scores['unusable'])}")
    if scores["followed"]:
        lines.append(
            f"documents that speak to the model, and were kept or obeyed: {scores['followed']}"
        )
    if scores["shortened"]:
        lines.append(f"prompts shortened to fit the model: {scores['shortened']}")
    if scores.get("looks", 0) > 1 and scores["split"] != "dev":
        task = f"{scores['task']} ({scores['data']})"
        lines.append(
            f"{ordinal(scores['looks'])} evaluation of {scores['program']} on these test queries "
            f"of {task}"
        )
    if ledger and scores["owed"]:
        used = f"for the answered ones: {used}"
        lines.append(
            f"in all, unanswered queries included: {plural(ledger['sent'], 'request')} "
            f"sent{_used(ledger)}"
        )
    if "tokens_a_second" in ledger:
        speed = f"first token after {ledger['first_token_seconds']:.2f} s (median)"
        lines.append(f"{speed}, then {ledger['tokens_a_second']:,.0f} tokens a second")
    if faults := ledger.get("faults"):
        lines.append(f"requests left without an answer: {_kinds(faults)}, of {ledger['sent']} sent")
    return [*lines, used, f"run: {scores['run']}"]


def _kinds(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _used(usage: dict[str, Any]) -> str:
    cached = usage.get("cached_tokens")
    thinking = usage.get("reasoning_tokens")
    paid = usage["paid_usd"]
    listed = usage["list_usd"]
    # What answers of runs before would have cost is in the list price, too.
    told = None not in (paid, listed) and not (usage.get("cached_calls") or usage.get("cached"))
    saved = f", which saved ${listed - paid:.4f}" if told and listed > paid else ""
    parts = [
        f", {usage['input_tokens']} tokens in"
        + (f" ({cached} cached by the provider{saved})" if cached else "")
    ]
    parts.append(
        f"{usage['output_tokens']} out" + (f" ({thinking} of them thinking)" if thinking else "")
    )
    price = "price unknown" if listed is None else f"${listed:.4f}"
    both = None not in (paid, listed) and f"${paid:.4f}" != price
    parts.append(f"${paid:.4f} paid, {price} at list price" if both else price)
    others = {
        "cached_calls": "calls answered from runs before",
        "unmetered": "calls without usage reported",
    }
    return ", ".join(
        [*parts, *(f"{usage[key]} {words}" for key, words in others.items() if usage.get(key))]
    )
