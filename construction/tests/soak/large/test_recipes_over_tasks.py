"""Each recipe of a build over each of the tasks: what it releases passes every check and can be run."""

import json

import pytest
from conftest import lines

from sextant import environments
from sextant.environments import __main__ as tasks_command
from sextant_construction import __main__ as build_command
from sextant_construction import recipe

SETTINGS = {
    "latent": ["attribute.attribute=what it is about"],
    "pool": ['candidates.retrievers=["bm25"]', "candidates.tokens=0"],
    "external": ["corpus.group=author"],
}
# What the rules of `offline` come to nothing for: texts of a few sentences, code, or queries in the documents' words.
EMPTY = {
    ("latent", "multiconir/books"),
    ("latent", "multiconir/movies"),
    ("latent", "multiconir/people"),
    ("latent", "multiconir/medical_case"),
    ("latent", "multiconir/legal_document"),
    ("recollection", "crumb/code_retrieval"),
    ("recollection", "multiconir/books"),
    ("conditions", "obliq/twitter"),
    ("conditions", "obliq/math"),
    ("conditions", "crumb/code_retrieval"),
    ("conditions", "birco/doris_mae"),
    ("conditions", "birco/relic"),
}
AUTHORS = 7


def corpus_of(name, task, folder):
    """The task itself, or its documents with the authors that the recipe `external` needs."""
    if name != "external":
        return f"task:{task}"
    documents = environments.load(task, "mini", "all").documents.stream()
    rows = (
        {
            "_id": one.doc_id,
            "title": one.title,
            "text": one.text,
            "author": f"Author{number % AUTHORS}",
        }
        for number, one in enumerate(documents)
    )
    lines(folder / "authors.jsonl", map(json.dumps, rows))
    return str(folder / "authors.jsonl")


@pytest.mark.parametrize("task", environments.tasks())
@pytest.mark.parametrize("name", recipe.RECIPES)
def test_a_recipe_over_a_task_makes_a_benchmark_that_can_be_checked_and_run(
    name, task, tmp_path, command_of, run
):
    folder, build = tmp_path / "made", command_of(build_command)
    settings = [word for one in SETTINGS.get(name, ()) for word in ("--set", one)]
    corpus = corpus_of(name, task, tmp_path)
    assert build("new", folder, "--recipe", name, "--corpus", corpus, *settings).code == 0
    made = build("run", folder)
    if (name, task) in EMPTY:
        assert (
            made.code == 3 and " is left after " in made.err and not (folder / "release").exists()
        )
        return
    assert made.code == 0, made.err
    checked = command_of(tasks_command)("check", folder / "release")
    assert checked.code == 0, checked.out + checked.err
    done = run("--program", "retrieve", "--task", folder / "release", "--json")
    assert done.code == 0 and done.json["failed"] == 0, done.err
    assert all(
        one["mean"] is not None for name, one in done.json["metrics"].items() if name != "Triplets"
    )
