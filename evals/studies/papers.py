"""The cells of a paper's table, made: which runs they take, and what ours are beside the paper's.

What is asked for with a stand-in (another model, another retriever) is marked with both names. A run that cannot be
made gives its reason to its cells, and the others are made.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import environments
from environments.base import Environment
from evals.measuring.bounds import bound
from evals.measuring.described import Value, describe, weighted_jaccard, word_shares
from evals.measuring.scored import Run, read
from evals.published.sections import Cell, Section, find
from evals.running.evaluation import run
from evals.studies import plan
from tools import disk
from tools.errors import SextantError

OURS = ("name", "tasks", "bound", "give", "lacks")  # keys of a system that are no field of a request
LEXICAL = ("bm25", "bm25s", "rank_bm25", "pool_bm25")  # retrievers that need neither key nor weights
INVENTED = "miniatures are invented and never comparable with a paper: the difference says nothing"


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What a table is made with."""

    data: str | None = None
    limit: int | None = None
    lm: str = ""  # in place of the models of the paper
    retriever: str = ""  # in place of retrievers that need a key or weights
    parameters: Mapping[str, Any] = field(default_factory=dict)
    runs: Path = Path("runs")

    def fields(self, system: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Return (a system's fields of a request, which stand-ins are among them)."""
        asked, stand_ins = {key: value for key, value in system.items() if key not in OURS}, []
        if self.lm and asked.get("lm", self.lm) != self.lm:
            stand_ins.append(f"{self.lm} for {asked['lm']}")
            asked["lm"] = self.lm
        if self.retriever and asked.get("retriever", "bm25").partition("(")[0] not in (*LEXICAL, self.retriever):
            stand_ins.append(f"{self.retriever} for {asked['retriever']}")
            asked["retriever"] = self.retriever
        kind, _, named = asked.get("pool", "").partition("(")
        if self.retriever and named:
            stand_ins.append(f"{kind}({self.retriever}) for {asked['pool']}")
            asked["pool"] = f"{kind}({self.retriever})"
        if system.get("give") in self.parameters:
            asked["parameters"] = asked.get("parameters", {}) | {system["give"]: self.parameters[system["give"]]}
        return asked, "; ".join(stand_ins)


class Making:
    """The runs and statistics of one section, each made once, when a cell first needs it."""

    def __init__(self, section: Section, conditions: Conditions) -> None:
        self.section, self.conditions = section, conditions
        self.load = cache(self._load)
        self._requests = {(one.row, one.task): one.request for one in write_study(section, conditions)}
        self._runs: dict[tuple[str, str], Run | str] = {}

    def value(self, cell: Cell) -> tuple[Value, str]:
        """Return (our value of a cell, why there is none or what stood in)."""
        if cell.lacks:
            return None, cell.lacks
        if not cell.system:
            return self._statistic(cell), ""
        values, said = list[float](), ""
        for task in list_tasks(cell.task):
            value, said = self._value(cell, task)
            if value is None:
                return None, said or "undefined for these queries"
            values.append(value)
        return fmean(values), said

    def _value(self, cell: Cell, task: str) -> tuple[float | None, str]:
        system = self.section.system(cell)
        if kind := system.get("bound"):
            return bound(kind, cell.metric, self.load(task, cell.split)), ""
        made = self.run(cell, task)
        if isinstance(made, str):
            return None, made
        judged = f" [{cell.judgements}]" if cell.judgements not in ("", made.scores["judgements"]) else ""
        measured = made.scores["metrics"].get(cell.metric + judged, {})
        return measured.get("resampled", measured).get("mean"), self.conditions.fields(system)[1]

    def run(self, cell: Cell, task: str) -> Run | str:
        """Return the run of a cell on one task, or why there is none."""
        key = (name_row(self.section, cell), task)
        if key not in self._requests:
            return f"-P {self.section.system(cell)['give']}=FILE is needed: the release has none"
        if key not in self._runs:
            try:
                made = run(self._requests[key])
                self._runs[key] = str(made.problem) if made.problem else read(made.folder)
            except SextantError as problem:
                self._runs[key] = str(problem)
        return self._runs[key]

    def _load(self, task: str, split: str) -> Environment:
        return environments.load(task, self.conditions.data, split).asking(limit=self.conditions.limit)

    def _statistic(self, cell: Cell) -> Value:
        environment = self.load(cell.task, cell.split)
        if cell.metric.startswith("jaccard "):
            other = self.load(cell.metric.removeprefix("jaccard "), cell.split)
            return weighted_jaccard(word_shares(environment), word_shares(other))
        return describe(environment, [cell.metric])[cell.metric]


def name_row(section: Section, cell: Cell) -> str:
    """Return what the study calls the row that makes a cell: the paper's name, but for rows that it has several of."""
    system = section.system(cell)
    others = [one for one in section.systems if one["name"] == cell.system]
    number = f" ({others.index(system) + 1})" if system is not others[0] else ""
    split = f", {cell.split}" if len({one.split for one in section.cells}) > 1 else ""
    return f"{cell.system}{number}{split}"


def write_study(section: Section, conditions: Conditions) -> list[plan.Cell]:
    """Write the study of a section, RUNS/studies/SUITE-TABLE/study.toml; return its cells, which may be none."""
    rows: dict[str, dict[str, Any]] = {}
    metrics = dict.fromkeys(cell.metric for cell in section.cells if cell.system)
    for cell in section.cells:
        system = section.system(cell) if cell.system and not cell.lacks else {"bound": ""}
        if "bound" not in system and system.get("give") in (None, *conditions.parameters):
            name = name_row(section, cell)
            row = rows.setdefault(name, {"name": name, "tasks": [], "split": cell.split} | conditions.fields(system)[0])
            row["tasks"] += [task for task in list_tasks(cell.task) if task not in row["tasks"]]
    if not rows:
        return []
    name = section.name.replace("/", "-")
    tasks = list(dict.fromkeys(task for row in rows.values() for task in row["tasks"]))
    fixed = {key: getattr(conditions, key) for key in ("data", "limit") if getattr(conditions, key)}
    lines = [_toml({"name": name, "question": section.about["title"], "tasks": tasks})]
    lines += ["[fixed]", _toml(fixed | {"metrics": list(metrics)})]
    lines += [f"[[row]]\n{_toml(row)}" for row in rows.values()]
    file = conditions.runs / "studies" / name / "study.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    disk.replace(file, "\n".join(lines))
    return plan.cells(plan.read(file), conditions.runs)


def _toml(fields: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in fields.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_value(one)}' for key, one in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)


def list_tasks(task: str) -> list[str]:
    """Return the tasks of suite/* or suite/*:variant; another task alone."""
    suite, name, variant = environments.parts(task)
    every = environments.suite(suite).tasks if name == "*" else [name]
    return [f"{suite}/{one}{variant and ':'}{variant}" for one in every]


def reproduce(name: str, conditions: Conditions) -> dict[str, Any]:
    """Make a table or figure; return its cells, ours beside the paper's, and what they may be compared for."""
    section = find(name)
    making = Making(section, conditions)
    return {
        "name": name,
        "title": section.about["title"],
        "notes": list(_warn(section, conditions)),
        "cells": [_compare(cell, *making.value(cell)) for cell in section.cells],
    }


def _compare(cell: Cell, ours: Value, remark: str) -> dict[str, Any]:
    named = ("system", "task", "metric", "judgements", "split", "error", "note")
    both = isinstance(ours, int | float) and isinstance(cell.value, int | float)
    difference = ours - cell.value if both else None  # type: ignore[operator]
    found = {key: getattr(cell, key) for key in named}
    return found | {"published": cell.value, "ours": ours, "difference": difference, "remark": remark}


def _warn(section: Section, conditions: Conditions) -> Iterator[str]:
    tasks = dict.fromkeys(task for cell in section.cells for task in list_tasks(cell.task))
    kinds = {environments.folder_of(environments.resolve(task), conditions.data)[0] for task in tasks}
    if "mini" in kinds:
        yield INVENTED
    elif kinds - {"full"}:
        yield "a folder's data is not the pinned release: the difference may be that of the data"
    if conditions.limit:
        yield f"only the first {conditions.limit} queries of each task are asked: the paper's figures are over all"
