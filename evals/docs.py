"""`sextant docs [PAGE]`: print a page of the guide or of the decisions, or list them."""

import argparse

from sextant.tools.errors import UnknownName
from sextant.tools.platform.cli import CommandParser, print_stdout, run_and_leave
from sextant.tools.platform.installation import list_pages
from sextant.tools.platform.result_table import DefinitionList, show


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant docs",
        description="Print a page of the documentation, in Markdown.",
    )
    command_line.add_argument(
        "page", nargs="?", metavar="PAGE", help="its name, as task; without it, a list of them"
    )
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Print a page, or the names of all with their titles."""
    pages = {path.stem: path.read_text(encoding="utf-8") for path in list_pages()}
    if arguments.page is None:
        titles = [(name, text.partition("\n")[0].strip("# ")) for name, text in pages.items()]
        show([DefinitionList(titles)])
        return 0
    if arguments.page not in pages:
        raise UnknownName("page", arguments.page, pages)
    print_stdout(pages[arguments.page])
    return 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
