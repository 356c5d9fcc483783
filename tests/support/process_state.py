"""What belongs to others in a process, before and after Sextant is imported and used in it.

A script for a process of its own: it writes the differences as JSON into a folder. Other libraries
change things as they are imported, so all that Sextant imports is imported first.
"""

import concurrent.futures
import gc
import importlib
import json
import logging
import multiprocessing.pool
import os
import pkgutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

# Objects of others that Sextant changes, or has changed; the first word imports.
OBJECTS = (
    "threading Thread.start",
    "threading excepthook",
    "concurrent.futures ThreadPoolExecutor.submit",
    "multiprocessing.pool ThreadPool.apply_async",
    "multiprocessing.pool ThreadPool.map",
    "multiprocessing.pool ThreadPool.map_async",
    "multiprocessing.pool ThreadPool.starmap",
    "multiprocessing.pool ThreadPool.starmap_async",
    "multiprocessing.pool ThreadPool.imap",
    "multiprocessing.pool ThreadPool.imap_unordered",
    "os _exit",
    "sys excepthook",
    "sys stdout",
    "sys stderr",
    "sys meta_path",
    "http.client HTTPConnection.putrequest",
    "httpx Client.send",
    "httpx AsyncClient.send",
    "httpcore SyncBackend.connect_tcp",
    "tqdm tqdm._instances",
    "dspy.utils.parallelizer ParallelExecutor.execute",
    "dspy.utils.parallelizer tqdm",
    "litellm client_session",
    "litellm sync_transport",
    "litellm in_memory_llm_clients_cache",
    "litellm suppress_debug_info",
    "warnings filters",
    "warnings showwarning",
)
PACKAGES = ("agents", "environments", "evals", "optimizers", "programs", "tools")


def record() -> dict[str, Any]:
    """Each object by its name; of a list, what is in it."""
    found: dict[str, Any] = {}
    for name in OBJECTS:
        module, path = name.split()
        value: Any = sys.modules.get(module)
        for part in path.split("."):
            value = getattr(value, part, None)
        found[name] = list(value) if isinstance(value, list) else value
    for number in signal.valid_signals():
        found[f"signal {number}"] = signal.getsignal(number)
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and not name.startswith("sextant"):
            settings = (logger.level, logger.propagate, logger.disabled)
            found[f"logger {name}"] = (*settings, [*logger.handlers], [*logger.filters])
    found["root logger"] = logging.root.level, [*logging.root.handlers], [*logging.root.filters]
    found["garbage"] = gc.get_threshold(), gc.get_freeze_count()
    found["environment"] = dict(os.environ)
    return found


def changed(before: dict[str, Any]) -> list[str]:
    """What is no longer as it was, by name."""
    after = record()
    differences = [name for name, value in before.items() if after[name] != value]
    if "environment" in differences:
        names = before["environment"].items() ^ after["environment"].items()
        differences += sorted({f"${name}" for name, _ in names})
    return differences


def import_sextant() -> None:
    for package in PACKAGES:
        importlib.import_module(f"sextant.{package}")
        path = sys.modules[f"sextant.{package}"].__path__
        for module in pkgutil.walk_packages(path, f"sextant.{package}.", onerror=lambda name: None):
            with suppress(Exception):  # of an extra that is not installed
                importlib.import_module(module.name)


def import_others(folder: Path) -> None:
    """Import what an import of all of Sextant brings, in a process that has not imported it."""
    subprocess.run([sys.executable, __file__, folder, "list"], check=True)
    for name in [*json.loads((folder / "modules.json").read_text()), "langsmith", "litellm"]:
        if name.partition(".")[0] not in ("sextant", "__main__", "__mp_main__"):
            with suppress(Exception):  # of a name that only its package makes
                importlib.import_module(name)


def answer(query: str, search: Any) -> Any:
    """A program of a user's own: threads of every kind ask the model and search."""
    import dspy

    write = dspy.Predict("query, part -> words")

    def ask(part: str) -> Any:
        return search(write(query=query, part=part).words)

    with (
        concurrent.futures.ThreadPoolExecutor(2) as pool,
        multiprocessing.pool.ThreadPool(2) as threads,
    ):
        found = [*pool.map(ask, ["place"]), *threads.map(ask, ["time"])]
    jobs = [(lambda part: ask(part), {"part": "thing"})]
    found += dspy.Parallel(num_threads=2, disable_progress_bar=True)(jobs)
    return [hit for hits in found for hit in hits]


def use_sextant(folder: Path) -> dict[str, list[str]]:
    """The differences after runs: that answers, that is refused, that is not begun."""
    from openai_server import Failure, OpenAIServer

    from sextant.evals import evaluate

    def refuse(prompt: str) -> Any:
        raise Failure(401, "invalid_api_key")

    server = OpenAIServer()
    server.answer = lambda prompt: {"words": "octopus"}
    before = record()
    found = {}
    task = {"task": "congress", "data": "mini", "split": "dev", "limit": 2}
    result = evaluate(program=answer, lm=server.spec, runs=folder / "answered", **task)
    assert result.usage.calls == 6, "threads lost their query"
    found["a run"] = changed(before)
    server.answer = refuse
    for name, program, fields in (
        ("a run that is refused", answer, task),
        ("a run that is not begun", answer, task | {"task": "no-such-task"}),
    ):
        try:
            evaluate(program=program, lm=server.spec, runs=folder / "refused", **fields)
        except Exception:  # noqa: BLE001  # it is meant to fail
            found[name] = changed(before)
    server.close()
    return found


def main(folder: Path, *, lists: bool) -> None:
    if lists:
        import_sextant()
        (folder / "modules.json").write_text(json.dumps([*sys.modules]))
        return
    import_others(folder)
    before = record()
    import_sextant()
    differences = {"an import": changed(before), **use_sextant(folder)}
    (folder / "differences.json").write_text(json.dumps(differences))


if __name__ == "__main__":
    main(Path(sys.argv[1]), lists="list" in sys.argv)
