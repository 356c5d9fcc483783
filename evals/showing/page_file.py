"""The page in one file that can be sent: it carries every answer inside, and needs neither server nor network.

Texts of corpora and models are data: the file's content security policy lets no script run but ours.
"""

import base64
import gzip
import hashlib
import html
import os
import re
from collections.abc import Mapping
from pathlib import Path

from evals.showing.page_data import Answers, list_answers
from evals.showing.page_query import plain_json
from tools import disk
from tools.errors import DataError

PAGE = Path(__file__).parent / "page"
# The page's program is these files of page/, one after the other.
_NAMES = ("dom", "data", "words", "charts", "lists", "trajectory", "overview", "run", "query", "compare", "main")
SCRIPTS = tuple(f"{name}.js" for name in _NAMES)
# Where page.html asks for its style and program; the exported page has them inside.
_STYLE = re.compile(r'<link\b[^>]*"page\.css"[^>]*>')
_SCRIPT = re.compile(r'<script\b[^>]*"page\.js"[^>]*></script>')


def read_page() -> str:
    """The page's skeleton."""
    return (PAGE / "page.html").read_text(encoding="utf-8")


def read_style() -> str:
    """Its style sheet."""
    return (PAGE / "page.css").read_text(encoding="utf-8")


def read_script() -> str:
    """Its program, in a scope of its own."""
    parts = [(PAGE / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return '(() => {\n"use strict";\n' + "\n".join(parts) + "})();\n"


def write_page(answers: Answers, path: Path) -> int:
    """Write the page with every answer in it into one file; its size in bytes. The same bytes for the same runs."""
    before, after = _shell()
    hide = _Hide(answers.places)
    with disk.replacing(path) as file:
        file.write(before)
        for name, answer in list_answers(answers):
            packed = base64.b64encode(gzip.compress(hide(answer), 6, mtime=0)).decode()
            file.write(f'<script type="application/json+gzip" data-path="{html.escape(name)}">{packed}</script>\n')
        file.write(after)
    return path.stat().st_size


def _shell() -> tuple[str, str]:
    """The page before and after its data, with style and program inside and a policy that allows just these two."""
    css, program = read_style(), read_script()
    if re.search("</script|</style|<!--", css + program, re.IGNORECASE):
        raise DataError(f"a file in {PAGE} would end its block early; write </script and <!-- otherwise")
    policy = (
        f"default-src 'none'; script-src {_hash(program)}; style-src {_hash(css)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{css}</style>'
    before, after = _STYLE.sub(lambda _: head, _SCRIPT.sub("", read_page())).split("</body>")
    return before, f"<script>{program}</script>\n</body>{after}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class _Hide:
    """Takes out of what is sent what an error or a configuration may quote: keys, and places on this machine."""

    def __init__(self, places: Mapping[str, str]) -> None:
        words, least = ("KEY", "TOKEN", "SECRET", "PASSWORD"), 12  # characters: a shorter one may be any word
        named = {
            value: f"[{name}]"
            for name, value in sorted(os.environ.items())
            if len(value) >= least and any(word in name.upper() for word in words)
        } | dict(places)
        if len(Path(home := os.environ.get("HOME", "")).parts) > 2:  # /root names nobody
            named[f"{home}/"] = "~/"
        # As JSON has them; what lies inside another one comes after it.
        longest_first = sorted(named, key=len, reverse=True)
        self._hidden = [(plain_json(text)[1:-1], plain_json(named[text])[1:-1]) for text in longest_first]

    def __call__(self, answer: bytes) -> bytes:
        for text, instead in self._hidden:
            answer = answer.replace(text, instead)
        return answer
