"""A folder that `datasets` loads, and that huggingface_hub.upload_folder can put on the Hub as it
is.

Three tables in Parquet, each in a folder with a file a run, so that several runs fit into a data
set: trajectories (a row a query), scores (a row a query and metric), runs (a row a run). README.md
is the card. Nothing is uploaded. Left out: texts of documents and queries, for their licences;
texts of a system (searches, notes, answers) may quote them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sextant import environments
from sextant.evals.formats.export_run import ExportedQuery, ExportedRun, compact, name_file
from sextant.evals.scoring.scored_run import USED
from sextant.tools.errors import UnknownName
from sextant.tools.platform.number_format import number, queries
from sextant.tools.platform.result_table import ResultTable
from sextant.tools.records import JsonObject, Step

# Queries in a row group, which is held in memory at once.
ROWS = 64
TABLES = ("trajectories", "scores", "runs")
_DESCRIPTION = (
    "run",
    "task",
    "data",
    "data_fingerprint",
    "split",
    "judgements",
    "relevant_from",
    "program",
    "retriever",
    "lm",
)


def write(source: ExportedRun, folder: Path) -> list[str]:
    """A data set for the Hugging Face Hub: Parquet of trajectories, scores and runs, and a card."""
    (folder / "README.md").write_text(_card(source), encoding="utf-8", errors="replace")
    schemas = _schemas()
    name = name_file(source.run.path.name)
    tables = {
        "trajectories": (_trajectory(query, source) for query in source),
        "scores": _scores(source),
        "runs": [_run(source)],
    }
    for table, rows in tables.items():
        path = folder / f"{table}/{name}.parquet"
        remaining = iter(rows)
        path.parent.mkdir()
        # A file, because pyarrow takes no path that is not UTF-8.
        with (
            path.open("wb") as file,
            pq.ParquetWriter(file, schemas[table], compression="zstd") as writer,
        ):
            while batch := [
                json.loads(compact(row)) for row in islice(remaining, ROWS)
            ]:  # well-formed text alone
                writer.write_batch(pa.RecordBatch.from_pylist(batch, schemas[table]))
    return ["to put it on the Hub, in that folder: hf upload OWNER/NAME . --repo-type dataset"]


def _schemas() -> dict[str, pa.Schema]:
    text = pa.string()
    texts = pa.list_(text)
    integer = pa.int64()
    number = pa.float64()
    usage = dict.fromkeys(USED[:4], integer) | dict.fromkeys(USED[4:], number)
    values = pa.list_(pa.struct({"metric": text, "value": number}))
    relevant = pa.struct({"unit": text, "grade": number, "place": integer, "lost_as": text})
    step = {
        "tool": text,
        "argument": text,
        "doc_ids": texts,
        "hop": integer,
        "started": number,
        "seconds": number,
        "retriever": text,
        "k": integer,
        "instruction": text,
        "cut": integer,
        "among": pa.bool_(),
        "shown": pa.list_(integer),
        "lengths": pa.list_(integer),
        "refused": text,
        **usage,
    }
    trajectory = {
        "run": text,
        "query_id": text,
        "ranking": texts,
        "ranking_scores": pa.list_(number),
        "answer": text,
        "error": text,
        "seconds": number,
        **usage,
        "values": values,
        "relevant": pa.list_(relevant),
        "steps": pa.list_(pa.struct(step)),
        "notes": texts,
    }
    run = dict.fromkeys(_DESCRIPTION, text)
    run |= dict.fromkeys(("depth", "queries", "failed"), integer)
    return {
        "trajectories": pa.schema(trajectory),
        "scores": pa.schema({"run": text, "query_id": text, "metric": text, "value": number}),
        "runs": pa.schema({**run, **usage, "means": values, "config": text}),
    }


def _trajectory(query: ExportedQuery, source: ExportedRun) -> JsonObject:
    return {
        "run": source.run.path.name,
        "query_id": query.query_id,
        "ranking_scores": query.outcome.get("scores") or [],
        **{key: query.outcome.get(key) for key in ("ranking", "answer", "error", "seconds")},
        **{key: getattr(query.usage, key, None) for key in USED},
        "values": [{"metric": name, "value": value} for name, value in query.values.items()],
        "relevant": query.relevant,
        "steps": [
            {name: getattr(step, name) for name in Step.__slots__ if name != "usage"}
            | {key: getattr(step.usage, key) if query.usage is not None else None for key in USED}
            for step in query.steps
        ],
        "notes": query.outcome["trace"].get("notes", []),
    }


def _scores(source: ExportedRun) -> Iterator[JsonObject]:
    for query_id in source.query_ids:
        for name, column in source.run.columns.items():
            if column[query_id] is not None:
                yield {
                    "run": source.run.path.name,
                    "query_id": query_id,
                    "metric": name,
                    "value": column[query_id],
                }


def _run(source: ExportedRun) -> JsonObject:
    run = source.run
    config = run.config
    return {
        # `data` is no folder of the user's machine.
        **{key: config.get(key) for key in (*_DESCRIPTION, "depth")},
        "run": run.path.name,
        "retriever": config["retriever"]["name"],
        "lm": config["lm"]["name"],
        "judgements": run.scores["judgements"],
        "relevant_from": f"{run.scores['relevant_from']:g}",
        **{key: run.scores[key] for key in ("queries", "failed")},
        **{key: run.scores["usage"].get(key, 0) for key in USED},
        "means": [
            {"metric": name, "value": estimate["mean"]}
            for name, estimate in run.scores["metrics"].items()
        ],
        "config": compact({key: value for key, value in config.items() if key != "provenance"}),
    }


def front_matter(
    title: str, tags: Sequence[str], files: Mapping[str, Mapping[str, str]], licence: str
) -> str:
    """Return the front matter of a card, which the Hub reads. `files` are of each table, by split."""
    configs = []
    for name, splits in files.items():
        data_files = [{"split": split, "path": path} for split, path in splits.items()]
        configs.append({"config_name": name, "data_files": data_files})
    fields = {"license": licence, "pretty_name": title, "tags": tags, "configs": configs}
    lines = "".join(f"{key}: {compact(field)}\n" for key, field in fields.items())
    return f"---\n{lines}---\n"


def _card(source: ExportedRun) -> str:
    run = source.run
    config = source.run.config
    task = config["task"]
    split = config["split"]
    mini = "The data is the bundled miniature: invented, not comparable with published figures."
    metrics = run.scores["metrics"].items()
    means = ResultTable(
        "",
        ["metric", "mean"],
        [[name, number(estimate["mean"], unknown="undefined")] for name, estimate in metrics],
    ).to_markdown()
    try:
        origin = environments.suite(task.partition("/")[0]).release
        release = (
            f"the public release, {origin.repository} ({origin.licence})"
            if origin.repository
            else "the user's own data"
        )
    except UnknownName:
        release = "the task's release"
    title = f"Search trajectories on {task}"
    tags = ("agentic-search", "information-retrieval", "trajectories", "sextant")
    files = {table: {"train": f"{table}/*.parquet"} for table in TABLES}
    return f"""{front_matter(title, tags, files, "unknown")}# {title}, {split} split

{config["program"]} over {config["retriever"]["name"]}, model {config["lm"]["name"]}; \
{len(source.query_ids)} of {queries(run.scores["queries"])}. {mini if config["data"] == "mini" else ""}

{means}
`trajectories` has a row a query (ranking, steps, fates of relevant documents), `scores` a row a query \
and metric, `runs` a row a run with its configuration. Their `train` split is all there is: the queries are \
those of the {split} split of {task}, so what is trained on them cannot be tested there.

Texts of documents and queries are not columns, because their licences are not ours to pass on; ids are those \
of {release}. What the system wrote, searches, notes and \
answers, is included and may quote them. The `license` above is yours to set.
"""
