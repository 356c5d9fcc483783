"""Count the uses ("looks") of test queries: each run that has shown a value of a query outside dev is one.

A run shows values while it runs, so one that is stopped before its end is a look as well. Whoever looks at a test often
enough, and keeps what came out best, has chosen on it; the number of looks is what a reader needs to judge that. Kept
in $SEXTANT_HOME/looks.jsonl, one line a look. To resume a run or to score it again is no new look. Looks on other
machines are not known. No failure here ends a run.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evals.folder import PROVENANCE, Config
from tools import disk
from tools.disk import home
from tools.errors import SextantError

# What makes two lines the same look: the folder's name has a digest of the configuration in it.
_SAME = ("run", "task", "data_fingerprint")


def record(config: Config, path: Path) -> None:
    """Write down that the run of `config` in `path` has shown values; nothing for dev, or a second time."""
    if config["split"] == "dev":
        return
    look = {
        "task": config["task"],
        "data": data_of(config),
        "data_fingerprint": config["data_fingerprint"],
        "split": config["split"],
        "program": config["program"],
        "compiled": (config.get("compiled") or {}).get("digest"),
        "lm": config["lm"]["name"],
        "run": path.name,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if _identity(look) in {_identity(known) for known in _read_looks()}:
        return
    with suppress(OSError, SextantError):
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        disk.read_lines(file, repair=True)  # cuts off a torn line, which this one would join
        disk.append_line(file, json.dumps(look).encode(), disk.SHARED)


def count(task: str, data: str, program: str) -> int:
    """How many runs looked at queries of `task` outside dev with `program`; `data` is what `data_of` says of a run."""
    wanted = {"task": task, "data": data, "program": program}
    return len({_identity(look) for look in _read_looks() if all(look.get(key) == wanted[key] for key in wanted)})


def data_of(config: Config) -> str:
    """Whose queries they are: mini, full, or the folder that they were read from."""
    folder: str | None = config[PROVENANCE]["folder"]
    return folder or str(config[PROVENANCE]["data"])


def _file() -> Path:
    return home() / "looks.jsonl"


def _read_looks() -> Iterator[dict[str, Any]]:
    """Yield the lines that can be read; none where the file cannot be."""
    lines = list[bytes]()
    with suppress(OSError, SextantError):
        lines = disk.read_lines(_file())
    for line in lines:
        with suppress(ValueError, RecursionError):
            look = json.loads(line)
            if isinstance(look, dict) and all(isinstance(look.get(key), str) for key in _SAME):
                yield look


def _identity(look: dict[str, Any]) -> tuple[str, ...]:
    return tuple(look[key] for key in _SAME)
