"""A run on an MLflow server, or in its database: parameters, metrics, artifacts.

Needs the package mlflow-skinny, and for a database also SQLAlchemy and alembic (mlflow brings all
three). nDCG@10 is named nDCG_at_10, "nDCG@10 [pooled]" nDCG_at_10/pooled. What is not known, such
as the usage of an imported run, is not logged. Left out: traces, which --to openinference makes and
MLflow takes.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from evals.formats.export_run import ExportedRun
from tools import files
from tools.errors import DataError, UsageError
from tools.installation import explain_missing

KEY = "sextant.run"  # the tag by which a run is found again
_LONGEST = 6000  # characters of a parameter's value, MLflow's own limit
_ARTIFACTS = ("config.json", "scores.json", "scores.csv", "run.trec", "attribution.jsonl")


def write(source: ExportedRun, address: str, *, force: bool) -> list[str]:
    """A run of MLflow's: parameters, metrics, artifacts. --out is sqlite:///FILE or
    http://host:port
    """
    if source.query_ids != source.run.query_ids:
        raise UsageError("--to mlflow takes whole runs; leave out --query-id and --limit")
    scheme, _, database = address.partition(":///")
    # Artifacts go beside a database, not into the working folder; else it is MLflow's choice.
    artifacts = (
        (Path(database).resolve().parent / "mlartifacts").as_uri() if scheme == "sqlite" else None
    )
    mlflow, client = _connect(address)
    experiment = source.run.config["task"]
    run = source.run
    key = f"{run.path.name} {run.config['data_fingerprint']}"
    try:
        existing = client.get_experiment_by_name(experiment)
        experiment_id = (
            existing.experiment_id if existing else client.create_experiment(experiment, artifacts)
        )
        earlier = client.search_runs(
            [experiment_id], f"tags.`{KEY}` = {json.dumps(key)}", max_results=1
        )
        if earlier and not force:
            raise UsageError(
                f"{address} has {run.path.name} already ({earlier[0].info.run_id}); --force logs it "
                f"again"
            )
        tags = {"task": experiment, "program": run.config["program"]}
        tags |= {"git_revision": run.config["provenance"].get("git_revision")}
        tags = {f"sextant.{name}": str(value) for name, value in tags.items() if value} | {KEY: key}
        run_id = client.create_run(experiment_id, run_name=run.path.name, tags=tags).info.run_id
        metrics = [
            mlflow.entities.Metric(name, value, 0, 0)
            for name, value in list_metrics(source).items()
        ]
        params = [
            mlflow.entities.Param(name, value) for name, value in list_parameters(source).items()
        ]
        for start in range(0, max(len(metrics), len(params)), 100):  # MLflow's limit of a batch
            client.log_batch(
                run_id, metrics=metrics[start : start + 100], params=params[start : start + 100]
            )
        with files.temporary_folder() as folder:
            for name in _ARTIFACTS:
                if (run.path / name).is_file():
                    (folder / name).symlink_to((run.path / name).resolve())
            client.log_artifacts(run_id, str(folder))
        client.set_terminated(run_id)
    except mlflow.MlflowException as error:
        raise DataError(
            f"MLflow at {address} does not take it: {str(error).partition(chr(10))[0]}"
        ) from None
    return [f"experiment {experiment}, run {run_id}"]


def _connect(address: str) -> tuple[Any, Any]:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing may phone home
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault(
        "MLFLOW_ALLOW_HTTP_REDIRECTS", "false"
    )  # a run and a token go to the address that is given
    try:
        import mlflow  # an extra, and read after the settings above
    except ImportError as error:
        raise UsageError(f"--to mlflow needs {explain_missing(error.name, 'mlflow')}") from None
    try:
        return mlflow, mlflow.MlflowClient(tracking_uri=address)
    except (mlflow.MlflowException, ImportError) as error:
        raise UsageError(
            f"MLflow cannot open {address}: {str(error).partition(chr(10))[0]}"
        ) from None


def list_parameters(source: ExportedRun) -> dict[str, str]:
    """Flatten the configuration: keys within keys become "lm.name"."""
    flat = dict[str, str]()
    for key, value in source.run.config.items():
        inner = (
            {f"{key}.{name}": setting for name, setting in value.items()}
            if isinstance(value, dict)
            else {key: value}
        )
        if key != "provenance":
            flat |= {_name(name): _text(setting) for name, setting in inner.items()}
    return flat


def list_metrics(source: ExportedRun) -> dict[str, float]:
    """Collect means with their intervals, shares of losses, and usage, as far as they are
    defined and known.
    """
    scores = source.run.scores
    values: dict[str, Any] = {}
    for metric, estimate in scores["metrics"].items():
        values |= {
            metric: estimate["mean"],
            f"{metric}/low": estimate["low"],
            f"{metric}/high": estimate["high"],
        }
    losses = scores.get("losses") or {"at": {}}
    for cutoff, shares in losses["at"].items():
        values |= {f"losses_at_{cutoff}/{fate}": share for fate, share in shares.items()}
    values |= {f"usage/{key}": value for key, value in scores["usage"].items()}
    values |= {key: scores[key] for key in ("queries", "failed")}
    return {_name(name): float(value) for name, value in values.items() if value is not None}


def _name(name: str) -> str:
    return re.sub(
        r"[^A-Za-z0-9_./ :-]", "_", name.replace(" [", "/").replace("]", "").replace("@", "_at_")
    )[:250]


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."
