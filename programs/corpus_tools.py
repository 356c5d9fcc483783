"""The tools over a corpus that an agent may be given, by name.

    tools = list_tools("search,more,read,grep")  # functions of a query's SearchTools

A tool is a function whose first parameter is the query's SearchTools and whose others are what a
model gives; its docstring is what a model is told. It returns a text, with texts of documents as
JSON. `default` is search, reading of whole documents and select. Named tools have `select`, too, as
an agent has to hand something in, and their `read` gives a part of a document.

Exclusions, pools, limits and the trace are the session's (tools/session.py); the scans are in
tools/text_scan.py.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sextant.programs import DEFAULT_TOOLS, FILES, TOOLS
from sextant.programs.search_tools import SearchTools, as_json
from sextant.tools import plugins
from sextant.tools.errors import ScanRefused, UsageError
from sextant.tools.models.answers.checks import InvalidAnswer
from sextant.tools.session import Excerpts

Tool = Callable[..., str]

_ENDS = ("finish", "submit")  # the tools that end a search, which an agent has in addition
_MOST_LINES = 50  # that a scan shows

search = SearchTools.search
select = SearchTools.select


def more(desk: SearchTools, search: str, from_: int = 0) -> str:
    """Go on in the results of an earlier search, without searching again.

    Args:
        search: The words of the earlier search.
        from_: The rank to begin at, from 1; 0 is after the last result that was shown.
    """
    return desk.page(search, from_)


def read(desk: SearchTools, doc_id: str, from_: int = 0, chars: int = 2000) -> str:
    """Read a part of a document that was found.

    Args:
        doc_id: Its doc_id.
        from_: The character to begin at; 0 is its beginning.
        chars: How many characters to give; 0 is all to the end.
    """
    return desk.read_window(doc_id, from_, chars)


def grep(desk: SearchTools, pattern: str, k: int = 10) -> str:
    """Find the lines of all documents that match a regular expression; gives each with two lines around it.

    Args:
        pattern: A regular expression in the syntax of RE2; (?i) at its beginning ignores case.
        k: How many lines to give.
    """
    return _show(desk, "grep", pattern, k)


def phrase(desk: SearchTools, text: str, k: int = 10) -> str:
    """Find the lines of all documents that have words in exactly this order; gives each with two lines around it.

    Args:
        text: The words. Case does not matter.
        k: How many lines to give.
    """
    return _show(desk, "phrase", text, k)


def count(desk: SearchTools, words: list[str]) -> str:
    """Count the documents that have each of some words, and those that have all of them.

    Args:
        words: The words. Case does not matter.
    """
    if len(words) == 1:
        words = words[0].split(",")
    named = [word.strip() for word in words if word.strip()]
    if not named:
        raise InvalidAnswer("empty", "count needs words to look for")
    counts = desk.session.count(named)
    result: dict[str, Any] = {"documents": counts.documents, "all_words": counts.together}
    return as_json(result | ({"cut": counts.cut} if counts.cut else {}))


def note(desk: SearchTools, text: str) -> str:
    """Write a note that you can read again later, also when this conversation has grown too long to be kept.

    Args:
        text: What to note.
    """
    desk.board.append(text)
    desk.session.note(text)
    return as_json({"notes": len(desk.board)})


def notes(desk: SearchTools) -> str:
    """Read all notes that you wrote."""
    desk.session.list_notes()
    return as_json({"notes": desk.board})


BOARD = (note, notes)


def _show(desk: SearchTools, tool: Any, words: str, k: int) -> str:
    if not words.strip():
        raise InvalidAnswer("empty", f"{tool} needs words to look for")
    try:
        excerpts: Excerpts = desk.scan(tool, words, min(max(k, 1), _MOST_LINES))
    except ScanRefused as error:
        raise InvalidAnswer("wrong type", str(error)) from None
    rows = [
        {"doc_id": row.doc_id, "title": row.title, "line": row.line, "text": row.text}
        for row in excerpts.rows
    ]
    result = {
        "lines": rows,
        "matching_lines": excerpts.lines,
        "matching_documents": excerpts.documents,
    }
    return as_json(result | ({"cut": excerpts.partial} if excerpts.partial else {}))


def list_tools(named: str, *, runs_commands: bool = False) -> list[Tool]:
    """Return the functions of tools that are `named`, with commas between; UnknownName for none of the table.

    `select` ends them. UsageError for `files` if the agent is no process that runs commands, and for
    two tools of one name.
    """
    if named == DEFAULT_TOOLS:
        return [SearchTools.search, SearchTools.read, SearchTools.select]
    tools = list[Tool]()
    for name in dict.fromkeys(part.strip() for part in named.split(",")):
        if name == FILES and not runs_commands:
            raise UsageError(
                "files are for agents that run commands: give them to --program command:LINE"
            )
        found = plugins.load_object("tool", name, TOOLS, plugins.TOOLS)
        tools += found if isinstance(found, tuple) else [found]
    tools.append(select)
    called = Counter([*_ENDS, *(tool.__name__ for tool in tools)])
    if twice := next((name for name, times in called.items() if times > 1), ""):
        raise UsageError(f"two tools are called {twice!r}; leave one out, or rename yours")
    return tools


def prepare(desk: SearchTools, tools: Sequence[Tool]) -> None:
    """Have the session keep whole rankings if there is a tool that goes on in them."""
    if more in tools:
        desk.session.kept_depth = desk.session.limits.depth
