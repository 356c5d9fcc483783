"""The recipe `latent`: a model that knows the groups behind a miniature gets them back, and offline is a floor."""

import json

import pytest
from building import bcubed, build, check_forecast, load, prepare, relevant
from building.knowing import Knowing
from openai_server import OpenAIServer, annotate

from sextant.environments import __main__ as environments_command
from sextant.evals.running.resolve import RunRetrievers
from sextant.tools.errors import BudgetReached, DataError, RunConflict, UnknownName
from sextant.tools.models.run_resources import RunResources
from sextant.tools.platform import files
from sextant.tools.retrievers import canonicalize
from sextant.tools.retrievers.expressions import parse
from sextant_construction import __main__ as build_command
from sextant_construction.recipe import read_recipe

STANCE = {
    "attribute": {"lens": "stance"},
    "limits": {"min_positives": 2},
    "write": {"words": [5, 60]},
}


@pytest.fixture
def knowing(server: OpenAIServer):
    server.answer = Knowing("obliq/twitter")
    return server.answer


def test_the_groups_behind_a_miniature_are_recovered_to_the_line_within_what_the_dry_run_says(
    tmp_path, server, knowing
):
    folder = prepare(tmp_path / "built", "latent", "task:obliq/twitter", **STANCE)
    ahead = build(folder, server.spec, dry_run=True)["stages"]
    assert not server.requests
    check_forecast(ahead, build(folder, server.spec)["stages"], server.requests)
    ours, theirs = relevant(load(folder)), relevant(knowing.environment)
    assert sorted(map(sorted, ours.values())) == sorted(map(sorted, theirs.values()))
    assert bcubed(ours, theirs) == (1.0, 1.0, 1.0)


def test_a_change_of_the_recipe_asks_again_what_follows_from_it_alone(tmp_path, server, knowing):
    folder = prepare(tmp_path / "built", "latent", "task:obliq/twitter", **STANCE)
    build(folder, server.spec)
    sent = len(server.requests)
    prepare(folder, "latent", "task:obliq/twitter", **STANCE, judge={"rule": "2: yes; 0: no"})
    build(folder, server.spec)
    later = [body["messages"][-1]["content"] for body in server.requests[sent:]]
    assert later and all("verdicts" in text for text in later)


def test_a_build_whose_budget_is_used_up_goes_on_where_it_ended(tmp_path, server, knowing):
    folder = prepare(tmp_path / "built", "latent", "task:obliq/twitter", **STANCE)
    with pytest.raises(BudgetReached, match="what was answered is kept"):
        build(folder, server.spec, budget_calls=20)
    assert len(server.requests) == 20
    build(folder, server.spec)
    again = [json.dumps(body["messages"]) for body in server.requests]
    assert len(again) == len(set(again))


def test_a_model_of_unknown_price_is_named_once_before_anything_is_sent(
    tmp_path, server, knowing, capsys
):
    folder = prepare(tmp_path / "built", "latent", "task:obliq/twitter", **STANCE)
    said = f"the price of {server.spec} is not known"
    knowing_answer = server.answer

    def answer(prompt):
        printed.append(capsys.readouterr().err)
        return knowing_answer(prompt)

    printed = []
    server.answer = answer
    build(folder, server.spec, until="extract")
    assert printed[0].count(said) == 1 and said not in "".join(printed[1:])
    prices = tmp_path / "prices.toml"
    prices.write_text(f'["{server.spec}"]\ninput = 1\noutput = 1\n')
    build(folder, server.spec, prices=prices)
    assert said not in capsys.readouterr().err


def test_a_build_until_its_documents_are_read_asks_no_model(tmp_path, server):
    folder = prepare(tmp_path / "built", "latent", "task:obliq/twitter", **STANCE)
    status = build(folder, server.spec, until="ingest")
    assert [row["stage"] for row in status["stages"]] == ["ingest"]
    assert not server.requests and not (folder / "release").exists()


def test_a_build_in_a_folder_that_another_process_is_at_says_that_alone(
    tmp_path, server, knowing, capsys
):
    folder = prepare(tmp_path / "built", "latent", "task:obliq/twitter", **STANCE)
    with (
        files.lock_file(folder / ".lock", lambda: None),
        pytest.raises(RunConflict, match="another process is at"),
    ):
        build(folder, server.spec)
    assert capsys.readouterr().err == "" and not server.requests


def test_an_answer_that_cannot_be_used_drops_its_unit_and_says_why(tmp_path, server, knowing):
    server.answer = lambda prompt: {"raw": "?"} if "accc" in prompt else knowing(prompt)
    folder = prepare(tmp_path / "built", "latent", "task:obliq/twitter", **STANCE)
    build(folder, server.spec, until="label")
    dropped = [json.loads(line) for line in (folder / "dropped.jsonl").open()]
    failed = {row["why"] for row in dropped} - {"attribute absent"}
    assert failed and failed <= {"no usable answer", "left out by the model"}
    assert not (folder / "release").exists()


