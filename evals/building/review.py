"""What people judge of a benchmark that is being made: sheets of items out, answers in, and how far all agree.

FOLDER/review/offered/SHEET.jsonl has a sample of the items that a stage gave, answers.jsonl what people said of them,
agreement.json what follows. An item's id is a digest of what is shown and asked, so that answers hold for a build made
again as long as it shows the same. Left out: what a stage does with a person's answer.
"""

import codecs
import csv
import hashlib
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, NamedTuple, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from evals.folder import check_output
from evals.formats.writing import compact
from evals.measuring.agreement import agree
from evals.measuring.stats import Interval
from evals.showing import one_file
from evals.showing.tables import Grid, printed
from tools import disk, forms
from tools.console import Parser, number, plural, positive, put_out, say
from tools.errors import DataError, UsageError

Value = str | list[str]  # one of an item's values; on a sheet where many apply those that do, in the item's order
NOBODY = "No person has checked this benchmark."
GRADES = {"0": "no", "1": "in part", "2": "fully"}
_PAGE = one_file.PAGE.parent / "review"
_FILE = "review/answers.jsonl"


class Sheet(NamedTuple):
    """What people are asked about, how many of them, and what a stage has to reach by their answers."""

    ask: str
    values: Mapping[str, str] = {}  # what can be answered -> what it means; an item's own values come before these
    size: int | None = None  # items in the sample; None is all
    raters: int = 1  # people who should judge each item
    many: bool = False  # any number of values apply
    each: bool = False  # `size` is for each value that the model gave
    ordered: bool = False  # values go from low to high
    bar: Mapping[str, float] = {}  # figure of agreement, with the model or between people -> the least that will do


ANNOTATION = {"right": "what the document implies", "other": "something else", "copied": "the document's own words"}
QUERIES = {"unasked": "nobody would ask this", "leak": "its words give the answer away (say in a note which)"}
CHANGED = {"met": "it still meets the condition", "fluent": "it reads well", "other": "it touches another condition"}
BY_HEART = {"worse": "the release's is better", "other": "another, and right as well", "same": "the same"}
HEART = "How does what the model knew by heart compare with what the release calls right?"
BIRCO = {"people agreement": 0.91, "people spearman": 0.81, "people macro_f1": 0.76}  # its own two's, section 3.3
SATISFIES, BOTH = "Does the document satisfy the query?", {"model kappa": 0.6, "people kappa": 0.6}
RIGHT, FOUND = {"model agreement": 0.9}, {"model chosen": 0.9, "model left": 0.9}
SHEETS = {
    "screening": Sheet("Which class does the document belong to?", size=50, each=True, bar=RIGHT),
    "annotation": Sheet("What does the annotation say?", ANNOTATION, 50, bar=RIGHT),
    "clusters": Sheet("Which of these do not belong with the others?", size=40, many=True, bar=RIGHT),
    "queries": Sheet("Which satisfy the query? And is anything wrong with it?", QUERIES, many=True, bar=FOUND),
    "gold": Sheet(SATISFIES, GRADES, 100, raters=2, ordered=True, bar=BOTH),
    "pooled": Sheet(SATISFIES, GRADES, 50, ordered=True, bar={"model agreement": 0.8}),
    "ambiguity": Sheet("Which can be the moment that is remembered?", raters=2, many=True, bar={"model chosen": 1.0}),
    "negatives": Sheet("What is true of the changed sentence?", CHANGED, 50, many=True, bar={"model agreement": 0.95}),
    "contamination": Sheet(HEART, BY_HEART, 100, raters=2, ordered=True, bar=BIRCO),
    "transfer": Sheet("Is the old passage contained in the new one?", {"yes": "", "no": ""}),
}


class Item(NamedTuple):
    """Something to be judged. What is shown under one of its own values is a choice, in an order that tells nothing."""

    show: Sequence[tuple[str, str]]  # (label, text)
    model: Value | None = None  # what the model said, which people do not see; None where none did
    values: Sequence[str] = ()  # of this item alone, as ids of documents; the sheet's come after them


class AnswerForm(TypedDict):
    """What a person said of an item; without a value it is a note alone."""

    item: str
    rater: Annotated[str, Field(pattern=r"\S")]
    value: str | list[str] | None
    note: NotRequired[str]


Row = dict[str, Any]  # a line of offered/SHEET.jsonl: item, show, ask, values, model
Answers = dict[tuple[str, str], AnswerForm]  # (item, rater) -> the last line


def identify(sheet: str, item: Item) -> str:
    """Return an item's id, SHEET-DIGEST, by what a person sees."""
    return f"{sheet}-{_hash([SHEETS[sheet].ask, item.show, [*item.values, *SHEETS[sheet].values]])}"


