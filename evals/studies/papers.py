"""The cells of a paper's table, made: which runs they take, and what ours are beside the paper's.

What is asked for with a stand-in (another model, another retriever) is marked with both names. A run that cannot be
made gives its reason to its cells, and the others are made.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import environments
from environments.base import Environment
from evals.measuring.bounds import bound
from evals.measuring.described import describe, weighted_jaccard, word_shares
from evals.measuring.scored import Run, read
from evals.published.sections import Cell, Section, find
from evals.running.evaluation import run
from evals.running.request import Request
from tools import options
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
        self._runs: dict[tuple[str, str, str], Run | str] = {}

    def value(self, cell: Cell) -> tuple[float | None, str]:
        """Return (our value of a cell, why there is none or what stood in)."""
        if cell.lacks:
            return None, cell.lacks
        values, said = list[float](), ""
        for task in list_tasks(cell.task):
            value, said = self._value(cell, task)
            if value is None:
                return None, said or "undefined for these queries"
            values.append(value)
        return fmean(values), said

    def _value(self, cell: Cell, task: str) -> tuple[float | None, str]:
        if not cell.system:
            return self._statistic(cell, task), ""
        system = self.section.system(cell)
        if kind := system.get("bound"):
            return bound(kind, cell.metric, self.load(task, cell.split)), ""
        made = self.run(cell, task)
        if isinstance(made, str):
            return None, made
        judged = f" [{cell.judgements}]" if cell.judgements not in ("", made.scores["judgements"]) else ""
        measured = made.scores["metrics"].get(cell.metric + judged, {})
        return measured.get("resampled", measured).get("mean"), self.conditions.fields(system)[1]

    def request(self, cell: Cell, task: str) -> Request:
        """Return the request of a cell's run on one task."""
        asked, _ = self.conditions.fields(self.section.system(cell))
        metrics = tuple(dict.fromkeys(one.metric for one in self.section.cells if one.system == cell.system))
        given = {name: getattr(self.conditions, name) for name in ("data", "limit", "runs")}
        return options.make(Request, asked | given | {"task": task, "split": cell.split, "metrics": metrics})

    def run(self, cell: Cell, task: str) -> Run | str:
        """Return the run of a cell on one task, or why there is none."""
        key = (cell.system, task, cell.split)
        if key not in self._runs:
            self._runs[key] = self._run(cell, task)
        return self._runs[key]

    def _run(self, cell: Cell, task: str) -> Run | str:
        if (name := self.section.system(cell).get("give")) and name not in self.conditions.parameters:
            return f"-P {name}=FILE is needed: the release has none"
        try:
            made = run(self.request(cell, task))
            return str(made.problem) if made.problem else read(made.folder)
        except SextantError as problem:
            return str(problem)

    def _load(self, task: str, split: str) -> Environment:
        return environments.load(task, self.conditions.data, split).asking(limit=self.conditions.limit)

    def _statistic(self, cell: Cell, task: str) -> float | None:
        environment = self.load(task, cell.split)
        if cell.metric.startswith("jaccard "):
            other = self.load(cell.metric.removeprefix("jaccard "), cell.split)
            return weighted_jaccard(word_shares(environment), word_shares(other))
        return describe(environment, [cell.metric])[cell.metric]


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


def _compare(cell: Cell, ours: float | None, remark: str) -> dict[str, Any]:
    named = ("system", "task", "metric", "judgements", "split", "error", "note")
    difference = None if None in (ours, cell.value) else ours - cell.value  # type: ignore[operator]
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