def test_offline_makes_a_task_that_runs_and_calls_it_a_floor(tmp_path, command_of, run):
    from sextant_construction import __main__ as command

    made = command_of(command)
    assert (
        made("new", tmp_path / "own", "--recipe", "latent", "--corpus", "task:obliq/twitter").code
        == 0
    )
    text = (tmp_path / "own/recipe.toml").read_text()
    (tmp_path / "own/recipe.toml").write_text(text.replace('lens = ""', 'lens = "stance"', 1))
    found = made("run", tmp_path / "own")
    assert found.code == 0 and "a floor" in found.out and "handles in 7 documents" in found.err
    assert (tmp_path / "own/release/README.md").read_text().count(
        "No person has checked this benchmark."
    ) == 1
    assert run("--task", tmp_path / "own/release", "--program", "multihop").code == 0
    assert "extract" in made("status", tmp_path / "own").out
    before = (tmp_path / "own/release/queries.jsonl").read_bytes()
    assert made("run", tmp_path / "own", "--limit", 40).code == 0
    assert (tmp_path / "own/release/queries.jsonl").read_bytes() == before and (
        tmp_path / "own/limit-40"
    ).is_dir()


@pytest.mark.parametrize("wording", ["irony", 'what is "meant"'])
def test_an_attribute_that_no_retriever_can_be_named_by_is_refused(tmp_path, wording):
    with pytest.raises(DataError, match="attribute"):
        build(prepare(tmp_path, "latent", "task:congress", attribute={"attribute": wording}))


def test_a_release_tells_the_attribute_in_the_recipes_own_words(
    tmp_path, server, knowing, command_of
):
    kept = "what is meant, and not said"
    about = STANCE | {"attribute": {"attribute": "what is meant,\nand not said"}}
    folder = prepare(tmp_path / "built", "latent", "task:obliq/twitter", **about)
    build(folder, server.spec)
    environment = load(folder)
    assert environment.hints == {"attribute": kept}
    run_retrievers = RunRetrievers(environment, RunResources())
    server.answer = annotate
    named = str(run_retrievers.build(canonicalize(f"lens(bm25,model={server.spec})")).name)
    assert parse(named).options["attribute"] == kept and kept in json.dumps(server.requests[-1])
    assert kept in command_of(environments_command)("show", folder / "release").out


def test_a_recipe_that_leaves_nothing_says_where_it_went(tmp_path):
    folder = prepare(
        tmp_path / "built",
        "latent",
        "task:obliq/twitter",
        **STANCE | {"limits": {"min_positives": 50}},
    )
    with pytest.raises(
        DataError, match=r"no group is left after ingest \(84 in, 84 out\); extract"
    ):
        build(folder)
    with pytest.raises(UnknownName, match="did you mean 'extract'"):
        build(folder, until="extrct")
    with pytest.raises(DataError, match="neither a lens nor an attribute"):
        build(prepare(tmp_path / "other", "latent", "task:obliq/twitter"))


def test_a_query_with_which_people_find_fault_is_dropped_and_asks_nothing_again(
    tmp_path, server, knowing
):
    folder = prepare(tmp_path / "built", "latent", "task:obliq/twitter", **STANCE)
    build(folder, server.spec)
    sent, before = len(server.requests), len(load(folder).queries)
    offered = json.loads((folder / "review/offered/queries.jsonl").read_text().splitlines()[0])
    said = {
        "item": offered["item"],
        "rater": "ann",
        "value": [offered["values"][0], "leak"],
        "note": "",
    }
    (folder / "review/answers.jsonl").write_text(json.dumps(said) + "\n")
    build(folder, server.spec)
    assert len(load(folder).queries) == before - 1 and len(server.requests) == sent
    assert "people find fault with it" in (folder / "dropped.jsonl").read_text()


@pytest.mark.parametrize(
    ("lens", "words", "batch", "kinds", "further"),
    [("stance", [10, 15], 15, 3, 0), ("failure", [10, 60], 1, 0, 0), ("proof", [10, 60], 1, 0, 4)],
)
def test_a_new_recipe_of_a_lens_has_the_values_of_the_paper_unless_they_are_given(
    lens, words, batch, kinds, further, tmp_path, command_of
):
    made, lens_is = command_of(build_command), ("--set", f"attribute.lens={lens}")
    about = ("--recipe", "latent", "--corpus", "task:obliq/twitter", *lens_is)
    assert made("new", tmp_path / "papers", *about).code == 0
    recipe = read_recipe(tmp_path / "papers")[1]
    assert (recipe.write.words, recipe.extract.batch) == (words, batch)
    assert len(recipe.screen.kinds) == kinds and {*recipe.screen.eligible} <= {*recipe.screen.kinds}
    # The attribute and its label are fields, too: six of a proof.
    assert len(recipe.attribute.further) == further
    assert recipe.attribute.private == ["solution"] * (lens == "proof")
    made("new", tmp_path / "own", *about, "--set", "write.words=[3, 9]", "--set", "extract.batch=2")
    own = read_recipe(tmp_path / "own")[1]
    assert (own.write.words, own.extract.batch) == ([3, 9], 2)
    assert own.screen.kinds.keys() == recipe.screen.kinds.keys()


def test_a_build_from_a_new_recipe_about_a_stance_screens_and_writes_ten_words(
    tmp_path, command_of
):
    made = command_of(build_command)
    corpus = ("--corpus", "task:obliq/twitter", "--set", "attribute.lens=stance")
    made("new", tmp_path / "own", "--recipe", "latent", *corpus)
    found = made("run", tmp_path / "own")
    assert found.code == 0 and "screen" in found.out
    said = "latent differs from the paper: batches are shown the labels in use"
    assert said in (tmp_path / "own/release/README.md").read_text()
    queries = [json.loads(line) for line in (tmp_path / "own/release/queries.jsonl").open()]
    assert queries and all(len(row["text"].split()) <= 15 for row in queries)
