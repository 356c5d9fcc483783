"""Have people judge a benchmark that is being made: sheets of items out, answers in, and how far
all agree.

FOLDER/review/offered/SHEET.jsonl has a sample of the items that a stage gave, answers.jsonl the
answers of people, agreement.json the figures. An item's id is a digest of its content and question,
so that answers hold for a build made again as long as it shows the same. Left out: how a stage uses
a person's answer.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from statistics import fmean, multimode
from typing import Annotated, Any, NamedTuple, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from sextant.evals import web_page
from sextant.evals.run_folder import check_output
from sextant.tools import schemas
from sextant.tools.errors import DataError, UsageError
from sextant.tools.platform import files
from sextant.tools.platform.cli import CommandParser, print_stderr
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import show, tabulate
from sextant.tools.records import JsonObject
from sextant_construction.agreement import agree, interval_cell

Value = (
    str | list[str]
)  # one of an item's values; on a sheet where many apply those that do, in the item's order
NOBODY = "No person has checked this benchmark."
GRADES = {"0": "no", "1": "in part", "2": "fully"}
FIGURES = ("model agreement", "model kappa", "people agreement", "people kappa")
_PAGE = Path(__file__).parent / "review_sheet"
_FILE = "review/answers.jsonl"


class ReviewSheet(NamedTuple):
    """A question to people, the size of its sample, and the bar for a stage by their answers."""

    ask: str
    values: Mapping[
        str, str
    ] = {}  # what can be answered -> what it means; an item's own values come before these
    size: int | None = None  # items in the sample; None is all
    multiple: bool = False  # any number of values apply
    each: bool = False  # `size` is for each value that the model gave
    ordered: bool = False  # values go from low to high
    bar: Mapping[
        str, float
    ] = {}  # figure of agreement, with the model or between people -> the least that will do


ANNOTATION = {
    "right": "what the document implies",
    "other": "something else",
    "copied": "the document's own words",
}
QUERIES = {
    "unasked": "nobody would ask this",
    "leak": "its words give the answer away (say in a note which)",
}
CHANGED = {
    "met": "it still meets the condition",
    "fluent": "it reads well",
    "other": "it touches another condition",
}
BY_HEART = {
    "worse": "the release's is better",
    "other": "another, and right as well",
    "same": "the same",
}
HEART = "How does what the model knew by heart compare with what the release calls right?"
BIRCO = {
    "people agreement": 0.91,
    "people spearman": 0.81,
    "people macro_f1": 0.76,
}  # its own two's, section 3.3
SATISFIES = "Does the document satisfy the query?"
BOTH = {"model kappa": 0.6, "people kappa": 0.6}
RIGHT = {"model agreement": 0.9}
CHOSEN_BAR = {"model chosen": 0.9, "model left": 0.9}
SHEETS = {
    "screening": ReviewSheet(
        "Which class does the document belong to?", size=50, each=True, bar=RIGHT
    ),
    "annotation": ReviewSheet("What does the annotation say?", ANNOTATION, 50, bar=RIGHT),
    "clusters": ReviewSheet(
        "Which of these do not belong with the others?", size=40, multiple=True, bar=RIGHT
    ),
    "queries": ReviewSheet(
        "Which satisfy the query? And is anything wrong with it?",
        QUERIES,
        multiple=True,
        bar=CHOSEN_BAR,
    ),
    "gold": ReviewSheet(SATISFIES, GRADES, 100, ordered=True, bar=BOTH),
    "pooled": ReviewSheet(
        SATISFIES,
        GRADES,
        50,
        ordered=True,
        bar={"model agreement": 0.8},
    ),
    "ambiguity": ReviewSheet(
        "Which can be the moment that is remembered?", multiple=True, bar={"model chosen": 1.0}
    ),
    "negatives": ReviewSheet(
        "What is true of the changed sentence?",
        CHANGED,
        50,
        multiple=True,
        bar={"model agreement": 0.95},
    ),
    "contamination": ReviewSheet(HEART, BY_HEART, 100, ordered=True, bar=BIRCO),
    "transfer": ReviewSheet("Is the old passage contained in the new one?", {"yes": "", "no": ""}),
}


class Item(NamedTuple):
    """Something to be judged. An item shown under a value of its own is a choice, in an order that
    tells nothing.
    """

    show: Sequence[tuple[str, str]]  # (label, text)
    model: Value | None = None  # what the model said, which people do not see; None where none did
    values: Sequence[
        str
    ] = ()  # of this item alone, as ids of documents; the sheet's come after them


class ReviewAnswer(TypedDict):
    """A person's answer about an item; without a value it is a note alone."""

    item: str
    rater: Annotated[str, Field(pattern=r"\S")]
    value: str | list[str] | None
    note: NotRequired[str]


