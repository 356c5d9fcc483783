"""The forms of a run folder's files (docs/decisions/run-identity.md), as tools/schemas.py checks
them.
"""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from sextant.tools import schemas
from sextant.tools.plugins import load_object
from sextant.tools.records import JsonObject
from sextant.tools.schemas import Amount, Count, Number, TraceSchema, UsageSchema


class Fate(StrEnum):
    """How far a relevant document came, in the order in which it can be lost."""

    NEVER_SURFACED = "never_surfaced"
    NOT_SHOWN = "not_shown"
    SHOWN_IN_PART = "shown_in_part"
    NOT_SELECTED = "not_selected"
    FORGOTTEN = "forgotten"
    RANKED_LOW = "ranked_low"
    LIMIT = "limit"
    ERROR = "error"
    UNKNOWN = "unknown"
    FOUND = "found"


FATE_LABELS: dict[Fate, str] = {  # what a reader sees; {k} is the cutoff
    Fate.FOUND: "found in the first {k}",
    Fate.NEVER_SURFACED: "never surfaced",
    Fate.NOT_SHOWN: "surfaced, shown to no model",
    Fate.SHOWN_IN_PART: "shown in part, not selected",
    Fate.NOT_SELECTED: "shown whole, not selected",
    Fate.FORGOTTEN: "shown, left the prompt, not selected",
    Fate.RANKED_LOW: "ranked below the first {k}",
    Fate.LIMIT: "lost to a limit",
    Fate.ERROR: "lost to an error",
    Fate.UNKNOWN: "not ranked, no trajectory",
}

SCHEMAS = {  # file -> its form, or that of its lines
    "config.json": "sextant.evals.run_schemas:ConfigSchema",
    "outcomes.jsonl": "sextant.evals.run_schemas:OutcomeSchema",
    "trace": "sextant.tools.schemas:TraceSchema",
    "scores.json": "sextant.evals.run_schemas:ScoresSchema",
    "attribution.jsonl": "sextant.evals.run_schemas:JudgedSchema",
    "compiled.json": "sextant.programs.compiled:Compiled",
    "cassette.jsonl": "sextant.tools.models.storage.request_store:CassetteLine",
    "trajectories.jsonl": "sextant.evals.formats.import_run:ImportedLine",
}


class _Asked(TypedDict):
    limit: Count | None
    query_ids: list[str]


class _Pool(TypedDict):
    kind: str
    size: Count
    of: list[str]


class _Compiled(TypedDict):
    digest: str
    optimizer: str
    task: NotRequired[str]


# A retriever, or a model, which has a name alone.
_Engine = TypedDict(
    "_Engine",
    {
        "name": str,
        "with": NotRequired[str],
        "others": NotRequired[dict[str, str] | None],
    },
)


class _Imported(TypedDict, total=False):
    usage: bool
    notes: list[str]


class _Provenance(TypedDict):
    data: str
    folder: str | None
    judgements: str


class ConfigSchema(TypedDict):
    """config.json: the keys that comparing, scoring and showing read."""

    task: str
    data: str
    data_fingerprint: str
    split: str
    asked: _Asked  # the queries of the split that were requested
    instruction: str
    depth: Count
    max_p: bool
    program: str
    name: NotRequired[str]  # of a version of the program
    parameters: JsonObject
    retriever: _Engine
    lm: _Engine
    pool: NotRequired[_Pool | None]
    compiled: NotRequired[_Compiled | None]
    imported: NotRequired[_Imported | None]
    provenance: _Provenance


class _RequiredOutcome(TypedDict):
    query_id: str
    ranking: list[str]
    trace: TraceSchema
    usage: UsageSchema
    error: str | None


class OutcomeSchema(_RequiredOutcome, total=False):
    """A line of outcomes.jsonl."""

    scores: list[Number] | None
    answer: str | None
    traceback: str
    seconds: Amount | None
    digest: str


class _Measured(TypedDict, total=False):
    """Of a metric; without an interval if it is over a query, null if it is undefined for all."""

    mean: Number | None
    low: Number | None
    high: Number | None


class _Losses(TypedDict):
    cutoff: Count
    queries: NotRequired[Count]
    documents: NotRequired[dict[str, Count]]
    at: dict[str, dict[str, Number]]  # the shares of relevant documents that a run lost, by fate


class _Used(TypedDict):
    calls: Count | None
    input_tokens: Count | None
    output_tokens: Count | None
    paid_usd: Amount | None
    list_usd: Amount | None


class _Read(TypedDict):
    documents: Count
    cut: Count
    characters: Count
    left_out: Count


class _RequiredScores(TypedDict):
    data: str
    judgements: str
    program: str
    retriever: str
    lm: str
    queries: Count
    failed: Count
    metrics: Annotated[dict[str, _Measured], Field(min_length=1)]
    usage: _Used


class ScoresSchema(_RequiredScores, total=False):
    """scores.json."""

    task: str
    split: str
    instruction: str
    relevant_from: Amount  # the lowest grade of a relevant document; 0: all above 0
    pool: _Pool | None
    compiled: _Compiled | None
    documents: Count  # of the corpus
    opaque_ids: bool  # whether programs saw other ids than those of the release
    candidates: Count | None  # the most that a query of a task with candidate pools has
    owed: Count
    metric: str
    losses: _Losses | None
    searchers: dict[str, Number | None]  # means of the figures of behaviour
    query_seconds: Amount | None  # of all queries, one after another
    unjudged: dict[str, dict[str, Number]]  # of tasks with pooled judgements, by metric
    unusable: dict[str, Count]  # answers, by the reason
    used_in_part: dict[str, Count]
    read: _Read | None
    notes: list[str]
    metric_code: dict[str, str]  # user's metric -> digest of its sources
    made_of: dict[str, str]
    digest: str


class _RequiredRelevant(TypedDict):
    unit: str
    grade: Number
    place: Count
    lost_as: Annotated[str, Field(pattern=f"^({'|'.join(Fate)})$")]


class _Relevant(_RequiredRelevant, total=False):
    doc_id: str
    hop: Count
    rank: Count
    search: Count | None
    best_rank: Count
    shown_hop: Count
    shown_step: Count | None
    chars: Count
    length: Count
    forgotten_step: Count
    decision: Literal["", "select", "drop"]
    decision_hop: Count
    decision_step: Count | None


class JudgedSchema(TypedDict):
    """A line of attribution.jsonl."""

    query_id: str
    text: NotRequired[str]
    grades: dict[str, Number]
    relevant: list[_Relevant]
    units: NotRequired[dict[str, str]]


def write_schemas(source: object, folder: Path) -> list[str]:
    """JSON Schemas of run folders, compiled programs and cassettes; those of .jsonl are of a line.

    Without a RUN.
    """
    for name in SCHEMAS:
        (folder / f"{name}.schema.json").write_text(
            json.dumps(
                schemas.schema(load_object("form", name, SCHEMAS)) | {"title": name}, indent=2
            )
            + "\n",
            encoding="utf-8",
        )
    return []
