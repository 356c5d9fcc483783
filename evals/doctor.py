"""What is here, and what to do about the rest: `sextant doctor`. Nothing is changed or sent
to another machine.

Python, packages, memory, disk, GPU, keys (their names only), model servers of this machine,
indexes, fetched data.
"""

import argparse
import os
import platform
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import metadata
from typing import NamedTuple

from sextant.tools.platform import installation
from sextant.tools.platform.cli import CommandParser, add_json_option, print_json, run_and_leave
from sextant.tools.platform.files import sextant_home
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import ResultTable, show
from sextant.tools.platform.terminal import first_sentence
from sextant.tools.platform.waiting import announced

# Bytes of memory and of disk below which real corpora and their indexes do not fit.
MEMORY = 8e9
DISK = 20e9
# Port of this machine -> the server that listens there unless it is told otherwise.
SERVERS = {
    1234: "LM Studio",
    8000: "vLLM",
    8080: "llama-server",
    11434: "Ollama",
    30000: "SGLang",
}
CONNECT_SECONDS = 0.3
# Endings of names of variables that hold a provider's key.
KEY_ENDINGS = ("_API_KEY", "_API_TOKEN", "_ACCESS_KEY_ID")
# Packages that are named, of those that differ.
NAMED = 6


class Finding(NamedTuple):
    """What was found of a subject, and what to do about it."""

    # "ok", "note" for a choice that is open, "wrong" for something that will fail.
    state: str
    subject: str
    text: str
    remedy: str = ""


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(prog="sextant doctor", description=first_sentence(examine.__doc__))
    add_json_option(command_line)
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Examine and print."""
    with announced("examining this machine"):
        findings = list(examine())
    if arguments.json:
        rows = [finding._asdict() for finding in findings]
        print_json({"findings": rows})
        return 0
    cells = [list(finding) for finding in findings]
    heads = ["", "", "here", "what to do"]
    show([ResultTable("", heads, cells, names=(0, 1, 2, 3))])
    wrong = [finding.subject for finding in findings if finding.state == "wrong"]
    if wrong:
        show([f"{plural(len(wrong), 'fault')}: {', '.join(wrong)}"])
    return 0


def examine() -> Iterator[Finding]:
    """Say what is installed, set and fetched on this machine, and what to do about the rest."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _check_python,
        _check_packages,
        _check_memory,
        _check_disk,
        _check_gpu,
        _check_keys,
        _check_servers,
        _check_indexes,
        _check_data,
    )
    for check in checks:
        yield from check()


def _check_python() -> Iterator[Finding]:
    version = platform.python_version()
    text = f"{version} in {sys.prefix}; Sextant {installation.version()}"
    if sys.prefix == sys.base_prefix:
        remedy = "install Sextant into an environment of its own: python -m venv .venv"
        yield Finding("note", "Python", text, remedy)
    else:
        yield Finding("ok", "Python", text)


def _check_packages() -> Iterator[Finding]:
    pins = _read_pins()
    if not pins:
        yield from _check_requirements()
        return
    differing = []
    for name, pinned in pins.items():
        with suppress(metadata.PackageNotFoundError):  # of an extra that is not installed
            installed = metadata.version(name)
            if installed.partition("+")[0] != pinned:
                differing.append(f"{name} {installed} (tested: {pinned})")
    if differing:
        remedy = "pip install --constraint constraints.txt . brings the tested versions"
        yield Finding("note", "packages", _name_some(differing), remedy)
    else:
        yield Finding("ok", "packages", "as in constraints.txt, those of other extras left out")


def _read_pins() -> dict[str, str]:
    """Return package -> the version that is tested; none in an installation without a checkout."""
    repository = installation.find_repository()
    if repository is None:
        return {}
    pins = {}
    for line in (repository / "constraints.txt").read_text(encoding="utf-8").splitlines():
        requirement = line.partition("#")[0].partition(";")[0]
        name, _, pinned = requirement.partition("==")
        if pinned:
            pins[name.strip()] = pinned.strip()
    return pins


def _check_requirements() -> Iterator[Finding]:
    from packaging.requirements import Requirement  # not for --help

    unmet = []
    for text in metadata.requires(installation.DISTRIBUTION) or ():
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            unmet.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            unmet.append(f"{requirement.name} {installed} (wanted: {requirement.specifier})")
    if unmet:
        remedy = "install Sextant again, with pip's --upgrade"
        yield Finding("wrong", "packages", _name_some(unmet), remedy)
    else:
        yield Finding("ok", "packages", "as Sextant asks for them")


def _name_some(items: list[str]) -> str:
    more = len(items) - NAMED
    suffix = f" and {more} more" if more > 0 else ""
    return ", ".join(items[:NAMED]) + suffix


