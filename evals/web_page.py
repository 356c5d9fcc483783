"""A page in a file that works without a network: its style, its program and its data are in it.

Its policy of contents lets no other script run, so that texts in the data stay texts.
"""

import base64
import gzip
import hashlib
import html
import re
from collections.abc import Iterable
from pathlib import Path

from sextant.tools.errors import DataError
from sextant.tools.platform import files

PAGE = Path(__file__).parent / "viewer" / "page"


def join_scripts(scripts: Iterable[str]) -> str:
    """Return scripts joined as a program, in a scope of its own."""
    return '(() => {\n"use strict";\n' + "\n".join(scripts) + "})();\n"


def html_shell(title: str, body: Path) -> str:
    """Return a page of HTML that asks for page.css and page.js.

    It begins with the head that all pages have.
    """
    return _read_head(title) + body.read_text("utf-8")


def _read_head(title: str) -> str:
    return (PAGE / "head.html").read_text("utf-8").replace("TITLE", title)


def plain_shell(title: str, meta: str, style: str, program: str) -> str:
    """Return the head of a page whose only script is `program`, with `style` in it, down to its bar.

    `title` and `meta`, further elements of the head, are HTML. The page ends with the program.
    """
    return _put_style_in(_read_head(title), meta, style, program)


def _put_style_in(shell: str, meta: str, style: str, program: str) -> str:
    """Return a page with `style` in it, and the policy that lets it use this style and `program`,
    and nothing else, in place of the elements that ask for files.
    """
    policy = (
        f"default-src 'none'; script-src {_hash(program)}; style-src {_hash(style)}; "
        f"img-src data:; base-uri 'none'; form-action 'none'"
    )
    inside = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    inside += f"{meta}<style>{style}</style>"
    shell = re.sub(r'<script\b[^>]*"page\.js"[^>]*></script>\n?', "", shell)
    return re.sub(r'<link\b[^>]*"page\.css"[^>]*>', lambda _: inside, shell)


def write_single_file(
    path: Path, shell: str, style: str, program: str, data: Iterable[tuple[str, bytes]]
) -> int:
    """Write a page with its data, JSON by name, into one file; return its size in bytes.

    The bytes are the same for the same data. `shell` asks for page.css and page.js, which `style`
    and `program` replace.
    """
    if re.search("</script|</style|<!--", style + program, re.IGNORECASE):
        raise DataError(
            f"a script or style of {path.name} would end its block early; write </script and <!-- "
            f"otherwise"
        )
    before, after = _put_style_in(shell, "", style, program).split("</body>")
    with files.replacing(path) as file:
        file.write(before)
        for name, answer in data:
            packed = base64.b64encode(gzip.compress(answer, 6, mtime=0)).decode()
            file.write(
                f'<script type="application/json+gzip" '
                f'data-path="{html.escape(name)}">{packed}</script>\n'
            )
        file.write(f"<script>{program}</script>\n</body>{after}")
    return path.stat().st_size


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
