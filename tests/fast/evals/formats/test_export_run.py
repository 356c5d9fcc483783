"""A run in other formats says what the run says: checked with the formats' own packages."""

import base64
import json
import os
import shutil
from functools import cache
from pathlib import Path

import pytest
import pytrec_eval
from conftest import lines
from foreign_runs import world
from jsonschema import Draft202012Validator
from otlp_receiver import receiving
from run_folders import run_in, unsealed

from sextant import environments
from sextant.environments.base import Judgements
from sextant.evals import export
from sextant.evals.formats.import_run import import_run, make_config
from sextant.evals.scoring.score_run import score
from sextant.evals.scoring.scored_run import read_scored_run
from sextant.tools.corpus import Corpus
from sextant.tools.platform.cli import run_command
from sextant.tools.records import SURFACING, Document, Query

HOSTILE = ["a b", "50%", "a%20b", "tab\there", "line\nbreak", "ünï–漢", "../../x", "q\u2028r"]


def called(module, *arguments):
    return run_command(module.parser(), module.command, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """A scored run of a program on a miniature; each is made once."""
    place = tmp_path_factory.mktemp("made")
    return cache(
        lambda program, task="congress": run_in(
            place, "--program", program, "--task", task, "--limit", 3
        )
    )


@pytest.fixture
def exported(tmp_path, capsys):
    """`sextant export RUN --to FORMAT`, to a folder of its own."""

    def run(path, to, *arguments, place="out"):
        assert called(export, path, "--to", to, "--out", tmp_path / place, *arguments) == 0, (
            capsys.readouterr().err
        )
        return tmp_path / place

    return run


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.open(encoding="utf-8", newline="\n")]  # not at U+2028


def rows_of_run(path: Path, name: str) -> dict[str, dict]:
    return {row["query_id"]: row for row in map(json.loads, (path / name).open(encoding="utf-8"))}


