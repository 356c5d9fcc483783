"""How Sextant is installed here: its version, its repository if it runs from a checkout, and how to
add an extra.
"""

import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "sextant-search"
# In the folder `construction` of the repository, over the other one
CONSTRUCTION = "sextant-construction"

_PACKAGE = Path(__file__).parents[2]  # the folder "sextant" of a checkout or an installation
_GIT_SECONDS = 10.0
# Git's hooks set these, and git would then ask the hook's repository.
_OTHER_REPOSITORY = {
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
}


@cache
def find_repository() -> Path | None:
    """Return the checkout whose code this is; None in an installation, whatever project it
    may lie in.
    """
    project = _read_project()
    return _PACKAGE.parent if project.get("name") == DISTRIBUTION else None


@cache
def version() -> str:
    """Return Sextant's version, "unknown" if its files were copied without their metadata."""
    if find_repository():
        return str(_read_project()["version"])
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


@cache
def git_revision() -> str | None:
    """Return the commit of the code that runs, with "+changes" if it was edited; None if
    there is no repository.
    """
    repository = find_repository()
    if repository is None:
        commit = _read_origin().get("vcs_info", {}).get("commit_id")
        return str(commit) if commit else None
    if not (
        repository / ".git"
    ).exists():  # an unpacked archive, perhaps in a repository of somebody else's
        return None
    try:
        changes = "+changes" if _ask_git(repository, "status", "--porcelain") else ""
        return _ask_git(repository, "rev-parse", "HEAD") + changes
    except (OSError, subprocess.SubprocessError):
        return None  # there is no git, or it refuses the folder


def find_page(page: str) -> str:
    """Return where to read a page such as "docs/guide/task.md": its path in a checkout, from the current folder if
    that is the checkout; the command that prints the copy of a wheel.
    """
    path = (find_repository() or _PACKAGE) / page
    if not path.is_file():  # our files were copied without them
        return f"{page} in a checkout of Sextant"
    if not find_repository():
        return f"`sextant docs {path.stem}`"
    return page if Path(page).resolve() == path.resolve() else str(path)


def list_pages() -> list[Path]:
    """Return the pages of the guide, of the decisions and of `construction`, in a checkout or in a wheel."""
    root = find_repository() or _PACKAGE
    return sorted([*root.glob("docs/[gd]*/*.md"), *root.glob("construction/docs/*.md")])


def explain_missing(package: str | None, extra: str, distribution: str = DISTRIBUTION) -> str:
    """Return that a package is missing, and the command that installs the distribution, with an
    extra, which brings it.
    """
    lacking = f"the package {package}" if package else "a package"
    return f"{lacking}, which is not installed; {tell_how_to_install(extra, distribution)}"


@contextmanager
def importing_extra(extra: str, module: str) -> Iterator[None]:
    """Let imports that lack a package name the extra that brings it; `module` is the importer's
    __name__, or the function that a user called.

    A module that is run by `python -m` ends with a line and exit code 2.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        spec = sys.modules["__main__"].__spec__ if module == "__main__" else None
        needs = f"{spec.name if spec else module} needs {explain_missing(error.name, extra)}"
        if module == "__main__":
            print(f"error: {needs}", file=sys.stderr)  # noqa: T201  # before there is a console
            raise SystemExit(2) from None
        raise ModuleNotFoundError(needs, name=error.name, path=error.path) from None


def tell_how_to_install(extra: str, distribution: str = DISTRIBUTION) -> str:
    """Return the command that installs a distribution with an extra, in words for the end of an
    error message.
    """
    return f"run {_install_command(extra, distribution)} (Sextant is not on the package index)"


def _install_command(extra: str, distribution: str) -> str:
    extras = f"[{extra}]" if extra else ""
    folder = "/construction" if distribution == CONSTRUCTION else ""
    if repository := find_repository():
        return f"cd {shlex.quote(str(repository))} && pip install -e '.{folder}{extras}'"
    source = _find_source()
    is_repository = source.startswith("git+") or Path(f"{source}{folder}").is_dir()
    if not source or (folder and not is_repository):
        return (
            f"pip install '{distribution}{extras} @ file:///PATH' with the path of its wheel or "
            f"checkout{folder}"
        )
    if "://" in source:
        fragment = "#subdirectory=construction" if folder else ""
        return f"pip install {shlex.quote(f'{distribution}{extras} @ {source}{fragment}')}"
    return f"pip install {shlex.quote(f'{source}{folder}{extras}')}"


def _find_source() -> str:
    """Return the source of the installation: the path of a wheel or a checkout that is
    still there, or a URL.
    """
    origin = _read_origin()
    url = str(origin.get("url", ""))
    if url.startswith("file:"):
        path = Path(unquote(urlsplit(url).path))
        is_there = path.is_file() or (path / "pyproject.toml").is_file()
        return str(path) if is_there else ""
    if "vcs_info" in origin:
        return f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return url


@cache
def _read_project() -> Mapping[str, Any]:
    """Return the table `project` of the pyproject.toml next to the packages; {} if there is none."""
    try:
        project = tomllib.loads(
            (_PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
        ).get("project", {})
    except (OSError, ValueError):
        return {}
    return project if isinstance(project, dict) else {}


@cache
def _read_origin() -> dict[str, Any]:
    """Return the source of the installed distribution, as pip and uv record it (PEP 610)."""
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return {}
    origin: dict[str, Any] = json.loads(text) if text else {}
    return origin


def _ask_git(folder: Path, *arguments: str) -> str:
    environment = {
        name: value for name, value in os.environ.items() if name not in _OTHER_REPOSITORY
    }
    process = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=_GIT_SECONDS,
    )
    return process.stdout.strip()
