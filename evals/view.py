"""Look at runs in a browser: `sextant view RUNS`, or a file that can be sent: `--export
FILE.html`.

From Python, `sextant.evals.viewer.server.write_page(ViewerApi(runs, exported=True), file)` writes such a
file.
"""

import argparse
import os
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from sextant.evals.run_folder import CONFIG_FILE, check_output
from sextant.tools.errors import DataError, SextantError, UsageError
from sextant.tools.platform import files
from sextant.tools.platform.cli import (
    CommandParser,
    port,
    positive,
    print_stderr,
    print_stdout,
    report_error,
    run_and_leave,
    strip_control_characters,
)
from sextant.tools.platform.interrupts import is_interrupted, wait_until
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import show
from sextant.tools.platform.waiting import announced

if TYPE_CHECKING:
    pass  # not for --help


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant view",
        description="Look at runs in a browser, or write them into one file.",
    )
    add = command_line.add_argument
    add(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUNS",
        help="run folders, or folders with some in them",
    )
    add("--port", type=port, metavar="N", help="8017, or the next that is free; 0 is any")
    add("--no-open", action="store_true", help="print the address, open no browser")
    add(
        "--export",
        type=Path,
        metavar="FILE.html",
        help="write the page into one file, serve nothing",
    )
    add(
        "--query",
        action="append",
        default=[],
        metavar="ID",
        help="export this query; may be repeated",
    )
    add("--limit", type=positive, metavar="N", help="export the first N queries of each run")
    add(
        "--no-texts",
        action="store_true",
        help="export ids of documents, for a corpus that stays here",
    )
    add(
        "--prompts",
        action="store_true",
        help="export what was sent to models as well, documents in it",
    )
    add(
        "--ranks",
        action="store_true",
        help="export the ranks of documents that never surfaced: each search is issued again",
    )
    add(
        "--panel",
        action="append",
        default=[],
        metavar="FILE.py:NAME",
        help="add this section to the page of each run; may be repeated",
    )
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Serve, or export."""
    from sextant.evals.scoring.scored_run import find_folders  # pydantic: not for --help

    find_folders(arguments.runs, unanswered=True)  # before what follows is imported
    if arguments.export:
        export(arguments)
    elif (
        arguments.query
        or arguments.limit
        or arguments.no_texts
        or arguments.prompts
        or arguments.ranks
    ):
        raise UsageError(
            "--query, --limit, --no-texts, --prompts and --ranks are for --export; a served page "
            "has everything"
        )
    else:
        serve(arguments)
    return 0


def serve(arguments: argparse.Namespace) -> None:
    """Serve the page of runs until it is interrupted, and print its address."""
    with announced("loading libraries"):
        from sextant.evals.viewer import data, panels  # not for --help
        from sextant.evals.viewer import server as page_server  # as above

    with announced("reading the runs"):
        answers = data.ViewerApi(arguments.runs, panels=panels.load_panels(arguments.panel))
    for path, reason in answers.unreadable:
        print_stderr(f"not shown: {path}: {reason}")
    print_stderr(f"{plural(len(answers.run_ids), 'run')}; Ctrl-C ends the page")
    with page_server.open_server(answers, arguments.port) as server, suppress(KeyboardInterrupt):
        place = _comparison(arguments.runs, answers.run_ids)
        print_stdout(f"{server.address}{place}\n")
        if not arguments.no_open:
            _open_browser(f"{server.address_once}{place}")
        server.serve_forever(poll_interval=0.1)


def _comparison(paths: Sequence[Path], run_ids: Sequence[str]) -> str:
    """Return the end of the address that opens the comparison of runs which are named one by one;
    "" for folders with runs, and for a single run.
    """
    is_named = all((path / CONFIG_FILE).is_file() for path in paths)
    if not is_named or len(run_ids) < 2:
        return ""
    return f"#/compare/{','.join(map(quote, run_ids))}"


def _is_read() -> bool:
    """Return whether a person reads stdout."""
    return sys.stdout is not None and sys.stdout.isatty()


def _open_browser(address: str) -> None:
    """Open a browser where a person sees it: not in a script, nor on a machine without a screen."""
    screen = sys.platform != "linux" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    if screen and _is_read():
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def watch(runs: Path, work: Callable[[], int]) -> int:
    """Serve the page of the folder `runs` during `work`, open it in a browser, return the exit code.

    On a terminal the page is served on until Ctrl-C. An error of `work` is printed before, because
    the page shows what was made until then. A Ctrl-C during `work` ends both.
    """
    from sextant.evals.viewer import data  # not for --help
    from sextant.evals.viewer import server as page_server  # as above

    with page_server.open_server(data.ViewerApi([runs], empty=True), None) as server:
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        print_stderr(f"page: {server.address}")
        _open_browser(server.address_once)
        try:
            try:
                code = work()
            except (SextantError, OSError) as error:
                if is_interrupted():
                    raise
                code = report_error(error)
            if _is_read():
                print_stderr("the page is still served; Ctrl-C ends it")
                with suppress(KeyboardInterrupt):
                    wait_until(lambda: False)
            return code
        finally:
            server.shutdown()


def export(arguments: argparse.Namespace) -> None:
    """Write the page of runs into a file, with all queries or some, and print its contents."""
    with announced("loading libraries"):
        from sextant.evals.viewer import data, panels, server  # not for --help

    path = arguments.export
    wanted = arguments.query
    if arguments.prompts and arguments.no_texts:
        raise UsageError("prompts hold the texts of documents; choose --prompts or --no-texts")
    _check_writable(path)

    def choose(query_ids: Sequence[str]) -> Sequence[str]:
        chosen = [query_id for query_id in query_ids if not wanted or query_id in wanted]
        return chosen[: arguments.limit]

    with announced("reading the runs"):
        answers = data.ViewerApi(
            arguments.runs,
            exported=True,
            texts=not arguments.no_texts,
            prompts=arguments.prompts,
            chosen=choose,
            panels=[
                panel._replace(arguments=("all",)) if arguments.ranks and panel.of_query else panel
                for panel in panels.load_panels(arguments.panel)
            ],
        )
    for folder, reason in answers.unreadable:
        print_stderr(f"left out: {folder}: {reason}")
    if not answers.run_ids:
        raise DataError("none of these runs can be shown, so nothing is written")
    query_ids = [answers.query_ids(run_id) for run_id in answers.run_ids]
    for query_id in wanted:
        if not any(query_id in ids for ids in query_ids):
            raise UsageError(
                f"none of these runs has a query {query_id!r}; --query takes the ids of scores.csv"
            )
    with announced(f"writing {path}"):
        try:
            size = server.write_page(answers, path)
        except OSError as error:
            raise DataError(
                f"{path} cannot be written: {error.strerror or error}; "
                f"choose another --export, or {files.remedy(error)}"
            ) from None
    runs = plural(len(query_ids), "run")
    trajectories = plural(sum(map(len, query_ids)), "trajectory", "trajectories")
    shown_path = strip_control_characters(str(path))
    show([f"{shown_path}: {runs}, {trajectories}, {size / 1e6:.1f} MB"])


def _check_writable(path: Path) -> None:
    folder = path.parent
    if path.is_dir():
        reason = "it is a folder"
    elif not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        reason = f"{folder} is no folder that can be written to"
    else:
        check_output(path)
        return
    raise UsageError(f"{path} cannot be written: {reason}; choose another --export")


if __name__ == "__main__":
    run_and_leave(parser(), command)
