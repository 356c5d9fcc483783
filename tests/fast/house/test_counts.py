"""A message writes a number of things with tools/number_format.py: "1 query", never "1 queries"."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.number_format import some_queries

ROOT = Path(__file__).parents[3]
PACKAGES = ("environments", "evals", "optimizers", "tools")
# The things that messages count.
THINGS = (
    "answers|calls|candidates|cells|columns|documents|episodes|files|judgements|lines|metrics|outcomes|"
    "pairs|passages|prompts|queries|rankings|reviewers|runs|searches|systems|tasks|tests|texts|"
    "trajectories|vectors"
)
COUNTED = re.compile(rf" (?:[a-z]+ )?(?:{THINGS})\b")
# Functions that write a number with its noun, or words in place of a number.
WRITERS = ("count_of", "plural", "queries", "some_queries")
CALLS = tuple(f"{name}(" for name in WRITERS)
# Texts before such a word, and verbs after a name; numbers that are always above 1.
NOT_COUNTED = {
    "base", "environment.task", "folder", "judgements", "name", "named", "part_name", "request.qrels",
    "request.split", "runs", "self._name", "tool", "url", "documents or 'no count of'",
    "paper['documents'] or 'no count of'", "largest", "max(pools)", "len(doc_ids)", "needed",
}  # fmt: skip


def values_before_text(source: str) -> Iterator[tuple[str, str]]:
    """Yield each value of an f-string, as it is in the source, with the text that follows it."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant):
                yield ast.unparse(value.value), text.value


def bare_counts(source: str) -> Iterator[str]:
    """Yield values of f-strings that stand before a noun in its plural, as they are in the source."""
    for written, text in values_before_text(source):
        if COUNTED.match(text) and not written.isupper() and not written.startswith(CALLS):
            yield written


@pytest.mark.parametrize("package", PACKAGES)
def test_a_message_counts_with_the_function_that_knows_the_singular(package):
    offenders = list[str]()
    for path in sorted((ROOT / package).rglob("*.py")):
        for written in bare_counts(path.read_text(encoding="utf-8")):
            if written not in NOT_COUNTED:
                offenders.append(f"{path.relative_to(ROOT)}: {written}")
    assert offenders == [], "write queries(n) or plural(n, 'thing') of tools/number_format.py"


def fixed_verbs(source: str) -> Iterator[str]:
    """Yield the values of f-strings that count things, before a verb in the plural."""
    for written, text in values_before_text(source):
        if written.startswith(CALLS) and re.match(r" (are|were|have|do|need|differ)\b", text):
            yield written


@pytest.mark.parametrize("package", PACKAGES)
def test_the_verb_after_a_number_of_things_agrees_with_it(package):
    offenders = [
        f"{path.relative_to(ROOT)}: {written}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for written in fixed_verbs(path.read_text(encoding="utf-8"))
    ]
    assert offenders == []


def test_one_of_several_queries_is_and_two_are():
    assert some_queries(1, 24) == "1 of 24 queries is"
    assert some_queries(0, 1) == "0 of 1 query is"
    assert some_queries(0, 24) == "0 of 24 queries are"
    assert some_queries(1, 1) == "1 of 1 query is"
    assert some_queries(2, 24) == "2 of 24 queries are"
    assert some_queries(1, 2, "has", "have") == "1 of 2 queries has"


def test_a_number_before_a_plural_is_found():
    source = (
        "f\"{n} queries and {len(x):,} dev documents of {queries(n)} in {plural(m, 'run')} calls\""
    )
    assert list(bare_counts(source)) == ["n", "len(x)"]
