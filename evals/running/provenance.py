"""What made a run's numbers besides its arguments: the code, the libraries, the revision."""

import hashlib
import platform
import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[2]
# What can change a ranking: of evals what makes pools, hands in at a limit, and refuses a ranking. The rest only
# runs and scores, and a score can be made again.
_SOURCES = (
    *("agents", "environments", "programs", "tools"),
    *("evals/measuring/anytime.py", "evals/running/pools.py", "evals/running/submission.py"),
)
_LIBRARIES = (
    "chromadb",
    "dspy",
    "json-repair",
    "langgraph",
    "nltk",
    "numba",
    "numpy",
    "rank-bm25",
    "sentence-transformers",
    "tokenizers",
    "torch",
    "transformers",
)


def code_digest(*others: str) -> str:
    """Eight hex digits over the sources that answers depend on, and those of `others` packages.

    In a run's configuration it keeps an edited program from resuming the run of the program before the
    edit, which a git revision cannot do while the edit is not committed.
    """
    digest = hashlib.sha256()
    for name in (*_SOURCES, *others):
        place = _ROOT / name
        for path in [place] if place.is_file() else sorted([*place.rglob("*.py"), *place.rglob("models.toml")]):
            digest.update(str(path.relative_to(_ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:8]


def versions(*others: str) -> dict[str, str]:
    """The versions of the libraries that answers depend on, and of `others`."""
    from importlib.metadata import version  # takes a fifth of the time in which --help answers

    return {name: version(name) for name in (*_LIBRARIES, *others)}


def origin() -> dict[str, str | None]:
    """Where the run was made, for the reader of config.json: nothing is compared with it."""
    return {"git_revision": _git_revision(), "python": platform.python_version(), "system": platform.platform()}


def _git_revision() -> str | None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(_ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None  # no git, or no repository: installed from an archive
