"""What Sextant says of its installation, asked in a process of its own with just that installation."""

import importlib
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sextant.tools.platform import installation

SOURCE = Path(installation.__file__)
METADATA = """Metadata-Version: 2.4
Name: sextant-search
Version: 7.1
Requires-Dist: numpy>=1.26
Requires-Dist: fastapi>=0.132; extra == 'rest'
Requires-Dist: openenv-core>=0.3; extra == 'openenv'
Requires-Dist: sextant-search[rest]; extra == 'openenv'
"""
PROJECT = '[project]\nname = "{}"\nversion = "7.2"\n'


def install(site: Path, **origin: object) -> Path:
    """Put the module and the metadata of a distribution into `site`, as an installer would."""
    folder = site / "sextant/tools/platform"
    folder.mkdir(parents=True)
    shutil.copy(SOURCE, folder)
    for place in (folder, folder.parent, folder.parent.parent):
        shutil.copy(SOURCE.parents[2] / place.relative_to(site / "sextant") / "__init__.py", place)
    about = site / "sextant_search-7.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(METADATA)
    if origin:
        (about / "direct_url.json").write_text(json.dumps(origin))
    return site


def ask(site: Path, expression: str, **environment: str) -> str:
    script = f"from sextant.tools.platform import installation; print({expression})"
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(site),
        "PYTHONDONTWRITEBYTECODE": "1",
        **environment,
    }
    return subprocess.check_output(
        [sys.executable, "-S", "-P", "-c", script], env=variables, text=True
    ).strip()


def make_repository(folder: Path) -> str:
    """Make a git repository with one commit, and return the commit."""
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first", "--allow-empty"], check=True)
    return subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()


def test_the_revision_of_the_project_that_sextant_is_installed_in_is_not_taken_for_sextants(
    tmp_path,
):
    (tmp_path / "pyproject.toml").write_text(PROJECT.format("mine"))
    make_repository(tmp_path)
    beside = install(tmp_path / "vendored")
    assert ask(beside, "installation.git_revision()") == "None"
    (beside / "pyproject.toml").write_text(
        PROJECT.format("sextant-search")
    )  # an unpacked archive of the sources
    assert ask(beside, "installation.git_revision(), installation.version()") == "None 7.2"
    (tmp_path / "sextant").symlink_to(beside / "sextant")  # in the user's own folder
    assert ask(tmp_path, "installation.git_revision()") == "None"


def test_the_revision_of_a_checkout_is_its_own_also_in_a_hook_of_another_repository(tmp_path):
    site = install(tmp_path / "checkout")
    (site / "pyproject.toml").write_text(PROJECT.format("sextant-search"))
    commit = make_repository(site)
    (tmp_path / "other").mkdir()
    make_repository(tmp_path / "other")
    in_a_hook = {"GIT_DIR": str(tmp_path / "other" / ".git")}
    assert ask(site, "installation.git_revision()", **in_a_hook) == commit
    (site / "sextant" / "more.py").touch()
    assert ask(site, "installation.git_revision()", **in_a_hook) == f"{commit}+changes"


def test_an_installation_from_git_has_the_commit_that_was_installed(tmp_path):
    origin = {
        "url": "https://example.org/sextant",
        "vcs_info": {"vcs": "git", "commit_id": "abc123"},
    }
    site = install(tmp_path, **origin)
    assert ask(site, "installation.git_revision(), installation.version()") == "abc123 7.1"


WHEEL = "sextant_search-7.1-py3-none-any.whl"
GONE = "pip install 'sextant-search[openenv] @ file:///PATH' with the path of its wheel or checkout"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (
            {"url": "file://{0}/a%20b/" + WHEEL, "archive_info": {}},
            "pip install '{0}/a b/" + WHEEL + "[openenv]'",
        ),
        ({"url": "file://{0}/a%20b", "dir_info": {}}, "pip install '{0}/a b[openenv]'"),
        (
            {"url": "https://example.org/s", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'sextant-search[openenv] @ git+https://example.org/s@abc'",
        ),
        (
            {"url": f"https://example.org/{WHEEL}", "archive_info": {}},
            f"pip install 'sextant-search[openenv] @ https://example.org/{WHEEL}'",
        ),
        # The wheel is gone, or the folder is no checkout any more, or nobody wrote down where it was.
        (
            {"url": "file:///gone/" + WHEEL, "archive_info": {}},
            GONE,
        ),
        (
            {"url": "file://{0}/emptied", "dir_info": {}},
            GONE,
        ),
        ({}, GONE),
    ],
)
def test_the_command_for_an_extra_names_what_sextant_was_installed_from(origin, command, tmp_path):
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / WHEEL).touch()
    (tmp_path / "a b" / "pyproject.toml").touch()
    (tmp_path / "emptied").mkdir()
    site = install(
        tmp_path / "site", **json.loads(json.dumps(origin).replace("{0}", str(tmp_path)))
    )
    said = ask(site, "installation.tell_how_to_install('openenv')")
    assert (
        said == f"run {command.replace('{0}', str(tmp_path))} (Sextant is not on the package index)"
    )