def contents(folder: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def values(path: Path) -> dict[str, dict[str, float]]:
    """query -> metric -> value of a run's scores.csv."""
    columns = read_scored_run(path).columns
    return {
        query: {name: column[query] for name, column in columns.items()}
        for query in next(iter(columns.values()))
    }


@pytest.mark.parametrize("task", ["crumb/clinical_trial", "crumb/paper_retrieval"])
def test_pytrec_eval_gets_our_numbers_from_the_trec_files(task, make, exported):
    run = make("retrieve", task)
    folder = exported(run, "trec")
    ranked = pytrec_eval.parse_run((folder / "run.trec").open())
    grades = pytrec_eval.parse_qrel((folder / "qrels.trec").open())
    relevant = pytrec_eval.parse_qrel((folder / "relevant.trec").open())
    gained = pytrec_eval.RelevanceEvaluator(grades, {"ndcg_cut.10"}).evaluate(ranked)
    found = pytrec_eval.RelevanceEvaluator(relevant, {"recall.100"}).evaluate(ranked)
    ours = values(run)
    assert len(gained) == len(ours)
    for query_id, metrics in ours.items():
        assert gained[query_id]["ndcg_cut_10"] == pytest.approx(metrics["nDCG@10"], abs=1e-9)
        if metrics["R@100"] is not None:
            assert found[query_id]["recall_100"] == pytest.approx(metrics["R@100"], abs=1e-9)
    assert (folder / "run.trec").read_bytes() == (run / "run.trec").read_bytes()
    if task == "crumb/clinical_trial":  # passages stand beside what is judged
        handed_in = pytrec_eval.parse_run((folder / "documents.trec").open())
        for query_id, row in rows_of_run(run, "outcomes.jsonl").items():
            assert (
                sorted(handed_in[query_id], key=handed_in[query_id].get, reverse=True)
                == row["ranking"]
            )


def test_fractions_stay_fractions_in_qrels_and_it_is_said(make, exported, capsys):
    folder = exported(make("retrieve", "birco/doris_mae"), "trec")
    assert "fractions" in capsys.readouterr().err
    written = {tuple(line.split()[::2]): line.split()[3] for line in (folder / "qrels.trec").open()}
    judged = rows_of_run(make("retrieve", "birco/doris_mae"), "attribution.jsonl")
    names = environments.load("birco/doris_mae", "mini").release_ids
    grades = {
        query_id: {names[doc_id]: grade for doc_id, grade in row["grades"].items()}
        for query_id, row in judged.items()
    }
    assert written == {
        (query_id, one): f"{grades[query_id][one]:g}"
        for query_id in grades
        for one in grades[query_id]
    }


@pytest.mark.parametrize("program", ["react", "tournament"])
def test_trajectories_are_valid_atif_and_say_what_happened(program, make, exported):
    from atif import Trajectory

    run = make(program)
    folder = exported(run, "atif")
    outcomes, judged = rows_of_run(run, "outcomes.jsonl"), rows_of_run(run, "attribution.jsonl")
    written = rows(folder / "trajectories.jsonl")
    assert [row["trajectory_id"] for row in written] == list(judged)
    for row in written:
        query_id = row["trajectory_id"]
        made, outcome = Trajectory.model_validate(row), outcomes[query_id]
        searches = [step for step in outcome["trace"]["steps"] if step["tool"] == "search"]
        found = [
            step
            for step in made.steps[1:]
            if step.tool_calls and step.tool_calls[0].function_name == "search"
        ]
        assert made.steps[0].message == judged[query_id]["text"]
        assert [step.tool_calls[0].arguments["query"] for step in found] == [
            step["argument"] for step in searches
        ]
        for step, search in zip(found, searches, strict=True):
            (result,) = step.observation.results
            assert result.source_call_id == step.tool_calls[0].tool_call_id
            assert result.extra["gold"].keys() == judged[query_id]["grades"].keys() & set(
                search["doc_ids"]
            )
        defined = {
            one["function"]["name"]: one["function"]["parameters"]
            for one in made.agent.tool_definitions
        }
        for call in (call for step in made.steps for call in step.tool_calls or ()):
            Draft202012Validator(
                defined[call.function_name] | {"additionalProperties": False}
            ).validate(call.arguments)
        calls = sum(step.llm_call_count for step in made.steps[1:])
        assert calls == outcome["usage"]["calls"] or program == "tournament"
        assert made.final_metrics.total_prompt_tokens == outcome["usage"]["input_tokens"]
        assert made.extra["metrics"] == pytest.approx(values(run)[query_id])
    singles = [json.loads(path.read_text()) for path in (folder / "queries").iterdir()]
    assert sorted(one["trajectory_id"] for one in singles) == sorted(judged)


def spans_of(row):
    """The spans of a line of OTLP/JSON, in which ids are hex and not base64, as protobuf."""
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    for span in row["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for key in ("traceId", "spanId", "parentSpanId"):
            if key in span:
                span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    (resource,) = ParseDict(row, TracesData()).resource_spans
    return resource.scope_spans[0].spans


def known_names() -> set[str]:
    """The attributes that OpenInference knows."""
    from openinference.semconv import trace

    classes = [getattr(trace, name) for name in dir(trace) if name.endswith("Attributes")]
    return {value for one in classes for value in vars(one).values() if isinstance(value, str)}


@pytest.mark.parametrize("program", ["react", "tournament", "pages"])
def test_spans_are_otlp_in_openinference_s_vocabulary(program, make, exported):
    from openinference.semconv.trace import OpenInferenceSpanKindValues as Kind

    run = make(program)
    outcomes, names = rows_of_run(run, "outcomes.jsonl"), known_names()
    written = rows(exported(run, "openinference") / "spans.jsonl")
    assert len(written) == len(outcomes)
    ids = set()
    for row, outcome in zip(written, outcomes.values(), strict=True):
        spans = spans_of(row)
        ids |= {span.span_id for span in spans}
        assert {(len(span.trace_id), len(span.span_id)) for span in spans} == {(16, 8)}
        assert [span.name for span in spans if not span.parent_span_id] == [program]
        assert {span.parent_span_id for span in spans[1:]} <= {span.span_id for span in spans}
        assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
        assert spans[0].end_time_unix_nano == (run / "outcomes.jsonl").stat().st_mtime_ns
        told = [{one.key: one.value for one in span.attributes} for span in spans]
        for attributes in told:
            assert attributes["openinference.span.kind"].string_value in {
                kind.value for kind in Kind
            }
            plain = {
                ".".join(part for part in key.split(".") if not part.isdecimal())
                for key in attributes
            }
            assert all(
                any(key == name or key.endswith(f".{name}") for name in names) for key in plain
            ), plain
        steps = outcome["trace"]["steps"]
        of_kind = {kind.value: [] for kind in Kind}
        for attributes in told:
            of_kind[attributes["openinference.span.kind"].string_value].append(attributes)
        searches = [step for step in steps if step["tool"] in SURFACING]
        for attributes, search in zip(of_kind["RETRIEVER"], searches, strict=True):
            assert attributes["input.value"].string_value == search["argument"]
            for place, doc_id in enumerate(search["doc_ids"]):
                document = f"retrieval.documents.{place}.document"
                assert attributes[f"{document}.id"].string_value == doc_id
                metadata = json.loads(attributes[f"{document}.metadata"].string_value)
                assert metadata["rank"] == search.get("first", 0) + place + 1
        assert len(of_kind["LLM"]) == sum(
            step.get("usage", {}).get("calls", 0) > 0 for step in steps
        )
        (scores,) = of_kind["EVALUATOR"]
        assert json.loads(scores["output.value"].string_value) == pytest.approx(
            values(run)[outcome["query_id"]]
        )
    assert len(ids) == sum(
        len(row["resourceSpans"][0]["scopeSpans"][0]["spans"]) for row in written
    )


def test_spans_are_posted_to_any_otlp_receiver_as_the_file_has_them(
    make, exported, command_of, monkeypatch
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=k1")
    run = make("multihop")
    inside = [
        span
        for row in rows(exported(run, "openinference") / "spans.jsonl")
        for span in spans_of(row)
    ]
    with receiving() as receiver, receiving(307) as moved:
        assert (
            command_of(export)(run, "--to", "openinference", "--out", f"{receiver.url}/").code == 0
        )
        refused = command_of(export)(run, "--to", "otlp", "--out", moved.url)
    assert receiver.spans == inside
    assert {(one["x-key"], one["path"]) for one in receiver.headers} == {("k1", "/v1/traces")}
    assert refused.code == 3 and "does not take spans: 307" in refused.err


def test_what_was_sent_goes_along_where_it_is_kept_and_wanted(run, server, exported, capsys):
    from atif import Trajectory

    turns = iter([("search", '{"query": "blue"}'), ("finish", '{"doc_ids": []}')])
    server.answer = lambda prompt: (
        {"tool_calls": [turn], "raw": "I look."} if (turn := next(turns, None)) else {}
    )
    words = (
        "--program",
        "react",
        "--task",
        "congress",
        "--limit",
        1,
        "--lm",
        server.spec,
        "--json",
    )
    path = Path(run(*words).json["run"])
    sent = [body["messages"] for body in server.requests]
    capsys.readouterr()
    (row,) = rows(exported(path, "atif", place="with") / "trajectories.jsonl")
    assert "--no-prompts leaves them out" in capsys.readouterr().err
    steps = Trajectory.model_validate(row).steps
    assert [one.source for one in steps[:3]] == ["system", "user", "agent"]
    assert steps[0].message == sent[0][0]["content"]
    told = [call for step in row["steps"] for call in step.get("extra", {}).get("calls", ())]
    assert [call["messages"] for call in told + row["extra"].get("calls", [])] == sent
    spans = spans_of(rows(exported(path, "openinference", place="spans") / "spans.jsonl")[0])
    calls = [
        {one.key: one.value for one in span.attributes}
        for span in spans
        if span.name == "model call"
    ]
    names = known_names()
    assert len(calls) == len(sent)
    for attributes, messages in zip(calls, sent, strict=True):
        plain = {
            ".".join(part for part in key.split(".") if not part.isdecimal()) for key in attributes
        }
        assert all(
            any(key == name or key.endswith(f".{name}") for name in names) for key in plain
        ), plain
        told = [
            attributes[f"llm.input_messages.{place}.message.role"].string_value
            for place in range(len(messages))
        ]
        assert told == [message["role"] for message in messages]
        assert (
            attributes["llm.input_messages.0.message.content"].string_value
            == messages[0]["content"]
        )
    for to, file in (("atif", "trajectories.jsonl"), ("openinference", "spans.jsonl")):
        bare = (exported(path, to, "--no-prompts", place=f"bare-{to}") / file).read_text()
        assert json.dumps(sent[0][0]["content"])[1:60] not in bare and "input_messages" not in bare


def test_model_calls_carry_their_tokens_and_price(make, exported, tmp_path):
    run = copy_of(make("multihop"), tmp_path)
    written = [json.loads(line) for line in (unsealed(run) / "outcomes.jsonl").open()]
    for row in written:
        for step in row["trace"]["steps"]:
            if "usage" in step:
                step["usage"] |= {
                    "input_tokens": 100,
                    "output_tokens": 7,
                    "paid_usd": 0.25,
                    "list_usd": 0.5,
                }
    lines(run / "outcomes.jsonl", map(json.dumps, written))
    spans = spans_of(rows(exported(run, "openinference") / "spans.jsonl")[0])
    told = {
        one.key: one.value
        for one in next(span for span in spans if span.name == "model calls").attributes
    }
    tokens = [
        told[f"llm.token_count.{kind}"].int_value for kind in ("prompt", "completion", "total")
    ]
    assert (tokens, told["llm.cost.total"].double_value) == ([100, 7, 107], 0.25), "what was paid"
    prices = json.loads(told["metadata"].string_value)
    assert (prices["paid_usd"], prices["list_usd"]) == (0.25, 0.5)
    atif = rows(exported(run, "atif", place="atif") / "trajectories.jsonl")[0]
    metrics = next(step["metrics"] for step in atif["steps"] if "metrics" in step)
    assert (metrics["prompt_tokens"], metrics["completion_tokens"], metrics["cost_usd"]) == (
        100,
        7,
        0.25,
    )
    assert (metrics["extra"]["paid_usd"], metrics["extra"]["list_usd"]) == (0.25, 0.5)


def test_the_hub_folder_has_a_card_and_tables_that_say_what_the_run_says(make, exported):
    import pyarrow.dataset
    from huggingface_hub import DatasetCard

    run = make("react")
    folder = exported(run, "hub")
    data = DatasetCard.load(folder / "README.md").data.to_dict()
    tables = {}
    for one in data["configs"]:
        (files,) = one["data_files"]
        tables[one["config_name"]] = (
            pyarrow.dataset.dataset(sorted(folder.glob(files["path"]))).to_table().to_pylist()
        )
    outcomes, ours = rows_of_run(run, "outcomes.jsonl"), values(run)
    assert len(tables["trajectories"]) == len(outcomes)
    for row in tables["trajectories"]:
        outcome = outcomes[row["query_id"]]
        assert (row["ranking"], row["calls"]) == (outcome["ranking"], outcome["usage"]["calls"])
        for step, recorded in zip(row["steps"], outcome["trace"]["steps"], strict=True):
            assert all(step[key] == recorded[key] for key in ("tool", "argument", "doc_ids"))
    scores = {(row["query_id"], row["metric"]): row["value"] for row in tables["scores"]}
    assert scores == {
        (q, m): value
        for q, metrics in ours.items()
        for m, value in metrics.items()
        if value is not None
    }
    (about,) = tables["runs"]
    assert about["queries"] == len(outcomes) and about["program"] == "react"
    assert "provenance" not in about["config"]


def test_the_schemas_in_the_docs_are_those_of_the_forms_and_a_run_is_valid_under_them(
    make, tmp_path
):
    assert called(export, "--to", "schemas", "--out", tmp_path / "schemas") == 0
    assert contents(tmp_path / "schemas") == contents(Path(__file__).parents[4] / "docs/schemas")
    run = make("react")
    for name in ("config.json", "outcomes.jsonl", "scores.json", "attribution.jsonl"):
        validator = Draft202012Validator(
            json.loads((tmp_path / f"schemas/{name}.schema.json").read_text())
        )
        for row in (
            rows(run / name) if name.endswith("l") else [json.loads((run / name).read_text())]
        ):
            validator.validate(row)
            assert not validator.is_valid({**row, next(iter(validator.schema["required"])): [None]})


@pytest.mark.parametrize("to", ["trec", "atif", "openinference", "hub"])
def test_the_same_run_gives_the_same_bytes_and_an_export_replaces_an_export(to, make, exported):
    folder = exported(make("multihop"), to)
    before = contents(folder)
    assert before == contents(exported(make("multihop"), to))
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []


def test_what_is_not_an_export_is_not_replaced(make, exported, tmp_path, capsys):
    run, folder = make("multihop"), tmp_path / "out"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    assert called(export, run, "--to", "trec", "--out", folder) == 2
    assert "--force" in capsys.readouterr().err
    assert called(export, run, "--to", "trec", "--out", folder, "--force") == 0
    assert (folder / "thesis.tex").read_text() == "years of work"
    assert (folder / "run.trec").is_file()
    assert called(export, run, "--to", "trec", "--out", folder) == 2  # it still is not ours alone
    (tmp_path / "file").write_text("mine")
    for more in ([], ["--force"]):
        assert called(export, run, "--to", "trec", "--out", tmp_path / "file", *more) == 2
        assert called(export, run, "--to", "trec", "--out", tmp_path / "file/out", *more) == 2
        assert f"{tmp_path}/file/out cannot be written" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"
    other = make("retrieve")
    before = contents(other)
    assert called(export, run, "--to", "trec", "--out", other, "--force") == 2
    assert "is a run folder" in capsys.readouterr().err and contents(other) == before


def test_a_run_that_an_earlier_version_scored_is_exported_without_gold_marks(
    make, exported, tmp_path, capsys
):
    run = copy_of(make("multihop"), tmp_path)
    (unsealed(run) / "attribution.jsonl").unlink()
    for to in ("trec", "atif", "openinference", "hub"):
        folder = exported(run, to, place=to)
        assert "sextant score" in capsys.readouterr().err
        assert not (folder / "qrels.trec").exists()
    assert rows(tmp_path / "atif" / "trajectories.jsonl")[0]["extra"]["relevant"] == []


def test_some_queries_can_be_asked_for(make, exported, tmp_path, capsys):
    run = make("multihop")
    some = list(rows_of_run(run, "outcomes.jsonl"))[1:3]
    folder = exported(run, "atif", "--query-id", some[1], "--query-id", some[0])
    assert [row["trajectory_id"] for row in rows(folder / "trajectories.jsonl")] == some
    folder = exported(run, "trec", "--limit", "2", place="trec")
    assert len({line.split()[0] for line in (folder / "run.trec").open()}) == 2
    assert (
        called(export, run, "--to", "trec", "--out", tmp_path / "none", "--query-id", "nobody") == 2
    )
    assert "nobody" in capsys.readouterr().err


def test_ids_that_nobody_would_choose_survive(tmp_path, exported):
    import pyarrow.dataset
    from atif import Trajectory

    run, environment = hostile_run(tmp_path)
    trec = exported(run, "trec", place="trec")
    assert all(len(line.split()) == 6 for line in (trec / "run.trec").open("rb"))
    atif = exported(run, "atif", place="atif")
    written = rows(atif / "trajectories.jsonl")
    assert [Trajectory.model_validate(row).trajectory_id for row in written] == HOSTILE
    assert len(list((atif / "queries").iterdir())) == len(HOSTILE)
    told = (
        pyarrow.dataset.dataset(exported(run, "hub", place="hub") / "trajectories")
        .to_table()
        .to_pylist()
    )
    assert {row["query_id"]: row["ranking"] for row in told} == dict.fromkeys(HOSTILE, HOSTILE)
    spans = rows(exported(run, "openinference", place="s") / "spans.jsonl")
    for row, query_id in zip(spans, HOSTILE, strict=True):
        root = spans_of(row)[0]
        metadata = next(one.value.string_value for one in root.attributes if one.key == "metadata")
        assert json.loads(metadata)["query_id"] == query_id
    for file in (run / "outcomes.jsonl", atif / "trajectories.jsonl"):
        back = import_run(
            trec / "run.trec", environment, encoded=True, trajectories=file, runs=tmp_path / "b"
        )
        for name in ("scores.csv", "attribution.jsonl"):
            assert (back / name).read_bytes() == (run / name).read_bytes()


def hostile_run(place: Path):
    """A scored run over ids that nobody would choose, and its environment."""
    environment = world(
        documents=Corpus(Document(name, f"number {n}") for n, name in enumerate(HOSTILE)),
        queries=tuple(Query(name, f"which is {name}?") for name in HOSTILE),
        judgements={"gold": Judgements({name: {name: 1.0} for name in HOSTILE})},
        metrics=("nDCG@10", "R@5"),
    )
    run = place / "runs" / "hostile"
    run.mkdir(parents=True)
    config = make_config(environment, "hostile", "", {"usage": True, "notes": []})
    (run / "config.json").write_text(json.dumps(config))
    search = {
        "tool": "search",
        "argument": "\ud800 lone",
        "doc_ids": HOSTILE,
        "hop": 1,
        "k": 8,
        "retriever": "x",
    }
    read = {
        "tool": "read",
        "argument": HOSTILE[3],
        "doc_ids": [HOSTILE[3]],
        "hop": 1,
        "shown": [3],
        "lengths": [8],
    }
    trace = {"steps": [search, read], "notes": [], "invented_ids": 0}
    usage = {
        "calls": 1,
        "repairs": 0,
        "input_tokens": 5,
        "output_tokens": 2,
        "paid_usd": None,
        "list_usd": None,
    }
    common = {
        "ranking": HOSTILE,
        "answer": "",
        "trace": trace,
        "usage": usage,
        "error": None,
        "seconds": 1.0,
    }
    lines(run / "outcomes.jsonl", (json.dumps({"query_id": name} | common) for name in HOSTILE))
    score(run, environment)
    return run, environment


def copy_of(run: Path, place: Path) -> Path:
    """A run to be spoilt."""
    return Path(shutil.copytree(run, place / "copy" / run.name))


@pytest.mark.parametrize("to", ["trec", "hub"])
def test_a_full_disk_is_named_with_the_place_and_nothing_is_left(
    make, tmp_path, little_room, capsys, to
):
    path = make("multihop")
    capsys.readouterr()
    with little_room(1000):
        assert called(export, path, "--to", to, "--out", tmp_path / "out") == 3
    out, err = capsys.readouterr()
    assert (
        out == ""
        and err.startswith(f"error: {tmp_path}/out cannot be written: ")
        and "; make room, or" in err
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["trec", "hub"])
def test_folders_whose_names_are_not_utf_8_are_read_and_written(
    make, exported, tmp_path, to, capsys
):
    path = tmp_path / os.fsdecode(b"h\xff")
    shutil.copytree(make("retrieve"), path)
    assert list(exported(path, to, place=os.fsdecode(b"out\xff")).iterdir())
    assert "out\N{REPLACEMENT CHARACTER}" in capsys.readouterr().out


GUIDE = Path(__file__).parents[4] / "docs/guide/extend.md"


def test_a_format_in_a_file_of_the_users_own_is_written_like_ours(
    make, exported, tmp_path, monkeypatch, capsys
):
    section = GUIDE.read_text().partition("## A format")[2]
    example = section.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "ranks_csv.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    path = make("multihop")
    folder = exported(path, "ranks_csv.py:write")
    assert capsys.readouterr().err == "rankings of obliq/congress\n"
    rankings = {
        row["query_id"]: row["ranking"] for row in rows(path / "outcomes.jsonl") if "ranking" in row
    }
    written = [line.split(",") for line in (folder / "ranks.csv").read_text().splitlines()]
    for query_id, ranking in rankings.items():
        assert [doc_id for name, _, doc_id in written if name == query_id] == ranking
    manifest = json.loads((folder / "export.json").read_text())
    assert manifest["format"] == "ranks_csv.py:write" and manifest["files"] == ["ranks.csv"]

    (tmp_path / "broken_csv.py").write_text("def write(source, folder):\n    return 1 / 0\n")
    code = called(export, path, "--to", "broken_csv.py:write", "--out", tmp_path / "broken")
    said = capsys.readouterr().err
    assert code == 2 and "ZeroDivisionError: division by zero (broken_csv.py, line 2)" in said
    assert not (tmp_path / "broken").exists()
    assert called(export, path, "--to", "ranks_csv.py:nothing", "--out", tmp_path / "no") == 2