Row = JsonObject  # a line of offered/SHEET.jsonl: item, show, values, model
Answers = dict[tuple[str, str], ReviewAnswer]  # (item, rater) -> the last line


def identify(sheet: str, item: Item) -> str:
    """Return an item's id, SHEET-DIGEST, by the content that a person sees."""
    return f"{sheet}-{_hash([SHEETS[sheet].ask, item.show, [*item.values, *SHEETS[sheet].values]])}"


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def offer(folder: Path, sheet: str, items: Iterable[Item]) -> None:
    """Put a sample of the items on a sheet, in place of earlier items: the same for the same items in any order."""
    form = SHEETS[sheet]
    groups = defaultdict[str, dict[str, str]](dict)
    for item in items:
        name = identify(sheet, item)
        shown = dict(item.show)
        own_values = sorted(
            item.values, key=lambda value: _hash([name, value]) if value in shown else ""
        )
        values = [*own_values, *form.values]
        chosen = {value: shown.pop(value) for value in own_values if value in shown}
        model = item.model
        if form.multiple and model is not None:
            model = [value for value in values if value in model]
        show = [*shown.items(), *chosen.items()]
        group = groups[str(model) if form.each else ""]
        group[name] = files.dumps({"item": name, "show": show, "values": values, "model": model})
        if form.size and len(group) > form.size:
            del group[max(group)]
    lines = sorted(chain.from_iterable(group.items() for group in groups.values()))
    path = folder / f"review/offered/{sheet}.jsonl"
    files.mkdir_private(path.parent)
    files.replace(path, "".join(f"{line}\n" for _, line in lines))


def read_offered(folder: Path) -> dict[str, dict[str, Row]]:
    """Return the items of each sheet that has some, by id. UsageError if there is none."""
    offered = {}
    for name in SHEETS:
        rows = _read_lines(Row, folder / f"review/offered/{name}.jsonl")
        if items := {row["item"]: row for row in rows}:
            offered[name] = items
    if not offered:
        raise UsageError(f"{folder} has nothing to be judged; sextant build run offers it")
    return offered


def _read_lines(form: Any, path: Path, *, repair: bool = False) -> Iterator[Any]:
    parse = partial(schemas.parse_json, form)
    for _, row in files.read_lines(path, parse, "remove the line", repair=repair):
        yield row


def _read_answers(folder: Path, *, repair: bool = False) -> Answers:
    return {
        (row["item"], row["rater"]): row
        for row in _read_lines(ReviewAnswer, folder / _FILE, repair=repair)
    }


def _by_item(rows: Answers) -> dict[str, dict[str, Value]]:  # item -> rater -> value
    values_of = defaultdict[str, dict[str, Value]](dict)
    for (item, rater), row in sorted(rows.items()):
        if row["value"] is not None:
            values_of[item][rater] = row["value"]
    return values_of


def answers(folder: Path) -> dict[str, Value]:
    """Return the most frequent answer of people, by item; none if they are divided.

    If many values apply, those that more than half of the people chose.
    """
    settled = dict[str, Value]()
    for item, by in _by_item(_read_answers(folder)).items():
        if any(isinstance(value, list) for value in by.values()):
            chosen = Counter(chain.from_iterable(by.values()))
            settled[item] = [value for value, times in chosen.items() if 2 * times > len(by)]
        elif len(most := multimode(map(str, by.values()))) == 1:
            settled[item] = most[0]
    return settled


