"""Writes the printouts of docs/guide/compare.md: `python docs/write_compare.py`.

The page's four blocks are of a comparison, of curves, of a replay and of credit, on the miniature of congress.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/guide/compare.md"
PROGRAMS = ("multihop", "react", "tournament", "retrieve")
# Rows of a comparison that the page leaves out.
LEFT_OUT = re.compile(r".* (R@10|R@50|nDCG@50|RR@10) ")


def compose() -> str:
    """Return the page, with its blocks as the commands print them now."""
    pieces = PAGE.read_text(encoding="utf-8").split("```\n")
    with TemporaryDirectory() as folder:
        os.environ["SEXTANT_HOME"] = folder
        blocks = print_blocks(Path(folder) / "runs")
    # Text and blocks take turns.
    pieces[1::2] = [f"{block.strip(chr(10))}\n" for block in blocks]
    return "```\n".join(pieces)


def print_blocks(runs: Path) -> list[str]:
    """Run the programs, and return the parts of the printouts that the page shows."""
    folders = {}
    for program in PROGRAMS:
        output("run", "--program", program, "--task", "congress", "--runs", str(runs))
        folders[program] = str(next(runs.glob(f"*/{program}-*")))
    compared = output("compare", folders["retrieve"], folders["multihop"])
    tables = compared.partition("\nagainst ")[2].partition("\nqueries that moved")[0]
    lines = [line for line in tables.splitlines() if not LEFT_OUT.match(line)]
    curves = output("curves", *folders.values(), "--by", "calls")
    drawn = curves[curves.index("nDCG@10 by model calls") :].partition("a query that has ended")[0]
    replayed = output("replay", folders["multihop"], "--retriever", "bm25(k1=1.5,b=0.75)")
    surfaced = replayed[replayed.index(" relevant documents that") :].partition("\n hop")[0]
    credit = output("credit", folders["multihop"])
    hops = credit[credit.index("surfaced 0.") :].partition("\n tool search")[0]
    return ["against " + "\n".join(lines), drawn, surfaced, hops]


def output(*words: str) -> str:
    """Return what a command prints, of a width that depends on no terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "sextant", *words],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "120"},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    PAGE.write_text(compose(), encoding="utf-8")
