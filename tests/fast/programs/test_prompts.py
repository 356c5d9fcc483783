"""Prompts of a user's own: what `programs show` prints is what a program has, and an edited word reaches the model."""

import json
import subprocess
import sys

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sextant.evals.running.request import SYSTEMS, parse_parameters
from sextant.evals.running.resolve import try_construct
from sextant.programs import __main__ as module
from sextant.programs.compiled import get_prompts
from sextant.programs.multihop import MultiHop, NextSearch
from sextant.programs.prompts import describe, read, write_toml
from sextant.tools.models.prompting import Adapter, with_instructions
from sextant.tools.plugins import load_object

TEXT = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("\"'\\\n\t\x7f\u2028🦆"), max_size=12
)


@given(TEXT, TEXT)
def test_any_words_are_the_same_when_the_file_is_read(tmp_path_factory, instructions, description):
    program = dspy.Predict(
        with_instructions(NextSearch, f"Do.{instructions}", {"search": description})
    )
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_text(write_toml(program), encoding="utf-8")
    assert describe(read(file, "asking").assemble(dspy.Predict(NextSearch))) == describe(program)


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_file_that_is_shown_changes_nothing(name, tmp_path):
    constructor = load_object("program", name, SYSTEMS)
    program = try_construct(constructor, parse_parameters(name, constructor, {}))
    (tmp_path / "own.toml").write_text(write_toml(program), encoding="utf-8")
    own = read(tmp_path / "own.toml", name)
    own.check(name, program, "own.toml")
    assert own.without_defaults(program) is None


def test_an_edited_word_is_the_only_difference_in_the_message(corpus, tmp_path):
    (tmp_path / "own.toml").write_text(
        '["reader.next_search".fields]\nnotes = "what is known"\nsearch = "a search"\n'
    )
    before, after = (try_construct(MultiHop, {}) for _ in range(2))
    own = read(tmp_path / "own.toml", "multihop").without_defaults(before)
    own.assemble(after)
    shown = [
        json.dumps(Adapter().format(program.reader.next_search.signature, [], {"notes": ["n"]}))
        for program in (before, after)
    ]
    expected = shown[0].replace("observations from earlier hops, oldest first", "what is known")
    assert shown[1] == expected.replace(
        "one search text; empty when nothing is left to try", "a search"
    )
    assert own.origin["edited"] == "1 of 2 predictors"
    # An optimizer's copy of the signature knows which descriptions are the user's.
    reader = after.reader.next_search
    reader.signature = reader.signature.with_instructions("Better.")
    assert get_prompts(after)["reader.next_search"].descriptions == {
        "notes": "what is known",
        "search": "a search",
    }


CONGRESS = ("--program", "multihop", "--task", "congress", "--limit", 1, "-P", "hops=1")


def test_a_run_has_an_identity_by_the_words_that_differ(run, command_of, tmp_path):
    assert "retrieve has no predictor" in command_of(module)("show", "retrieve").err
    shown, file = command_of(module)("show", "multihop").out, tmp_path / "own.toml"
    config = {}
    for text in ("", shown, shown.replace("Write the next", "Write a next")):
        file.write_text(text)
        words = ("--prompts", file) if text else ()
        found = run(*CONGRESS, "--json", *words).json
        config[found["run"]] = json.loads((tmp_path / found["run"] / "config.json").read_text())[
            "compiled"
        ]
    plain, edited = config  # the task's lens is added to what was not edited
    assert config[plain] is None and config[edited]["differs"] == ["reader.next_search"]
    printed = run(*CONGRESS, "--prompts", file).out
    assert f"({config[edited]['digest']}), prompts: {file} (edited: 1 of 2 predictors)" in printed
    assert f"run: {edited}\n" in printed


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (
            "['reader.next_serch']\ninstructions = 'x'",
            2,
            "no predictor of multihop is called 'reader.next_serch'; did",
        ),
        ("['reader.next_search'.fields]\nnote = 'x'", 2, "called 'note'; did you mean 'notes'?"),
        (
            "[reader.next_search]\ninstructions = 'x'",
            2,
            'reader.next_search Extra inputs are not permitted; a ["pred',
        ),
        ("[a]\ninstructions = ' '", 2, "a.instructions String should match"),
        (
            "[reader\n",
            3,
            "cannot be read as TOML: Expected ']' at the end of a table declaration (at line 1",
        ),
        (None, 3, "own.toml: there is no such file"),
    ],
)
def test_what_a_file_cannot_be_is_said_in_a_line(text, code, words, run, tmp_path):
    file = tmp_path / "own.toml"
    if text is not None:
        file.write_text(text)
    result = run(*CONGRESS, "--prompts", file)
    assert result.code == code and words in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["programs", "show", "multihop"],
        ["sextant.evals.run", "--program", "rewrite", "--task", "congress"],
    ],
)
def test_without_docstrings_no_prompt_is_sent_or_shown(words, tmp_path):
    command = [sys.executable, "-OO", "-m", *words]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2 and not done.stdout and not any(tmp_path.iterdir())
    assert done.stderr.startswith(
        "error: python -OO and PYTHONOPTIMIZE=2 take the instructions out of all prompts"
    )
