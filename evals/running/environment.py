"""The environment that a run was made in, loaded again from its configuration; refused where the data has changed."""

from typing import TYPE_CHECKING

from evals import folder as run_folder
from tools.errors import DataError

if TYPE_CHECKING:
    from environments.base import Environment


def environment_of(config: run_folder.Config, qrels: str = "") -> "Environment":
    """The environment that a run was made in, `qrels` leading; DataError when the data is no longer the same."""
    import environments

    where = config[run_folder.PROVENANCE]["folder"] or config["data"]
    loaded = environments.load(
        config["task"],
        where,
        config["split"],
        qrels=qrels or config[run_folder.PROVENANCE]["judgements"],
        instruction=config["instruction"],
    )
    asked = config["asked"]
    chosen = loaded.asking(limit=asked["limit"], query_ids=asked["query_ids"])
    if chosen.fingerprint != config["data_fingerprint"]:
        raise DataError(
            f"the data of {config['task']} in {where} is not what the run was made with "
            f"({chosen.fingerprint}, not {config['data_fingerprint']}); run again"
        )
    return chosen
