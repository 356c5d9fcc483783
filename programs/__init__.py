"""Search programs: DSPy modules that turn a Query into a ranking, by name."""

from collections.abc import Sequence

import sextant
from sextant.programs import deviations
from sextant.tools import plugins
from sextant.tools.records import JsonMapping

sextant.use_full_name(__name__)


# To add one: a Program (programs/base.py) in its own file, named here. Its annotated attributes are
# what `-P name=value` may set: int, float, bool, str, Expression or Expressions (retrievers,
# tools/retrievers) or InputFile (tools/platform/files.py). For `--lm offline`, `offline` names a rule for
# every output field of its signatures; tools/models/offline_rules.py has some.
PROGRAMS = {
    "closed_book": "sextant.programs.closed_book:ClosedBook",
    "decompose": "sextant.programs.decompose:Decompose",
    "multihop": "sextant.programs.multihop:MultiHop",
    "query_to_answer": "sextant.programs.query_rewriting:QueryToAnswer",
    "query_to_doc": "sextant.programs.query_rewriting:QueryToDoc",
    "rank": "sextant.programs.listwise:Rank",
    "reason": "sextant.programs.pointwise:Reason",
    "reasoning_trace": "sextant.programs.query_rewriting:ReasoningTrace",
    "retrieve": "sextant.programs.retrieve:Retrieve",
    "rewrite": "sextant.programs.query_rewriting:Rewrite",
    "score": "sextant.programs.pointwise:Score",
    "subtask": "sextant.programs.pointwise:Subtask",
    "tournament": "sextant.programs.listwise:Tournament",
}

# What may stand before a colon, as in served:NAME -> the program that is made; it is `called` the
# rest.
SCHEMES = {
    "command": "sextant.programs.agent_command:Command",
    "served": "sextant.programs.external_agent:Served",
}

# To add one: a function in its own file, named here, or a tuple of functions. A file of a user's own
# has others, as FILE.py:NAME.
DEFAULT_TOOLS = "default"  # search, reading of whole documents, and select
FILES = "files"
TOOLS = {
    "count": "sextant.programs.corpus_tools:count",
    FILES: "sextant.programs.document_files:files",
    "grep": "sextant.programs.corpus_tools:grep",
    "more": "sextant.programs.corpus_tools:more",
    "note": "sextant.programs.corpus_tools:BOARD",
    "phrase": "sextant.programs.corpus_tools:phrase",
    "read": "sextant.programs.corpus_tools:read",
    "search": "sextant.programs.corpus_tools:search",
}

# The program of the main job, which is proposed to somebody who has run the floor.
MAIN = "multihop"
FLOOR = "retrieve"  # one search, no model: what every other program has to be above
VERIFIER = (
    "tournament"  # orders a pool that has everything relevant: what recognising alone would reach
)

# How a program differs from its paper's, beside the wording of its prompts
# (docs/decisions/programs.md); the tables of its runs say it. Agents have rows, too.
DIFFERS: dict[str, Sequence[deviations.Deviation]] = {
    "closed_book": (
        "titles and runs of five words count in every task, and nobody judges by hand",
        deviations.compare_target,
        deviations.compare_birco_model,
    ),
    "decompose": (
        "ReDI trains models for it, and searches with its readings of the sub-queries, too",
    ),
    "multihop": deviations.MULTI_HOP,
    "notes": deviations.MULTI_HOP,
    "query_to_answer": deviations.REWRITING,
    "query_to_doc": (
        "the kind of document is in a field of its own, not in the instruction",
        *deviations.REWRITING,
    ),
    "rank": (
        "the last window begins at the top, where RankGPT's script may leave out the first few",
        deviations.compare_birco_pool,
        deviations.compare_instruction,
        deviations.compare_birco_model,
    ),
    "reason": (
        "three phrases of the document are quoted at most, where figure 13 asks for all quotes",
        "the criteria are a call of their own, once a query, where figure 13 has them in the call "
        "for each document",
        *deviations.POINTWISE,
    ),
    "reasoning_trace": (
        "an example document is asked for as well, as Table 10 has it and Figure 9 has not",
        "the query's own words are not searched for, where the paper calls the trace a part of "
        "the query",
        *deviations.REWRITING,
    ),
    "retrieve": (deviations.compare_bm25, deviations.compare_retriever_instruction),
    "rewrite": (
        deviations.compare_search,
        deviations.by_task("twitter", "writing", "congress", elsewhere=deviations.OUR_ADVICE),
        deviations.by_task("twitter", on="its prompt has no example, that of D.1.5 has one"),
        deviations.compare_obliq_model,
    ),
    "score": (deviations.compare_thinking, *deviations.POINTWISE),
    "subtask": (
        "how far a requirement is met is a score from 0 to 10, where figure 14 asks whether it is",
        "the paper prints no prompt for listing requirements",
        *deviations.POINTWISE,
    ),
    "tournament": (
        deviations.compare_tournament_pool,
        deviations.compare_ranking_prompts,
        deviations.compare_solutions,
        "documents that leave in the same round stand by place, which the paper leaves open",
        deviations.compare_obliq_model,
    ),
}


DEVIATES = " differs from the paper's: "


def describe_deviations(config: JsonMapping, *, has_candidates: bool) -> str:
    """Say in a line how the program of a run differs from its paper's; "" if it does not."""
    differing = "; ".join(list_deviations(config, has_candidates=has_candidates))
    return f"{config['program']}{DEVIATES}{differing}" if differing else ""


def list_deviations(config: JsonMapping, *, has_candidates: bool) -> list[str]:
    """Return how the program of a run differs from its paper's; nothing for an imported run."""
    rows = () if config.get("imported") else DIFFERS.get(config["program"], ())
    setup = deviations.Setup(config, has_candidates)
    return [line for row in rows if (line := row if isinstance(row, str) else row(setup))]


def list_own_sources(named: str) -> list[str]:
    """Return the files or modules of those tools that are not ours: their code is a part of a run."""
    own = [part.strip() for part in named.split(",")]
    installed = plugins.list_names((), plugins.TOOLS)
    return [
        plugins.resolve("tool", name, {}, plugins.TOOLS).rpartition(":")[0]
        for name in own
        if plugins.is_reference(name) or (name in installed and name not in TOOLS)
    ]
