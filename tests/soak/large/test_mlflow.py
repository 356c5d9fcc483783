"""An export to MLflow has what the run says."""

import json
from pathlib import Path

import pytest
from bad_server import always, moved

from sextant.evals import export

mlflow = pytest.importorskip("mlflow", reason="an extra: pip install '.[soak]'")


def test_mlflow_has_what_the_run_says(run, command_of, tmp_path):
    place = Path(
        run("--program", "multihop", "--task", "congress", "--limit", 6, "--json").json["run"]
    )
    words = (place, "--to", "mlflow", "--out", f"sqlite:///{tmp_path}/ml.db")
    assert command_of(export)(*words).code == 0
    client = mlflow.MlflowClient(tracking_uri=words[-1])
    experiment = client.get_experiment_by_name("obliq/congress")
    (logged,) = client.search_runs([experiment.experiment_id])
    scores = json.loads((place / "scores.json").read_text())
    assert logged.info.run_name == place.name and logged.info.status == "FINISHED"
    assert logged.data.params["parameters.hops"] == "4"
    assert logged.data.metrics["nDCG_at_10"] == scores["metrics"]["nDCG@10"]["mean"]
    assert logged.data.metrics["losses_at_10/found"] == scores["losses"]["at"]["10"]["found"]
    artifact = client.download_artifacts(logged.info.run_id, "run.trec", str(tmp_path))
    assert Path(artifact).read_bytes() == (place / "run.trec").read_bytes()
    again = command_of(export)(*words)
    assert again.code == 2 and "--force" in again.err, "it is there already"


def test_a_redirect_of_an_mlflow_server_is_not_followed_with_a_run(run, command_of, bad, elsewhere):
    place = run("--program", "retrieve", "--task", "congress", "--limit", 1, "--json").json["run"]
    bad.script = always(moved(f"http://localhost:{elsewhere.port}/"))
    result = command_of(export)(place, "--to", "mlflow", "--out", bad.url.removesuffix("/v1"))
    assert (
        result.code == 3 and "does not take it" in result.err and bad.tries and not elsewhere.tries
    )
