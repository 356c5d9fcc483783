"""OBLIQ-Bench: queries whose relevance is latent and verifiable, but hard to surface.

The Congress task (section 4, appendix D.5): a hazy recollection of one moment in a committee hearing, and one
speaker-turn passage that it is about. The release has no dev split, and the papers report all queries
(`--split all`). Ours is 20 % of them by hash, a third of the miniature's 36.
"""

from dataclasses import dataclass
from pathlib import Path

from environments.base import DevSplit, Environment, Suite
from environments.sources import obliq_folder

RELEASE = "dianetc/OBLIQ-Bench@4ebee29f"  # on the Hugging Face hub
SEED = "sextant-obliq-1"


@dataclass(frozen=True, slots=True)
class Task:
    """A row of the benchmark: everything in which its tasks differ."""

    folder: str  # inside the release
    objective: str  # what counts as a find, in our words; shown to models
    metric: str
    dev: DevSplit
    dev_mini: DevSplit


TASKS = {
    "congress": Task(
        folder="tip-of-tongue/congress",
        objective=(
            "The collection holds turns of speech from committee hearings, as transcribed. Somebody remembers "
            "one moment of one hearing, imperfectly and without names, and a detail or two may be wrong. "
            "The one passage in which that moment happens is wanted."
        ),
        metric="nDCG@10",
        dev=DevSplit(SEED, 0.2),
        dev_mini=DevSplit(SEED, 1 / 3),
    ),
}


def load(name: str, data: str, folder: Path, split: str) -> Environment:
    """The task called `name`, read from `folder` (the release, or the task's own folder in it)."""
    task = TASKS[name]
    place = folder / task.folder if (folder / task.folder).is_dir() else folder
    release = obliq_folder.read(place, objective=task.objective)
    whole = Environment(
        task=f"obliq/{name}",
        data=data,
        split="all",
        source={"mini": "the bundled miniature", "full": RELEASE}.get(data, str(place)),
        documents=release.documents,
        queries=release.queries,
        qrels=release.qrels,
        metric=task.metric,
    )
    return whole.narrow(task.dev_mini if data == "mini" else task.dev, split)


SUITE = Suite(tasks=tuple(TASKS), load=load)
