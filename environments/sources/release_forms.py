"""Which of the public forms a folder has; suites whose tasks are plain collections read any of them."""

from pathlib import Path

from environments.sources import beir_folder, obliq_folder, trec_files
from environments.sources.collection import Collection


def read(folder: Path, home: Path) -> Collection:
    """The collection in `folder`: TREC's form, BEIR's, or else OBLIQ-Bench's."""
    if trec_files.is_one(folder):
        return trec_files.read(folder, home)
    if beir_folder.is_one(folder):
        return beir_folder.read(folder, home)
    return obliq_folder.read(folder, home)