def _check_memory() -> Iterator[Finding]:
    pages = os.sysconf("SC_PHYS_PAGES")
    memory = pages * os.sysconf("SC_PAGE_SIZE")
    text = f"{_gigabytes(memory)}, {plural(os.cpu_count() or 1, 'core')}"
    if memory < MEMORY:
        remedy = "large corpora may not fit: fetch small ones, or give --retriever ann:dense"
        yield Finding("note", "memory", text, remedy)
    else:
        yield Finding("ok", "memory", text)


def _check_disk() -> Iterator[Finding]:
    folder = sextant_home()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    text = f"{_gigabytes(free)} free for {sextant_home()}"
    if not os.access(folder, os.W_OK):
        remedy = "set $SEXTANT_HOME to a folder that you may write"
        yield Finding("wrong", "disk", f"{folder} may not be written", remedy)
    elif free < DISK:
        remedy = "set $SEXTANT_HOME to a larger disk before you fetch full data"
        yield Finding("note", "disk", text, remedy)
    else:
        yield Finding("ok", "disk", text)


def _check_gpu() -> Iterator[Finding]:
    from sextant.tools.retrievers.index_store import accelerator  # NumPy

    if kind := accelerator():
        yield Finding("ok", "GPU", f"encoders run on {kind}")
        return
    if shutil.which("nvidia-smi"):
        remedy = "install the build of PyTorch for this driver: pytorch.org"
        yield Finding("wrong", "GPU", "there is one that PyTorch does not see", remedy)
        return
    remedy = "encode small corpora, with --retriever 'dense(encoder=int8)', or on a server: api:"
    yield Finding("note", "GPU", "none; encoders run on the CPU", remedy)


def _check_keys() -> Iterator[Finding]:
    from sextant.tools.models.secrets import read_keys  # not for --help

    read_keys()
    names = []
    for name, value in os.environ.items():
        if value.strip() and name.endswith(KEY_ENDINGS):
            names.append(name)
    if names:
        yield Finding("ok", "keys", f"set: {', '.join(sorted(names))}")
    else:
        remedy = "for a provider's model, put e.g. OPENAI_API_KEY=... into .env"
        yield Finding("note", "keys", "none is set", remedy)
    if model := os.environ.get("SEXTANT_LM"):
        remedy = f"sextant models check {shlex.quote(model)}"
        yield Finding("ok", "model", f"$SEXTANT_LM is {model}", remedy)
    else:
        remedy = "give --lm, or set $SEXTANT_LM; without either, runs use no language model"
        yield Finding("note", "model", "$SEXTANT_LM is not set", remedy)


def _check_servers() -> Iterator[Finding]:
    listening = []
    for port in SERVERS:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), CONNECT_SECONDS):
            listening.append(port)
    for port in listening:
        url = f"http://127.0.0.1:{port}/v1"
        text = f"port {port} is open, where {SERVERS[port]} usually listens"
        yield Finding("ok", "server", text, f"sextant models check @{url} lists its models")
    if not listening:
        ports = ", ".join(map(str, SERVERS))
        remedy = "start one, or give --lm MODEL@http://HOST:PORT/v1"
        yield Finding("note", "server", f"none on this machine (ports {ports})", remedy)


def _check_indexes() -> Iterator[Finding]:
    from rich.filesize import decimal  # not for --help

    from sextant.tools.retrievers.index_store import list_stored_indexes  # NumPy

    indexes = list_stored_indexes(sextant_home())
    size = decimal(sum(index.bytes for index in indexes))
    text = f"{plural(len(indexes), 'index', 'indexes')}, {size}"
    remedy = "sextant retrievers indexes lists them, delete NAME removes one"
    drafts = [index for index in indexes if not index.finished and not index.in_use]
    if drafts:
        names = _name_some([index.name for index in drafts])
        yield Finding("note", "indexes", f"{text}; half built: {names}", remedy)
    else:
        yield Finding("ok", "indexes", text, remedy if indexes else "")


def _check_data() -> Iterator[Finding]:
    from sextant import environments  # not for --help

    tasks = environments.tasks()
    fetched = []
    for task in tasks:
        if environments.fetch_marker(task).exists():
            fetched.append(task)
    text = f"{len(fetched)} of {plural(len(tasks), 'task')} fetched"
    if fetched:
        text += f": {_name_some(fetched)}"
    remedy = "sextant tasks fetch TASK gets one; until then its bundled miniature is used"
    state = "ok" if fetched else "note"
    yield Finding(state, "data", text, "" if len(fetched) == len(tasks) else remedy)


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"


if __name__ == "__main__":
    run_and_leave(parser(), command)
