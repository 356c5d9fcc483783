"""Every command is found by its name, also from a folder with files of the user's that have our names."""

import argparse
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sextant.evals.__main__ import import_command, list_commands, list_modules, main

ROOT = Path(__file__).parents[3]


def start(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in a process whose current folder comes first where it looks for modules."""
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "SEXTANT_HOME": str(folder / "home")}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True
    )


def sextant(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """As the installed script starts it: the current folder is not looked at for modules."""
    script = (
        f"import sys; sys.path[:] = [p for p in sys.path if p]; sys.argv = ['sextant', *{words!r}]"
    )
    return start(folder, "-P", "-c", f"{script}; from sextant.evals.__main__ import main; main()")


@pytest.fixture
def call(monkeypatch, capsys):
    """`call("run", "--help")`: the command `sextant run --help` in this process; exit code and output."""
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    }

    def called(*words):
        monkeypatch.setattr(sys, "argv", ["sextant", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, "".join(capsys.readouterr())

    yield called
    for number, handler in handlers.items():
        signal.signal(number, handler)


def sub_commands(parser):
    """The names of its sub-commands, each a tuple of words, and the empty tuple for itself."""
    names = [()]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                names += [(name, *words) for words in sub_commands(below)]
    return names


def test_the_overview_names_every_command():
    for name, (_, about) in list_modules().items():
        assert f" {name} {about} " in f"{' '.join(list_commands().split())} "


@pytest.mark.parametrize("name", list_modules())
def test_help_of_each_command_and_sub_command_begins_with_what_is_typed(name, call):
    for words in sub_commands(import_command(name).parser()):
        code, output = call(name, *words, "--help")
        assert code == 0 and f"{output} ".startswith(
            f"usage: {' '.join(['sextant', name, *words])} "
        )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "run --program retrieve --task congress --task writing",
            "give it once, as --task congress,writing",
        ),
        (
            "compile --program multihop --task congress --task writing --optimizer gepa",
            "give it once, as --task congress,writing",
        ),
        ("run --program multihop --task congress -P hops=2 -P hops=3", "-P hops is given twice"),
        ("build run folder --lm a/b --lm c/d", "--lm is given twice"),
        ("build run folder --lm judge=a/b --lm judge=c/d", "--lm judge is given twice"),
        (
            "build new folder --recipe latent --set limits.queries=2 --set limits.queries=3",
            "--set limits.queries",
        ),
    ],
)
def test_an_option_that_may_mean_two_values_is_refused_in_one_line_if_given_twice(
    words, said, call, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, output = call(*words.split())
    assert code == 2 and said in output and output.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_of_any_other_option_the_last_value_counts(call, tmp_path):
    words = f"run --program retrieve --program retrieve --task congress --limit 3 --limit 1 --runs {tmp_path} --json"
    code, output = call(*words.split())
    assert code == 0 and '"queries": 1' in output


@pytest.mark.parametrize(
    "words",
    [
        "build check congress --dry-run",
        "build contamination --task congress --lm openai/gpt-5-mini --dry-run",
        "build list",
        "prompts show multihop",
        "prompts draw planner",
        "retrievers list",
        "tasks show congress",
    ],
)
def test_a_sub_command_does_what_it_is_for(words, call):
    code, output = call(*words.split())
    assert code == 0 and output


def test_build_review_looks_into_the_folder_that_is_named(call, tmp_path):
    code, output = call("build", "review", str(tmp_path), "--out", str(tmp_path / "sheet.html"))
    assert code == 2 and f"{tmp_path} has nothing to be judged" in output


def test_a_command_that_is_misspelt_is_answered_with_the_nearest(tmp_path):
    done = sextant(tmp_path, "compere")
    assert done.returncode == 2 and "did you mean 'compare'" in done.stderr


def test_a_folder_with_files_of_our_names_is_no_obstacle_to_the_command(tmp_path):
    (tmp_path / "tools.py").write_text("mine = True\n")
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "mine.py").write_text("mine = True\n")
    done = sextant(tmp_path, "run", "--program", "multihpo", "--task", "congress")
    assert done.returncode == 2 and "did you mean 'multihop'" in done.stderr
