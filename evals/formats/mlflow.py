"""A run on an MLflow server, or in its database: parameters, metrics, artifacts.

Needs the package mlflow-skinny, and for a database also SQLAlchemy and alembic (mlflow brings all
three). nDCG@10 is named nDCG_at_10, "nDCG@10 [pooled]" nDCG_at_10/pooled. Unknown values, such as
the usage of an imported run, are not logged. Left out: traces, which --to openinference makes and
MLflow takes.
"""

import json
import re
from pathlib import Path
from typing import Any

from sextant.evals.formats.export_run import ExportedRun
from sextant.evals.run_folder import CONFIG_FILE, JUDGED_FILE, SCORES_FILE, TREC_FILE, VALUES_FILE
from sextant.tools.errors import DataError, UsageError
from sextant.tools.platform.installation import explain_missing
from sextant.tools.platform.temporary_changes import changed_environment
from sextant.tools.records import JsonObject

# The tag by which a run is found again.
KEY = "sextant.run"
# Characters of a parameter's value, MLflow's own limit.
_LONGEST = 6000
# Metrics or parameters that MLflow takes at a time.
_BATCH = 100
_ARTIFACTS = (CONFIG_FILE, SCORES_FILE, VALUES_FILE, TREC_FILE, JUDGED_FILE)


# For MLflow, which reads them as it is imported and at each request.
_VARIABLES = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    # A run and a token go to the given address alone.
    "MLFLOW_ALLOW_HTTP_REDIRECTS": "false",
}


@changed_environment(_VARIABLES)
def write(source: ExportedRun, address: str, *, force: bool) -> list[str]:
    """A run of MLflow's: parameters, metrics, artifacts. --out is sqlite:///FILE or
    http://host:port
    """
    if source.query_ids != source.run.query_ids:
        raise UsageError("--to mlflow takes whole runs; leave out --query-id and --limit")
    mlflow, client = _connect(address)
    try:
        run_id = _create_run(client, source, address, force=force)
        _log_values(mlflow, client, run_id, source)
        for name in _ARTIFACTS:
            if (source.run.path / name).is_file():
                client.log_artifact(run_id, str(source.run.path / name))
        client.set_terminated(run_id)
    except mlflow.MlflowException as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"MLflow at {address} does not take it: {reason}") from None
    return [f"experiment {source.run.config['task']}, run {run_id}"]


def _create_run(client: Any, source: ExportedRun, address: str, *, force: bool) -> str:
    run = source.run
    experiment_id = _experiment_id(client, run.config["task"], address)
    key = f"{run.path.name} {run.config['data_fingerprint']}"
    earlier = client.search_runs(
        [experiment_id],
        f"tags.`{KEY}` = {json.dumps(key)}",
        max_results=1,
    )
    if earlier and not force:
        raise UsageError(
            f"{address} has {run.path.name} already ({earlier[0].info.run_id}); --force logs it "
            "again"
        )
    tags = {
        "sextant.task": run.config["task"],
        "sextant.program": run.config["program"],
        "sextant.git_revision": run.config["provenance"].get("git_revision"),
        KEY: key,
    }
    return str(
        client.create_run(
            experiment_id,
            run_name=run.path.name,
            tags={name: str(value) for name, value in tags.items() if value},
        ).info.run_id
    )


def _experiment_id(client: Any, name: str, address: str) -> str:
    existing = client.get_experiment_by_name(name)
    if existing:
        return str(existing.experiment_id)
    # Artifacts go next to a database, not into the working folder; else MLflow chooses.
    artifacts = None
    scheme, _, database = address.partition(":///")
    if scheme == "sqlite":
        artifacts = (Path(database).resolve().parent / "mlartifacts").as_uri()
    return str(client.create_experiment(name, artifacts))


def _log_values(mlflow: Any, client: Any, run_id: str, source: ExportedRun) -> None:
    metrics = [
        mlflow.entities.Metric(name, value, 0, 0) for name, value in list_metrics(source).items()
    ]
    parameters = [
        mlflow.entities.Param(name, text) for name, text in list_parameters(source).items()
    ]
    for start in range(0, max(len(metrics), len(parameters)), _BATCH):
        client.log_batch(
            run_id,
            metrics=metrics[start : start + _BATCH],
            params=parameters[start : start + _BATCH],
        )


def _connect(address: str) -> tuple[Any, Any]:
    try:
        import mlflow  # an extra, and read after the settings of _VARIABLES
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
    flat = {}
    for key, value in source.run.config.items():
        if key == "provenance":
            continue
        if isinstance(value, dict):
            for inner_key, setting in value.items():
                flat[_name(f"{key}.{inner_key}")] = _text(setting)
        else:
            flat[_name(key)] = _text(value)
    return flat


def list_metrics(source: ExportedRun) -> dict[str, float]:
    """Collect means with their intervals, shares of losses, and usage, as far as they are
    defined and known.
    """
    scores = source.run.scores
    values: JsonObject = {}
    for metric, estimate in scores["metrics"].items():
        values |= {
            metric: estimate["mean"],
            f"{metric}/low": estimate["low"],
            f"{metric}/high": estimate["high"],
        }
    for cutoff, shares in (scores.get("losses") or {"at": {}})["at"].items():
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
