"""What is here, and what to do about the rest: `sextant doctor`. Nothing is changed or sent
to another machine.

Python, packages, memory, disk, GPU, keys (their names only), model servers of this machine,
indexes, fetched data.
"""

import argparse
import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
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


def _judge(subject: str, text: str, *, good: bool, remedy: str, worst: str = "note") -> Finding:
    """Return the finding of a check, which is `worst` and has its remedy unless it is `good`."""
    return Finding("ok", subject, text) if good else Finding(worst, subject, text, remedy)


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
        print_json({"findings": [finding._asdict() for finding in findings]})
        return 0
    show(
        [
            ResultTable(
                "",
                ["", "", "here", "what to do"],
                [list(finding) for finding in findings],
                names=(0, 1, 2, 3),
            )
        ]
    )
    wrong = [finding.subject for finding in findings if finding.state == "wrong"]
    if wrong:
        show([f"{plural(len(wrong), 'fault')}: {', '.join(wrong)}"])
    return 0


def examine() -> Iterator[Finding]:
    """Say what is installed, set and fetched on this machine, and what to do about the rest."""
    yield _judge(
        "Python",
        f"{platform.python_version()} in {sys.prefix}; Sextant {installation.version()}",
        good=sys.prefix != sys.base_prefix,
        remedy="install Sextant into an environment of its own: python -m venv .venv",
    )
    yield _check_packages()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield _judge(
        "memory",
        f"{_gigabytes(memory)}, {plural(os.cpu_count() or 1, 'core')}",
        good=memory >= MEMORY,
        remedy="large corpora may not fit: fetch small ones, or give --retriever ann:dense",
    )
    yield _check_disk()
    yield _check_gpu()
    yield from _check_models()
    yield from _check_servers()
    yield _check_indexes()
    yield _check_data()


def _check_packages() -> Finding:
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
    return _judge(
        "packages",
        _name_some(unmet) or "as Sextant asks for them",
        good=not unmet,
        remedy="install Sextant again, with pip's --upgrade; constraints.txt has tested versions",
        worst="wrong",
    )


def _name_some(items: list[str]) -> str:
    more = len(items) - NAMED
    suffix = f" and {more} more" if more > 0 else ""
    return ", ".join(items[:NAMED]) + suffix


def _check_disk() -> Finding:
    folder = sextant_home()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK):
        return Finding(
            "wrong",
            "disk",
            f"{folder} may not be written",
            "set $SEXTANT_HOME to a folder that you may write",
        )
    return _judge(
        "disk",
        f"{_gigabytes(free)} free for {sextant_home()}",
        good=free >= DISK,
        remedy="set $SEXTANT_HOME to a larger disk before you fetch full data",
    )


def _check_gpu() -> Finding:
    from sextant.tools.retrievers.index_store import accelerator  # NumPy

    if kind := accelerator():
        return Finding("ok", "GPU", f"encoders run on {kind}")
    if shutil.which("nvidia-smi"):
        remedy = "install the build of PyTorch for this driver: pytorch.org"
        return Finding("wrong", "GPU", "there is one that PyTorch does not see", remedy)
    remedy = "encode small corpora, with --retriever 'dense(encoder=int8)', or on a server: api:"
    return Finding("note", "GPU", "none; encoders run on the CPU", remedy)


def _check_models() -> Iterator[Finding]:
    from sextant.tools.models.secrets import read_keys  # not for --help

    read_keys()
    names = [
        name for name, value in os.environ.items() if value.strip() and name.endswith(KEY_ENDINGS)
    ]
    yield _judge(
        "keys",
        f"set: {', '.join(sorted(names)) or 'none'}",
        good=bool(names),
        remedy="for a provider's model, put e.g. OPENAI_API_KEY=... into .env",
    )
    model = os.environ.get("SEXTANT_LM", "")
    yield _judge(
        "model",
        f"$SEXTANT_LM is {model or 'not set'}",
        good=bool(model),
        remedy="give --lm, or set $SEXTANT_LM; without either, runs use no language model",
    )


def _check_servers() -> Iterator[Finding]:
    listening = []
    for port in SERVERS:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), CONNECT_SECONDS):
            listening.append(port)
    for port in listening:
        yield Finding(
            "ok",
            "server",
            f"port {port} is open, where {SERVERS[port]} usually listens",
            f"sextant models check @http://127.0.0.1:{port}/v1 lists its models",
        )
    if not listening:
        ports = ", ".join(map(str, SERVERS))
        yield Finding(
            "note",
            "server",
            f"none on this machine (ports {ports})",
            "start one, or give --lm MODEL@http://HOST:PORT/v1",
        )


def _check_indexes() -> Finding:
    from rich.filesize import decimal  # not for --help

    from sextant.tools.retrievers.index_store import list_stored_indexes  # NumPy

    indexes = list_stored_indexes(sextant_home())
    size = decimal(sum(index.bytes for index in indexes))
    drafts = [index.name for index in indexes if not index.finished and not index.in_use]
    return _judge(
        "indexes",
        f"{plural(len(indexes), 'index', 'indexes')}, {size}; half built: "
        f"{_name_some(drafts) or 'none'}",
        good=not drafts,
        remedy="sextant retrievers indexes lists them, delete NAME removes one",
    )


def _check_data() -> Finding:
    from sextant import environments  # not for --help

    tasks = environments.tasks()
    fetched = [task for task in tasks if environments.fetch_marker(task).exists()]
    return _judge(
        "data",
        f"{len(fetched)} of {plural(len(tasks), 'task')} fetched {_name_some(fetched)}".rstrip(),
        good=bool(fetched),
        remedy="sextant tasks fetch TASK; until then its bundled miniature is used",
    )


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"


if __name__ == "__main__":
    run_and_leave(parser(), command)
