"""Tuning parameters of a program, and its retriever, by a plain seeded search.

    sextant compile --program multihop --task congress --optimizer tune --range hops=1..6
        --retriever "fusion(bm25,rank_bm25,weights=[1,{w}])" --range "w=0.25|0.5|1|2"

A range is `low..high` or values with | between. It names a parameter of the program, or
`retriever`, or a {name} in --retriever, which is how weights, depths and the constants of BM25 are
tuned. The values are drawn at random without repeats (Bergstra and Bengio, JMLR 2012: better than a
grid if few parameters matter), or all are tried if there are few. Every combination is evaluated on
the training queries, the best also on the validation queries.
"""

import itertools
import math
import random
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from sextant.evals.running.request import parse_parameters
from sextant.optimizers.candidate_evaluator import TeleprompterContext, TeleprompterResult
from sextant.tools.errors import UnknownName, UsageError
from sextant.tools.platform.cli_options import list_parameters

RETRIEVER = "retriever"
# Combinations that the validation queries choose from: the best on the training queries.
VALIDATED = 3
# The most values of a range of whole numbers, evenly spread, both ends among them.
_MOST = 20
# Values of a range of other numbers.
_VALUES = 6
_PLACEHOLDER = re.compile(r"\{(\w+)\}")

# The values of a parameter if no --range is given, near those of the papers and of our programs.
USUAL: Mapping[str, str] = {
    "hops": "1..6",
    "per_hop": "10|25|50",
    "per_search": "5|10|25",
    "read_chars": "0|1000|2500",
    "rerank": "0|20",
    "steps": "6|12|20",
    "rounds": "1|2|3",
    "window": "10|20",
    "batch": "10|20",
    "most": "3|5|8",
}

Ranges = Mapping[str, list[Any]]


def parse_ranges(
    program: str,
    constructor: Any,
    retriever: str,
    range_texts: Mapping[str, str],
) -> Ranges:
    """Parse `--range`: name -> values; without any, the usual ranges of the program's parameters."""
    program_parameters = list_parameters(constructor)
    placeholders = _PLACEHOLDER.findall(retriever)
    if not range_texts:
        range_texts = {name: text for name, text in USUAL.items() if name in program_parameters}
    if not range_texts:
        raise UsageError(
            f"{program} has no parameter with a usual range; declare one, e.g. --range "
            f"'retriever=bm25|...'"
        )
    if RETRIEVER in range_texts and (placeholders or "{" in range_texts[RETRIEVER]):
        raise UsageError(
            "--range retriever=... and {names} in a retriever do not go together; write out its "
            "values"
        )
    if lacking := [name for name in placeholders if name not in range_texts]:
        raise UsageError(f"--retriever has {{{lacking[0]}}}, and no --range says what it may be")
    ranges: dict[str, list[Any]] = {}
    for name, text in range_texts.items():
        values: list[Any] = [value.strip() for value in text.split("|")]
        if ".." in text and name != RETRIEVER:
            values = _spread(name, text)
        if name in program_parameters:
            parsed = [parse_parameters(program, constructor, {name: value}) for value in values]
            values = [parameters[name] for parameters in parsed]
        elif name not in (*placeholders, RETRIEVER):
            raise UnknownName(
                f"parameter of {program}", name, [*program_parameters, RETRIEVER, *placeholders]
            )
        if len(values) != len(set(values)) or "" in values:
            raise UsageError(
                f"--range '{name}={text}' has an empty value, or a value twice; write "
                f"NAME=low..high or NAME=a|b|c"
            )
        ranges[name] = values
    return ranges


def _spread(name: str, text: str) -> list[str]:
    """Return the values of low..high: whole numbers, _MOST of them at most, or six others."""
    ends = text.partition("..")[::2]
    try:
        low, high = map(float, ends)
    except ValueError:
        raise UsageError(f"--range {name}={text}: low and high have to be numbers") from None
    if not -math.inf < low < high < math.inf:
        raise UsageError(f"--range {name}={text}: low has to be below high")
    if all(re.fullmatch(r"\s*[+-]?\d+\s*", end) for end in ends):
        count = min(_MOST, int(high - low) + 1)
        return [f"{round(value)}" for value in np.linspace(low, high, count)]
    return [f"{value:.6g}" for value in np.linspace(low, high, _VALUES)]


def fill_template(retriever: str, chosen: Mapping[str, Any]) -> str:
    """Return the retriever of a combination: its own, or `retriever` with its {names} filled in."""
    return _PLACEHOLDER.sub(
        lambda match: str(chosen[match[1]]), str(chosen.get(RETRIEVER, retriever))
    )


def combinations(declared: Ranges, trials: int, seed: int) -> list[dict[str, Any]]:
    """Draw at most `trials` different combinations of values, or all if there are fewer."""
    if math.prod(map(len, declared.values())) <= trials:
        product = itertools.product(*declared.values())
        return [dict(zip(declared, values, strict=True)) for values in product]
    generator = random.Random(seed)
    drawn: list[dict[str, Any]] = []
    while len(drawn) < trials:
        chosen = {name: generator.choice(values) for name, values in declared.items()}
        if chosen not in drawn:
            drawn.append(chosen)
    return drawn


def search(job: TeleprompterContext) -> TeleprompterResult:
    """Find the combination that is best on validation, of those that are best in training."""

    def variant(chosen: Mapping[str, Any]) -> Any:
        return job.study.instrument(job.inputs.program(chosen), chosen)

    def mean(chosen: Mapping[str, Any], part_name: str) -> float:
        return job.study.mean(job.study.evaluate(variant(chosen), part_name), part_name)

    # The sort is stable: equal ones stay as they were drawn.
    tried = sorted(job.inputs.plan.drawn, key=lambda chosen: -mean(chosen, "train"))
    best = max(tried[:VALIDATED], key=lambda chosen: mean(chosen, "validation"))
    return TeleprompterResult(variant(best))
