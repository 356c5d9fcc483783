"""Every command is found by its name, also from a folder with files of the user's that have our names."""

import argparse
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

from evals.__main__ import COMMANDS, list_commands, main
from tools import cli

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
    return start(folder, "-P", "-c", f"{script}; from evals.__main__ import main; main()")


@pytest.fixture
def call(monkeypatch, capsys):
    """`call("sextant", "run", "--help")` or `call("python -m evals", ...)` in this process; exit code and output."""
    monkeypatch.setattr(cli, "_spellings", {})
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    }

    def called(started_by, *words):
        script = "/bin/sextant" if started_by == "sextant" else "/evals/__main__.py"
        monkeypatch.setattr(sys, "argv", [script, *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, "".join(capsys.readouterr())

    yield called
    for number, handler in handlers.items():
        signal.signal(number, handler)


def parser_of(name):
    """The parser of the module that a command is."""
    package_or_module = COMMANDS[name][0].split()[0]
    with suppress(ModuleNotFoundError):
        return import_module(f"{package_or_module}.__main__").parser()
    return import_module(package_or_module).parser()


def sub_commands(parser):
    """The names of its sub-commands, each a tuple of words, and the empty tuple for itself."""
    names = [()]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                names += [(name, *words) for words in sub_commands(below)]
    return names


def test_the_overview_names_every_command():
    for name, (module, about) in COMMANDS.items():
        text = " ".join(list_commands("sextant").split())
        assert f" {name} {about} (python -m {module})" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_and_sub_command_begins_with_what_was_typed(
    name, call, monkeypatch, capsys
):
    inner = COMMANDS[name][0].split()[1:]  # `cache` is a sub-command of its module
    for words in sub_commands(parser_of(name)):
        monkeypatch.setattr(cli, "_spellings", {})
        with pytest.raises(SystemExit):
            parser_of(name).parse_args([*words, "--help"])
        typed = " ".join(["python -m", COMMANDS[name][0].split()[0], *words])
        assert f"{capsys.readouterr().out} ".startswith(f"usage: {typed} ")
        if list(words[: len(inner)]) != inner:
            continue
        for started_by in ("sextant", "python -m evals"):
            typed = " ".join([started_by, name, *words[len(inner) :]])
            code, output = call(started_by, name, *words[len(inner) :], "--help")
            assert code == 0 and output.startswith(f"usage: {typed} ")


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
    code, output = call("sextant", *words.split())
    assert code == 2 and said in output and output.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_of_any_other_option_the_last_value_counts(call, tmp_path):
    words = f"run --program retrieve --program retrieve --task congress --limit 3 --limit 1 --runs {tmp_path} --json"
    code, output = call("sextant", *words.split())
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
    code, output = call("sextant", *words.split())
    assert code == 0 and output


def test_build_review_looks_into_the_folder_that_is_named(call, tmp_path):
    code, output = call(
        "sextant", "build", "review", str(tmp_path), "--out", str(tmp_path / "sheet.html")
    )
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


@pytest.mark.parametrize("module", ["evals.run", "environments"])
def test_python_m_says_in_one_line_which_file_hides_ours(module, tmp_path):
    (tmp_path / "tools.py").write_text("mine = True\n")
    done = start(tmp_path, "-m", module, "list")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"{tmp_path / 'tools.py'} hides Sextant's 'tools'" in done.stderr