def _hash(of: Any) -> str:
    return hashlib.sha256(json.dumps(of).encode()).hexdigest()[:16]


def offer(folder: Path, sheet: str, items: Iterable[Item]) -> None:
    """Put a sample of the items on a sheet, in place of what was there: the same for the same items in any order."""
    form, groups = SHEETS[sheet], defaultdict[str, dict[str, str]](dict)
    for item in items:
        name, shown = identify(sheet, item), dict(item.show)
        own = sorted(item.values, key=lambda one: _hash([name, one]) if one in shown else "")
        values = [*own, *form.values]
        model = item.model
        if form.many and model is not None:
            model = [one for one in values if one in model]
        show = [part for part in item.show if part[0] not in own] + [(one, shown[one]) for one in own if one in shown]
        group = groups[str(model) if form.each else ""]
        group[name] = compact({"item": name, "show": show, "ask": form.ask, "values": values, "model": model})
        if form.size and len(group) > form.size:
            del group[max(group)]
    lines = dict(row for group in groups.values() for row in group.items())
    disk.make_private(folder / "review/offered")
    disk.replace(folder / f"review/offered/{sheet}.jsonl", "".join(f"{lines[name]}\n" for name in sorted(lines)))


def read_offered(folder: Path, names: Sequence[str] = ()) -> dict[str, dict[str, Row]]:
    """Return the items of each sheet that has some, or of those named. UsageError where there is none."""
    read = {name: _read_lines(Row, folder / f"review/offered/{name}.jsonl") for name in names or SHEETS}
    found = {name: items for name, rows in read.items() if (items := {row["item"]: row for row in rows})}
    if not found:
        which = f" on the sheet {' or '.join(names)}" if names else ""
        raise UsageError(f"{folder} has nothing to be judged{which}; python -m evals.build run offers it")
    return found


def _read_lines(form: Any, path: Path, *, repair: bool = False) -> Iterator[Any]:
    for place, line in enumerate(disk.lines(path, repair=repair), 1):
        try:
            yield forms.read(form, line)
        except ValueError as error:
            raise DataError(f"{path}, line {place} is damaged ({error}); remove the line") from None


def _read_answers(folder: Path, *, repair: bool = False) -> Answers:
    return {(row["item"], row["rater"]): row for row in _read_lines(AnswerForm, folder / _FILE, repair=repair)}


def _by_item(rows: Answers) -> dict[str, dict[str, Value]]:  # item -> rater -> value
    found = defaultdict[str, dict[str, Value]](dict)
    for (item, rater), row in sorted(rows.items()):
        if row["value"] is not None:
            found[item][rater] = row["value"]
    return found


def answers(folder: Path) -> dict[str, Value]:
    """Return what people said, by item: what more of them said than anything else; nothing where they are divided.

    Where many values apply, those do that more than half of them chose.
    """
    settled = dict[str, Value]()
    for item, by in _by_item(_read_answers(folder)).items():
        said = Counter(one for value in by.values() for one in (value if isinstance(value, list) else [value]))
        if any(isinstance(value, list) for value in by.values()):
            settled[item] = [one for one, times in said.items() if 2 * times > len(by)]
        elif (most := said.most_common(2))[0][1] > most[-1][1] or len(most) == 1:
            settled[item] = most[0][0]
    return settled


# --- sheets out


def write_sheet(folder: Path, out: Path, names: Sequence[str] = (), raters: int = 1) -> int:
    """Write what is offered as a page, and as a CSV file beside it; return the number of items."""
    offered, sheets = read_offered(folder, names), list[dict[str, Any]]()
    for name, items in offered.items():
        form = SHEETS[name]
        shown = [{key: row[key] for key in ("item", "show", "values")} for row in items.values()]  # not the model's
        more = {"means": form.values, "many": form.many, "everyone": form.raters > 1, "items": shown}
        sheets.append({"name": name, "ask": form.ask, **more})
    digest = _hash([raters, *map(list, offered.values())])
    data = disk.dumps({"title": folder.resolve().name, "digest": digest, "raters": raters, "sheets": sheets})
    style = "\n".join(path.read_text("utf-8") for path in (one_file.PAGE / "page.css", _PAGE / "review.css"))
    scripts = [*(one_file.PAGE / f"{name}.js" for name in ("dom", "data", "frame")), _PAGE / "review.js"]
    shell = (_PAGE / "review.html").read_text("utf-8")
    one_file.write(out, shell, style, one_file.join(scripts), [("sheet.json", data.encode())])
    with disk.replacing(out.with_suffix(".csv")) as file:
        file.write("\ufeff")  # by this mark a spreadsheet knows UTF-8
        rows = [["item", "question", "shown", "answers", "rater", "value", "note"]]
        rows += [_to_cells(SHEETS[name], row) for name, items in offered.items() for row in items.values()]
        # A spreadsheet takes what begins so for a formula (CWE-1236).
        safe = ([f"'{one}" if one.startswith(("=", "+", "-", "@", "\t", "\r")) else one for one in row] for row in rows)
        csv.writer(file, lineterminator="\n").writerows(safe)
    return sum(map(len, offered.values()))


