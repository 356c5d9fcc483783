"""Every command is found by its name, also from a folder with files of the user's that have our names."""

import subprocess
import sys
from pathlib import Path

import pytest

from evals.__main__ import COMMANDS, main, overview

ROOT = Path(__file__).parents[3]


def start(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in a process whose current folder comes first where it looks for modules."""
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "SEXTANT_HOME": str(folder / "home")}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


def sextant(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """As the installed script starts it: the current folder is not looked at for modules."""
    script = f"import sys; sys.path[:] = [p for p in sys.path if p]; sys.argv = ['sextant', *{words!r}]"
    return start(folder, "-P", "-c", f"{script}; from evals.__main__ import main; main()")


def test_the_overview_names_every_command():
    for name, (module, about) in COMMANDS.items():
        assert f"sextant {name}" in overview() and module in overview() and about in overview()


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_says_how_it_is_called(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sextant", name, "--help"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.startswith("usage: sextant")


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