def write_sheet(folder: Path, out: Path) -> int:
    """Write the offered items as a page; return the number of items."""
    offered = read_offered(folder)
    sheets = [
        {
            "name": name,
            "ask": SHEETS[name].ask,
            "means": SHEETS[name].values,
            "many": SHEETS[name].multiple,
            # not what the model said
            "items": [
                {key: row[key] for key in ("item", "show", "values")} for row in items.values()
            ],
        }
        for name, items in offered.items()
    ]
    data = {
        "title": folder.resolve().name,
        "digest": _hash([list(items) for items in offered.values()]),
        "sheets": sheets,
    }
    scripts = [web_page.PAGE / f"{name}.js" for name in ("theme", "dom", "data", "frame")]
    scripts.append(_PAGE / "review.js")
    shell = web_page.html_shell("Review", _PAGE / "review.html")
    web_page.write_single_file(
        out,
        shell.replace("<body>", '<body class="review">'),
        (web_page.PAGE / "page.css").read_text("utf-8"),
        web_page.join_scripts(path.read_text("utf-8") for path in scripts),
        [("sheet.json", files.dumps(data).encode())],
    )
    return sum(map(len, offered.values()))


def import_answers(folder: Path, paths: Sequence[Path]) -> int:
    """Add people's answers from JSON Lines; print a line for each refused answer, and return their number."""
    items = {item: row for rows in read_offered(folder).values() for item, row in rows.items()}
    answered = _read_answers(folder, repair=True)
    new = []
    refused = 0
    for path in paths:
        lines = files.read_input(path).splitlines()
        for line_number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = _understand(line, items, answered)
            except ValueError as error:
                refused += 1
                print_stderr(f"{path}, line {line_number}: {error}")
                continue
            key = (row["item"], row["rater"])
            if answered.get(key) != row:
                answered[key] = row
                new.append(files.dumps(row).encode())
    if new:
        files.append_line(folder / _FILE, b"\n".join(new))
    return refused


def _understand(line: bytes, items: Mapping[str, Row], answered: Answers) -> ReviewAnswer:
    """Return the answer of a line. ValueError if it cannot be taken."""
    row: ReviewAnswer = schemas.parse_json(ReviewAnswer, line)
    name = row["item"]
    answer = row["value"]
    if name not in items:
        raise ValueError(f"no item {name!r} is offered; it may be of another build or state")
    if answer is not None:
        values = items[name]["values"]
        chosen = answer if isinstance(answer, list) else [answer]
        is_list = SHEETS[name.rpartition("-")[0]].multiple
        if isinstance(answer, list) != is_list or not {*chosen} <= {*values}:
            raise ValueError(f"{answer!r} is no answer to {name}, which takes {', '.join(values)}")
        if is_list:
            row["value"] = answer = [value for value in values if value in chosen]
    old = answered.get((name, row["rater"]))
    if old and old["value"] not in (None, answer):
        raise ValueError(
            f"{row['rater']} has judged {name} as {old['value']!r} before; remove the line that is "
            f"wrong, here or in {_FILE}"
        )
    return row


def measure_agreement(folder: Path) -> JsonObject:
    """Return how far people agree with the model and with each other on each sheet.

    `below` has a sentence for each figure below its bar.
    """
    values_of = _by_item(_read_answers(folder))
    settled = answers(folder)
    sheets = {}
    below = []
    for name, items in read_offered(folder).items():
        judged = [row for item, row in items.items() if item in values_of]
        if not judged:
            continue
        given = [values_of[row["item"]] for row in judged]
        people = [list(combinations(values.values(), 2)) for values in given]
        model = [
            [(row["model"], value) for value in values.values() if row["model"] is not None]
            for row, values in zip(judged, given, strict=True)
        ]
        figures = _measure("model", name, judged, model) | _measure("people", name, judged, people)
        for figure, bar in SHEETS[name].bar.items():
            mean = getattr(figures.get(figure), "mean", figures.get(figure))
            if mean is not None and mean < bar:
                below.append(
                    f"{name} is below its bar: {figure} {mean:.2f}, and should be {bar:.2f}"
                )
        sheets[name] = {
            "raters": sorted(set().union(*given)),
            "offered": len(items),
            "judged": len(judged),
            "judgements": sum(map(len, given)),
            "divided": sum(row["item"] not in settled for row in judged),
            **figures,
        }
    return {"sheets": sheets, "below": below}


