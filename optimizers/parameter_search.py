"""Tuning what is not a prompt: parameters of a program, and its retriever, by a plain seeded
search.

    python -m optimizers.compile --program multihop --task congress --optimizer tune --range hops=1..6
        --retriever "fusion(bm25,rank_bm25,weights=[1,{w}])" --range "w=0.25|0.5|1|2"

A range is `low..high` or values with | between. It names a parameter of the program, or
`retriever`, or a {name} in --retriever, which is how weights, depths and the constants of BM25 are
tuned. The values are drawn at random without repeats (Bergstra and Bengio, JMLR 2012: better than a
grid where few parameters matter), or all are tried where there are few. Every combination is
evaluated on the training queries, the best on the validation queries too.
"""

import itertools
import math
import random
import re
import sys
from collections.abc import Mapping
from typing import Any

from evals.running.request import parse_parameters
from optimizers.candidate_evaluator import TeleprompterContext, TeleprompterResult
from tools.cli_options import list_parameters
from tools.errors import UnknownName, UsageError

RETRIEVER = "retriever"
VALIDATED = (
    3  # combinations that the validation queries choose from, the best on the training queries
)
# Values of a range of whole numbers; of a longer one so many, evenly spread, both ends among them
_MOST = 20
_INTERVALS = 5  # that a range of other numbers is cut into: six values

# What is tried of a parameter when no --range is given; values around what the papers and our
# programs take.
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
    """Parse `--range`: name -> values; without any, the usual ones of the parameters that the program has."""
    program_parameters = list_parameters(constructor)
    places = re.findall(r"\{(\w+)\}", retriever)
    range_texts = range_texts or {
        name: text for name, text in USUAL.items() if name in program_parameters
    }
    if not range_texts:
        remedy = "declare one, e.g. --range 'retriever=bm25|...'"
        raise UsageError(f"{program} has no parameter with a usual range; {remedy}")
    if RETRIEVER in range_texts and (places or "{" in range_texts[RETRIEVER]):
        raise UsageError(
            "--range retriever=... and {names} in a retriever do not go together; write out its "
            "values"
        )
    if lacking := [name for name in places if name not in range_texts]:
        raise UsageError(f"--retriever has {{{lacking[0]}}}, and no --range says what it may be")
    ranges: dict[str, list[Any]] = {}
    for name, text in range_texts.items():
        if not text.strip():
            raise UsageError(f"--range '{name}=' has no values; write NAME=low..high or NAME=a|b|c")
        if name in program_parameters:
            ranges[name] = [
                parse_parameters(program, constructor, {name: value_text})[name]
                for value_text in _values(name, text)
            ]
        elif name in (RETRIEVER, *places):
            ranges[name] = (
                _values(name, text)
                if name in places
                else [value_text.strip() for value_text in text.split("|")]
            )
        else:
            raise UnknownName(
                f"parameter of {program}", name, [*program_parameters, RETRIEVER, *places]
            )
        if len(ranges[name]) != len(set(ranges[name])):
            raise UsageError(f"--range {name}={text}: a value is there twice")
    return ranges


def _values(name: str, text: str) -> list[str]:
    if ".." not in text:
        return [value_text.strip() for value_text in text.split("|")]
    low, _, high = text.partition("..")
    try:
        first = float(low)
        last = float(high)
    except ValueError:
        raise UsageError(f"--range {name}={text}: low and high have to be numbers") from None
    if not (math.isfinite(first) and math.isfinite(last) and first < last):
        raise UsageError(f"--range {name}={text}: low has to be below high")
    if not all(re.fullmatch(r"\s*[+-]?\d+\s*", end) for end in (low, high)):
        return [
            f"{first + (last - first) * step / _INTERVALS:.6g}" for step in range(_INTERVALS + 1)
        ]
    numbers = range(int(low), int(high) + 1)
    most = min(_MOST, len(numbers))
    return [str(numbers[round(index * (len(numbers) - 1) / (most - 1))]) for index in range(most)]


def fill_template(retriever: str, chosen: Mapping[str, Any]) -> str:
    """Return the retriever of a combination: its own, or the one of the command line with its {names} filled in."""
    text = str(chosen.get(RETRIEVER, retriever))
    return re.sub(r"\{(\w+)\}", lambda match: str(chosen[match[1]]), text)


def each_retriever(template: str, declared: Ranges) -> list[str]:
    """List every retriever that a combination may have; at most a thousand of them."""
    names = (
        [RETRIEVER]
        if RETRIEVER in declared
        else list(dict.fromkeys(re.findall(r"\{(\w+)\}", template)))
    )
    product = itertools.islice(itertools.product(*(declared[name] for name in names)), 1000)
    return [fill_template(template, dict(zip(names, values, strict=True))) for values in product]


def combinations(declared: Ranges, trials: int, seed: int) -> list[dict[str, Any]]:
    """Draw at most `trials` different combinations of values; all of them when there are no more."""
    product_size = math.prod(map(len, declared.values()))
    if product_size <= trials:
        return [
            dict(zip(declared, values, strict=True))
            for values in itertools.product(*declared.values())
        ]
    drawn = []
    for number in random.Random(seed).sample(range(min(product_size, sys.maxsize)), trials):
        # a number of the product, whose digits are places in the ranges
        chosen = {}
        remaining = number
        for name, values in declared.items():
            remaining, position = divmod(remaining, len(values))
            chosen[name] = values[position]
        drawn.append(chosen)
    return drawn


def search(job: TeleprompterContext) -> TeleprompterResult:
    """Find the combination that is best on validation, of those that are best in training."""

    def variant(chosen: Mapping[str, Any]) -> Any:
        return job.study.instrument(job.inputs.program(chosen), chosen)

    def mean(chosen: Mapping[str, Any], part_name: str) -> float:
        return job.study.mean(
            job.study.evaluate(variant(chosen), part_name)[0].candidate, part_name
        )

    drawn = combinations(job.inputs.plan.ranges, job.options["trials"], job.request.seed)
    tried = sorted(
        drawn, key=lambda chosen: -mean(chosen, "train")
    )  # stable: of equal ones as they were drawn
    return TeleprompterResult(
        variant(max(tried[:VALIDATED], key=lambda chosen: mean(chosen, "validation")))
    )
