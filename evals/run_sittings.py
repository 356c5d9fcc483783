"""The sittings of a run, as its folder has them: `status.json` while one goes, `sittings.jsonl` of those
that ended. evals/running/run_status.py writes them.
"""

from contextlib import suppress
from pathlib import Path

from sextant.tools.platform import files
from sextant.tools.platform.cli import strip_control_characters
from sextant.tools.records import JsonObject

STATUS = "status.json"
SITTINGS = "sittings.jsonl"
LARGEST = 1 << 20  # bytes of a status
OUT_OF_BUDGET = "out of budget"


def read_status(path: Path) -> JsonObject | None:
    """Return the status of the sitting that goes, or was killed; None if there is none."""
    with suppress(OSError):
        return files.read_object(files.read_input(path / STATUS, LARGEST).decode(errors="replace"))
    return None


def read_sittings(path: Path) -> list[JsonObject]:
    """Return the sittings of the run in `path`; lines that cannot be read are left out."""
    sittings = []
    with suppress(OSError):
        for line in (path / SITTINGS).read_bytes().splitlines():
            row = files.read_object(line.decode(errors="replace"))
            if row is not None and isinstance(row.get("seconds"), int | float):
                sittings.append(row)
    return sittings


def explain_resuming(path: Path) -> str:
    """Return how to go on with a run that has unanswered queries, with its command if a sitting
    recorded it.
    """
    sittings = read_sittings(path)
    last = read_status(path) or (sittings[-1] if sittings else {})
    command = strip_control_characters(str(last.get("command") or ""))
    if not command:
        return "give its command again to resume it"
    larger = " with a larger budget" if last.get("state") == OUT_OF_BUDGET else ""
    return f"its command{larger} goes on with it: {command}"
