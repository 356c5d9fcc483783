"""The tables of studies, as far as they are filled: rows by tasks.

The tables that `sextant study` prints are in evals/studies/results.py.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from sextant.tools.platform import files
from sextant.tools.records import JsonObject

# Bytes of a table.
LARGEST = 1 << 26

# Returns what the page knows of the run in a folder, which has "mean", "done" and "queries".
FindRun = Callable[[Path], JsonObject]


def read_studies(roots: Sequence[Path], find_run: FindRun) -> list[JsonObject]:
    """Return the studies in the folders of runs `roots`, the one that changed last first.

    Each has its "name", "question", "page" (a path, "" without one), "rows", "tasks" and "cells": a
    cell has "row", "task", "state", "reason" and what `find_run` returns for its run.
    """
    found = []
    for file in [file for root in roots for file in root.glob("studies/*/cells.json")]:
        # A table that cannot be read is left out: the runs are shown in any case.
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            table = files.loads(files.read_input(file, LARGEST))
            page = file.with_name("index.html")
            cells = []
            for row in table["cells"]:
                cell = {key: str(row[key]) for key in ("row", "task", "state", "reason")}
                cells.append(cell | (find_run(file.parents[2] / row["run"]) if row["run"] else {}))
            study = {
                "name": str(table["study"]),
                "question": str(table["question"]),
                "page": str(page) if page.is_file() else "",
                "rows": list(dict.fromkeys(cell["row"] for cell in cells)),
                "tasks": list(dict.fromkeys(cell["task"] for cell in cells)),
                "cells": cells,
            }
            found.append((file.stat().st_mtime, study))
    found.sort(key=lambda item: item[0], reverse=True)
    return [study for _, study in found]