def _to_cells(form: Sheet, row: Row) -> list[str]:
    values = row["values"]
    names = {value: f"[{place}]" if form.many else value for place, value in enumerate(values, 1)}
    shown = [f"{names.get(label, label) if form.many else label}: {text}" for label, text in row["show"]]
    how = "numbers of all that apply, as 1 3, or 0 for none: " if form.many else "one of: "
    told = ", ".join(f"{names[value]} {form.values.get(value, '')}".strip() for value in values)
    return [row["item"], row["ask"], "\n\n".join(shown), how + told, "", "", ""]


# --- answers in


def take(folder: Path, paths: Sequence[Path]) -> int:
    """Add people's answers from JSON Lines or CSV files; say, a line each, what is refused, and return how many are."""
    items = {one: (row, SHEETS[name].many) for name, rows in read_offered(folder).items() for one, row in rows.items()}
    known, new, refused = _read_answers(folder, repair=True), list[bytes](), 0
    for path in paths:
        for place, line in _read_file(path):
            try:
                row = _understand(line, items)
                old = known.get(key := (row["item"], row["rater"]))
                if old and None not in (old["value"], row["value"]) and old["value"] != row["value"]:
                    both = f"{row['rater']} has judged {row['item']} as {old['value']!r}, and here as {row['value']!r}"
                    raise ValueError(f"{both}; remove the line that is wrong, here or in {folder / _FILE}")
            except ValueError as error:
                refused += 1
                say(f"{path}, line {place}: {error}")
                continue
            if old != row and (not old or row["value"] is not None):
                known[key] = row
                new.append(disk.dumps(row).encode())
    if new:
        disk.append_line(folder / _FILE, b"\n".join(new))
    return refused


def _read_file(path: Path) -> Iterator[tuple[int, bytes | dict[str, str]]]:  # lines of JSON, or rows with an answer
    if path.suffix.lower() != ".csv":
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
        yield from ((place, line) for place, line in enumerate(lines, 1) if line.strip())
        return
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8; save it as CSV UTF-8") from None
    csv.field_size_limit(2**31 - 1)  # a cell has the texts of documents
    head = text.partition("\n")[0]
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=head.count))
    if missing := {"item", "rater", "value", "note"} - set(reader.fieldnames or ()):
        raise DataError(f"{path} has no column {min(missing)!r}; fill in the file that review --out wrote")
    for cells in reader:
        row = {key: (cells[key] or "").strip() for key in ("item", "rater", "value", "note")}
        if row["value"] or row["note"]:
            yield reader.line_num, row


def _understand(line: bytes | dict[str, Any], items: Mapping[str, tuple[Row, bool]]) -> AnswerForm:
    row: Any = line if isinstance(line, dict) else forms.read(AnswerForm, line)
    name, rater, said = row["item"], row["rater"].strip(), row["value"]
    if name not in items or not rater:
        why = f"no item {name!r} is offered; is it of another build, or of an earlier state of this one?"
        raise ValueError("it does not say who judged; fill in the rater" if name in items else why)
    values, many = items[name][0]["values"], items[name][1]
    if isinstance(line, dict) and many and said:
        numbers = {str(place): value for place, value in enumerate(values, 1)}
        said = [numbers.get(one, one) for one in re.split(r"[\s,;]+", said) if one != "0"]
    said = None if said == "" else said
    if said is not None and (isinstance(said, list) != many or not set(said if many else [said]) <= set(values)):
        raise ValueError(f"{row['value']!r} is no answer to {name}, which takes {', '.join(values)}")
    said = [value for value in values if value in said] if isinstance(said, list) else said
    return {"item": name, "rater": rater, "value": said, "note": row.get("note", "")}


# --- agreement


