"""A user's own teleprompter: a function or a class in a file, with options, in the table's place."""

import json
import re
import sys
from pathlib import Path

import pytest

from sextant.optimizers import teleprompters
from sextant.programs.compiled import read

PAGE = (Path(__file__).parents[3] / "docs/guide/extend.md").read_text(encoding="utf-8")
SMALL = ("--limit", "4", "-P", "hops=1", "-P", "per_hop=5")
OTHERS = '''
import dspy

def renamed(context):
    """Another instruction"""
    program = context.student.deepcopy()
    for predictor in program.predictors():
        predictor.signature = predictor.signature.with_instructions("Search well.")
    return program

class Labeled:
    """The first examples as demonstrations"""
    def __init__(self, metric, k=1):
        self.k = k

    def compile(self, student, *, trainset):
        return dspy.LabeledFewShot(k=self.k).compile(student, trainset=trainset)

def nothing(context):
    return 7

number = 7
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "others_of_a_test.py").write_text(OTHERS)
    [script] = re.findall(r"```python\n(# few_shot\.py.*?)```", PAGE, re.DOTALL)
    (tmp_path / "few_shot.py").write_text(script)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield lambda name: f"others_of_a_test.py:{name}"
    for module in ("others_of_a_test", "few_shot"):
        sys.modules.pop(module, None)


def test_the_guides_example_compiles_as_it_is_printed(compiles, own):
    [command] = re.findall(r"sextant compile .*few_shot.*", PAGE)
    optimizer, *options = command.partition("--optimizer ")[2].split()
    result = compiles("--json", *SMALL, *options, optimizer=optimizer)
    assert result.code == 0, result.err
    learnt = json.loads(result.out)
    assert learnt["optimizer"] == "few_shot.py:few_shot"
    assert learnt["options"] == {"k": 1, "threshold": 0.1}
    assert learnt["candidates"] == 1
    assert read(Path(learnt["compiled"])).origin["optimizer"] == "few_shot.py:few_shot"


@pytest.mark.parametrize("name", ["renamed", "Labeled"])
def test_a_program_or_a_class_like_dspys_is_evaluated_as_a_candidate(name, compiles, own):
    result = compiles("--json", *SMALL, optimizer=own(name))
    assert result.code == 0, result.err
    learnt = json.loads(result.out)
    assert learnt["candidates"] == 1
    again = json.loads(compiles("--json", *SMALL, optimizer=own(name)).out)
    assert again | {"seconds": 0} == learnt | {"seconds": 0}


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("nothing", (), "returned a int; it has to return a teleprompter"),
        ("number", (), "it has to be a function or a class"),
        ("absent", (), "absent"),
        ("Labeled", ("-O", "depth=3"), "option of others_of_a_test.py:Labeled"),
        ("Labeled", ("-O", "k=many"), "the value has to be a whole number"),
    ],
)
def test_a_teleprompter_that_cannot_be_used_is_one_line(name, words, message, compiles, own):
    result = compiles(*SMALL, *words, optimizer=own(name))
    assert result.code == 2 and message in result.err, result.err


def test_a_name_of_the_table_wins():
    assert teleprompters.find_teleprompter("gepa") is teleprompters.TELEPROMPTERS["gepa"]
