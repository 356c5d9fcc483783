"""A start that finds another project's module under one of our six names says so in one line, in every form."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sextant_search

ROOT = Path(sextant_search.__file__).parent
SCRIPT = "import sys; from sextant_search import main; sys.argv = ['sextant', '--version']; main()"
STARTS = {
    "sextant": ("-P", "-c", SCRIPT),  # the installed script does not look into the current folder
    "evals": ("-m", "evals.run", "--help"),
    "optimizers": ("-m", "optimizers.compile", "--help"),
    "environments": ("-m", "environments", "list"),
    "programs": ("-m", "programs", "show", "multihop"),
    "tools": ("-m", "tools.models", "--help"),
}


def start(folder: Path, *words: str, path: object = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "", "PYTHONPATH": str(path), "SEXTANT_HOME": str(folder / "home")}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True
    )


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a command ended with."""
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder as of installed packages, with ours beside those that the tests run with."""
    site = tmp_path_factory.mktemp("venv") / "site-packages"
    for package in sextant_search.PACKAGES:
        shutil.copytree(
            ROOT / package, site / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "sextant_search.py", site)
    return site


@pytest.mark.parametrize(
    ("started", "hidden"),
    [("evals", "environments"), ("evals", "optimizers"), ("evals", "programs"), ("evals", "tools")]
    + [(started, "agents") for started in STARTS if started != "sextant"],
)
def test_a_file_in_the_current_folder_that_hides_ours_is_named_with_what_to_do(
    started, hidden, tmp_path
):
    (tmp_path / f"{hidden}.py").write_text("mine = True\n")
    said = refusal(start(tmp_path, *STARTS[started]))
    todo = "use the command `sextant`, or start in another folder"
    assert said == f"error: {tmp_path / hidden}.py hides Sextant's {hidden!r}; {todo}\n"


@pytest.mark.parametrize("hidden", sextant_search.PACKAGES)
def test_the_command_is_hidden_by_nothing_in_the_current_folder_but_by_what_is_on_pythons_path(
    hidden, tmp_path
):
    (tmp_path / hidden).mkdir()
    assert start(tmp_path, *STARTS["sextant"]).returncode == 0
    (tmp_path / hidden / "__init__.py").touch()
    assert start(tmp_path, *STARTS["sextant"]).returncode == 0
    done = start(tmp_path, *STARTS["sextant"], path=f"{tmp_path}:{ROOT}")
    todo = f"rename it, or take {tmp_path} out of $PYTHONPATH"
    assert refusal(done) == f"error: {tmp_path / hidden} hides Sextant's {hidden!r}; {todo}\n"


def test_another_package_that_was_installed_over_ours_and_then_uninstalled_is_found_both_times(
    installed, tmp_path
):
    ours, kept = installed / "agents" / "__init__.py", tmp_path / "kept"
    ours.rename(kept)
    alone = ("-S",)  # without the installation that the tests run in, which would be found next
    over = f"has put its own 'agents' over Sextant's ({ours}); install Sextant into an environment of its own"
    try:
        ours.write_text('"""As openai-agents has it."""\n')
        for words in STARTS.values():
            assert over in refusal(start(tmp_path, *alone, *words, path=installed))
        ours.unlink()
        for words in STARTS.values():
            assert f"{ours} is missing" in refusal(start(tmp_path, *alone, *words, path=installed))
    finally:
        kept.rename(ours)
    assert start(tmp_path, *STARTS["sextant"], path=installed).returncode == 0


def test_another_package_that_is_found_before_an_editable_installation_is_named(tmp_path):
    other = tmp_path / "site-packages" / "agents"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    about = tmp_path / "site-packages" / "openai_agents-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: openai-agents\nVersion: 1.0\n")
    (about / "RECORD").write_text("agents/__init__.py,,\n")
    for words in STARTS.values():
        said = refusal(start(tmp_path, *words, path=f"{other.parent}:{ROOT}"))
        assert (
            f"{other} hides Sextant's 'agents': it comes with openai-agents; install Sextant into"
            in said
        )


def test_what_is_imported_from_python_refuses_only_what_it_needs(tmp_path):
    (tmp_path / "agents.py").touch()
    assert start(tmp_path, "-c", "import environments").returncode == 0
    done = start(tmp_path, "-c", "import evals")
    hidden = f"ImportError: {tmp_path / 'agents.py'} hides Sextant's 'agents'"
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith(hidden)