def test_in_a_checkout_the_command_for_an_extra_installs_the_checkout(tmp_path):
    site = install(tmp_path / "my checkout")
    (site / "pyproject.toml").write_text(PROJECT.format("sextant-search"))
    said = ask(site, "installation.tell_how_to_install('mcp')")
    assert (
        said == f"run cd '{site}' && pip install -e '.[mcp]' (Sextant is not on the package index)"
    )


CONSTRUCTION_GONE = (
    "pip install 'sextant-construction @ file:///PATH' with the path of its wheel or "
    "checkout/construction"
)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file://{0}/a%20b", "dir_info": {}}, "pip install '{0}/a b/construction'"),
        (
            {"url": "https://example.org/s", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'sextant-construction @ git+https://example.org/s@abc#subdirectory=construction'",
        ),
        ({"url": f"https://example.org/{WHEEL}", "archive_info": {}}, CONSTRUCTION_GONE),
        ({"url": "file://{0}/a%20b/" + WHEEL, "archive_info": {}}, CONSTRUCTION_GONE),
        ({}, CONSTRUCTION_GONE),
    ],
)
def test_the_command_that_installs_construction_is_of_the_same_source(origin, command, tmp_path):
    (tmp_path / "a b" / "construction").mkdir(parents=True)
    (tmp_path / "a b" / WHEEL).touch()
    (tmp_path / "a b" / "pyproject.toml").touch()
    site = install(
        tmp_path / "site", **json.loads(json.dumps(origin).replace("{0}", str(tmp_path)))
    )
    said = ask(site, "installation.tell_how_to_install('', installation.CONSTRUCTION)")
    assert said.startswith(f"run {command.replace('{0}', str(tmp_path))} (Sextant is not")


def test_a_page_is_named_by_its_path_in_a_checkout_and_by_the_command_that_prints_it_in_an_installation(
    tmp_path,
):
    pages = {"sextant/docs": install(tmp_path / "site"), "docs": install(tmp_path / "checkout")}
    (pages["docs"] / "pyproject.toml").write_text(PROJECT.format("sextant-search"))
    for folder, above in pages.items():
        page = above / folder / "guide" / "task.md"
        page.parent.mkdir(parents=True)
        page.write_text("How to")
        named = str(page) if folder == "docs" else "`sextant docs task`"
        assert ask(above, "installation.find_page('docs/guide/task.md')") == named
        assert ask(above, "*installation.list_pages()") == str(page)
        page.unlink()
        assert (
            ask(above, "installation.find_page('docs/guide/task.md')")
            == "docs/guide/task.md in a checkout of Sextant"
        )
    assert installation.find_page("docs/guide/task.md") == "docs/guide/task.md"


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("sextant.evals.serving.gym", "gymnasium", "gymnasium"),
        ("sextant.evals.serving.trl", "datasets", "trl"),
        ("sextant.evals.serving.inspect", "inspect_ai", "inspect"),
        ("sextant.evals.serving.openenv", "openenv", "openenv"),
    ],
)
def test_a_module_whose_extra_is_missing_says_which_in_one_line(
    module, package, extra, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, package, None)  # as where it is not installed
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {module} needs the package {package}") and f"[{extra}]" in line
    assert installation.explain_missing(None, extra).startswith(
        "a package, which is not installed; run "
    )
    with pytest.raises(ModuleNotFoundError, match=f"needs the package {package}.*{extra}"):
        importlib.import_module(module)