def compare(folder: Path) -> dict[str, Any]:
    """Return how far people agree with the model and with each other on each sheet, and what is below its bar."""
    given, settled = _by_item(_read_answers(folder)), answers(folder)
    sheets, below = dict[str, Any](), list[str]()
    for name, items in read_offered(folder).items():
        form, rows = SHEETS[name], [row for item, row in items.items() if item in given]
        if not rows:
            continue
        said = [list(given[row["item"]].values()) for row in rows]
        model = [
            [(row["model"], one) for one in of if row["model"] is not None] for row, of in zip(rows, said, strict=True)
        ]
        people = [list(combinations(of, 2)) for of in said]
        figures = _measure("model", form, rows, model) | _measure("people", form, rows, people)
        for figure, bar in form.bar.items():
            value = getattr(figures.get(figure), "mean", figures.get(figure))
            if value is not None and value < bar:
                below.append(f"{name} is below its bar: {figure} {value:.2f}, and should be {bar:.2f}")
        counts = {"offered": len(items), "judged": len(rows), "judgements": sum(map(len, said))}
        counts["divided"] = sum(row["item"] not in settled for row in rows)
        sheets[name] = {"raters": sorted({one for row in rows for one in given[row["item"]]}), **counts, **figures}
    return {"sheets": sheets, "below": below}


def _measure(who: str, form: Sheet, rows: Sequence[Row], said: Sequence[Sequence[tuple[Any, Any]]]) -> dict[str, Any]:
    if form.many:  # each value applies or not
        word = {False: "no", True: "yes"}
        said = [
            [(word[one in first], word[one in second]) for first, second in pairs for one in row["values"]]
            for row, pairs in zip(rows, said, strict=True)
        ]
    found = agree(said, list(form.values) if form.ordered else ())
    figures = found._asdict() if found else {}
    for name, of in (("chosen", "yes"), ("left", "no")) if form.many else ():  # shares of what the first has, or not
        same = [first == second for pairs in said for first, second in pairs if first == of]
        figures[name] = fmean(same) if same else None
    return {f"{who} {name}": figure for name, figure in figures.items()}


def describe(folder: Path) -> str:
    """Say in a line who has checked what is being made, for the head of its card."""
    with suppress(UsageError):  # nothing is offered
        sheets, below = compare(folder).values()
        people = {rater for sheet in sheets.values() for rater in sheet["raters"]}
        many = plural(sum(sheet["judgements"] for sheet in sheets.values()), "judgement")
        kappa = {name: sheet.get("model kappa") for name, sheet in sheets.items()}
        told = "".join(f"; {name}: kappa {_cell(value)}" for name, value in kappa.items() if value)
        if people:
            checked = f"Checked by {plural(len(people), 'person', 'people')}: {many}{told}"
            return ". ".join([checked, *below]) + "."
    return NOBODY


def _cell(value: Interval | None) -> str:
    if value is None or value.low is None:
        return number(value and value.mean, "{:.2f}", "-")
    return f"{value.mean:.2f} ({value.low:.2f} to {value.high:.2f})"


# --- the command


def add(parser: Parser) -> None:
    """Add the arguments of `review`."""
    option, answers = parser.add_argument, "JSON Lines, or the CSV file filled in: take what people answered"
    option("folder", type=Path, metavar="FOLDER", help="of the build")
    option("--out", type=Path, metavar="SHEET.html", help="write what is to be judged as a page, and as a CSV file")
    option("--in", type=Path, nargs="+", default=[], dest="answers", metavar="ANSWERS.jsonl", help=answers)
    only = f"with --out, these alone: {', '.join(SHEETS)}"
    option("--sheet", nargs="+", default=[], choices=SHEETS, metavar="NAME", help=only)
    option("--raters", type=positive, default=1, metavar="N", help="with --out, people who share the work")


def command(arguments: Any) -> int:
    """Write sheets, or take answers and say how far people agree; DataError where some are refused."""
    folder, out = arguments.folder, arguments.out
    if bool(out) == bool(arguments.answers):
        raise UsageError("give --out SHEET.html to have something judged, or --in ANSWERS.jsonl for what was answered")
    if out:
        if out.suffix != ".html":
            raise UsageError(f"{out} should end in .html; a CSV file of the same name is written beside it")
        check_output(out)
        many = plural(write_sheet(folder, out, arguments.sheet, arguments.raters), "item")
        put_out(f"{out}: {many} to be judged, in a browser, or in {out.with_suffix('.csv').name}\n")
        return 0
    refused, found = take(folder, arguments.answers), compare(folder)
    disk.replace(folder / "review/agreement.json", json.dumps(found, indent=2) + "\n")
    figures = [f"{who} {figure}" for who in ("model", "people") for figure in ("agreement", "kappa")]
    counts = ("judged", "offered", "divided")
    rows = [
        [name, *(str(sheet[key]) for key in counts), *(_cell(sheet.get(key)) for key in figures)]
        for name, sheet in found["sheets"].items()
    ]
    put_out(printed([Grid("", ["sheet", *counts, *figures], rows), *found["below"], describe(folder)]))
    if refused:
        raise DataError(f"{plural(refused, 'answer')} refused, all others taken; mend these and give the command again")
    return 0