def _measure(
    role: str,
    sheet: str,
    rows: Sequence[Row],
    pairs_by_item: list[list[tuple[Any, Any]]],
) -> JsonObject:
    """Return the agreement of pairs of answers to each row's item."""
    form = SHEETS[sheet]
    if form.multiple:  # each value applies or not
        pairs_by_item = [
            [
                (str(value in first), str(value in second))
                for first, second in pairs
                for value in row["values"]
            ]
            for row, pairs in zip(rows, pairs_by_item, strict=True)
        ]
    agreement = agree(pairs_by_item, list(form.values) if form.ordered else ())
    figures = agreement._asdict() if agreement else {}
    if form.multiple:
        pairs = [*chain.from_iterable(pairs_by_item)]
        for name, said in (("chosen", "True"), ("left", "False")):
            matches = [first == second for first, second in pairs if first == said]
            figures[name] = fmean(matches) if matches else None
    return {f"{role} {name}": figure for name, figure in figures.items()}


def describe(folder: Path) -> str:
    """Say in a line who has checked the benchmark, for the head of its card."""
    try:
        sheets, below = measure_agreement(folder).values()
    except UsageError:  # nothing is offered
        return NOBODY
    people = {rater for sheet in sheets.values() for rater in sheet["raters"]}
    if not people:
        return NOBODY
    judgements = plural(sum(sheet["judgements"] for sheet in sheets.values()), "judgement")
    checked = f"Checked by {plural(len(people), 'person', 'people')}: {judgements}"
    for name, sheet in sheets.items():
        if kappa := sheet.get("model kappa"):
            checked += f"; {name}: kappa {interval_cell(*kappa)}"
    return f"{'. '.join([checked, *below])}."


def add_options(parser: CommandParser) -> None:
    """Add the arguments of `review`."""
    option = parser.add_argument
    help_text = "take what people answered: the files that the page wrote"
    option("folder", type=Path, metavar="FOLDER", help="of the build")
    option("--out", type=Path, metavar="SHEET.html", help="write what is to be judged as a page")
    option(
        "--in",
        type=Path,
        nargs="+",
        default=[],
        dest="answers",
        metavar="ANSWERS.jsonl",
        help=help_text,
    )


def command(arguments: Any) -> int:
    """Write a page, or take answers and say how far people agree; DataError if some are refused."""
    folder = arguments.folder
    out = arguments.out
    if bool(out) == bool(arguments.answers):
        raise UsageError(
            "give --out SHEET.html to have something judged, or --in ANSWERS.jsonl for what was "
            "answered"
        )
    if out:
        check_output(out)
        items = plural(write_sheet(folder, out), "item")
        show([f"{out}: {items} to be judged in a browser"])
        return 0
    refused = import_answers(folder, arguments.answers)
    result = measure_agreement(folder)
    files.replace(folder / "review/agreement.json", json.dumps(result, indent=2) + "\n")
    rows = [
        {"sheet": name, **{key: sheet[key] for key in ("judged", "offered", "divided")}}
        | {key: interval_cell(*(sheet.get(key) or [None])) for key in FIGURES}
        for name, sheet in result["sheets"].items()
    ]
    show(
        [
            tabulate("", rows),
            "kappa is - where nobody can be compared, or one side always says the same",
            *result["below"],
            describe(folder),
        ]
    )
    if refused:
        raise DataError(
            f"{plural(refused, 'answer')} refused, all others taken; mend these and give the "
            f"command again"
        )
    return 0
