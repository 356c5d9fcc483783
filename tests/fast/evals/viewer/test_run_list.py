"""What the list of runs says of each: what tells it from the others of its program."""

import json

from run_folders import make, retrieve

from sextant.evals.viewer.data import ViewerApi


def test_runs_of_a_program_are_told_apart_by_the_retriever_and_the_model_in_which_they_differ(
    tmp_path,
):
    columns = {"nDCG@10": [0.1, 0.2]}
    dense = {"retriever": {"name": "dense", "with": "dense()"}}
    model = {"lm": {"name": "openai/gpt-5", "model": "gpt-5"}}
    configs = {
        "floor": retrieve(),
        "dense floor": retrieve(**dense),
        "two hops": {"parameters": {"hops": 2}},
        "four hops": {},
        "with a model": model,
    }
    for name, config in configs.items():
        make(tmp_path / "runs" / name, columns, config)
    told = {
        run["id"]: (run["over"], run["setting"])
        for run in json.loads(ViewerApi([tmp_path / "runs"])("runs.json"))["runs"]
    }
    assert told == {
        "floor": ("bm25", ""),
        "dense-floor": ("dense", ""),
        "two-hops": ("offline", "hops=2"),
        "four-hops": ("offline", "hops=4"),
        "with-a-model": ("openai/gpt-5", ""),
    }
