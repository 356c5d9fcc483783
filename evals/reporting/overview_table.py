"""Compared systems in one table: a row for each, a column for each metric."""

from collections.abc import Mapping, Sequence
from typing import Any

from evals.run_descriptions import model_name
from tools.number_format import abbreviate, plural
from tools.result_table import Cell, ResultTable

Result = Mapping[str, Any]
MARKS = "* the best by a metric; = does not differ from it"


def overview_table(result: Result, names: Sequence[str] = ()) -> ResultTable:
    """Return the systems of a comparison by its metrics; the best is bold and has a star."""
    ranked = result["by_metric"]
    rows = list[list[str]]()
    if not names:
        names = system_names(result)
    for place, name in enumerate(names):
        cells: list[str] = [name]
        for row in ranked:
            cells.append(_cell(row, place))
        rows.append(cells)
    metrics = [row["metric"] for row in ranked]
    heads = ["system", *metrics]
    return ResultTable("", heads, rows, note=explain_marks(result))


def explain_marks(result: Result) -> str:
    """Return the meaning of the marks, with the number of tests."""
    tests = 0
    for row in result["by_metric"]:
        tests += sum(p is not None for p in row["p"])
    if not tests:
        return "* the best by a metric; nothing is tested"
    count = f"{plural(tests, 'test')}, each system against the best by each metric"
    test = f"paired sign-flip permutation test, p >= .05 after Holm for {count}"
    return f"{MARKS} ({test})"


def system_names(result: Result) -> list[str]:
    """Return a name for each system of a comparison, told apart by its settings.

    The name is the program, with retriever and model if the systems differ in them, and with
    parameters if names would be equal.
    """
    systems = result["systems"]
    programs = list[str]()
    retrievers = list[str]()
    models = list[str]()
    for system in systems:
        programs.append(system["program"])
        retrievers.append(system["retriever"])
        models.append(model_name(system["lm"], system["program"]))
    names = _append_words(programs, retrievers)
    names = _append_words(names, models)
    named = list[str]()
    for name, system in zip(names, systems, strict=True):
        equal = list[Result]()
        for other_name, other in zip(names, systems, strict=True):
            if other_name == name:
                equal.append(other)
        settings = _own_settings(system, equal)
        named.append(f"{name} {settings}".strip())
    return _number_equal(named)


def _append_words(names: Sequence[str], words: Sequence[str]) -> list[str]:
    """Append to each name its word, if the words differ."""
    if len(set(words)) == 1:
        return list(names)
    longer = list[str]()
    for name, word in zip(names, words, strict=True):
        longer.append(f"{name} {word}")
    return longer


def _own_settings(system: Result, equal: Sequence[Result]) -> str:
    """Return the parameters of a system in which it differs from one of `equal` name."""
    words = list[str]()
    for key, value in system["parameters"].items():
        others = [other["parameters"].get(key) for other in equal]
        if any(other != value for other in others):
            shown = abbreviate(value, 20)
            words.append(f"{key}={shown}")
    compiled = system["compiled"]
    others = [other["compiled"] for other in equal]
    if compiled and any(other != compiled for other in others):
        words.append("compiled")
    return " ".join(words)


def _number_equal(names: Sequence[str]) -> list[str]:
    """Append a number to names that are equal still, as of runs of different code."""
    numbered = list[str]()
    for place, name in enumerate(names):
        before = names[:place].count(name)
        if names.count(name) > 1:
            name = f"{name} ({before + 1})"
        numbered.append(name)
    return numbered


def _cell(row: Result, place: int) -> Cell:
    mean = row["means"][place]
    if mean is None:
        return Cell("-")
    if place == row["leader"]:
        return Cell(f"{mean:.4f} *", mean, bold=True)
    is_equal = row["differs"][place] is False
    mark = "=" if is_equal else " "
    return Cell(f"{mean:.4f} {mark}", mean)
