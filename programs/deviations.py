"""How programs differ from those of the papers, for the line under the tables that have their runs.

`programs.DIFFERS` has a row for each program: texts, and functions that look at a run first,
because a deviation of the defaults (such as the retriever) can be gone in a run. A function returns
"" if its deviation does not apply. docs/decisions/programs.md has the papers' sections next to
them.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sextant.tools import pool_kinds
from sextant.tools.records import JsonMapping


class Setup(NamedTuple):
    """The configuration of a run, and whether the task gives each query its candidates."""

    config: JsonMapping
    has_candidates: bool

    @property
    def retriever(self) -> str:
        """The expression of its retriever."""
        return str(self.config["retriever"]["name"])

    @property
    def lm(self) -> str:
        """The name of its model."""
        return str(self.config["lm"]["name"])

    @property
    def task(self) -> str:
        """The full name of its task."""
        return str(self.config["task"])

    def parameter(self, name: str) -> Any:
        """Return a parameter of its program; None for a run of an earlier version, which had none so called."""
        return self.config["parameters"].get(name)


Deviation = str | Callable[[Setup], str]

_OBLIQ_EMBEDDING = "gemini-embedding-2"
_OBLIQ_POOL = (_OBLIQ_EMBEDDING, "Qwen3-Embedding-0.6B", "Qwen3-Embedding-4B")
_OBLIQ_POOL_SIZE = 300  # about so many
_RELEVANT = {
    pool_kinds.UNION: "without what these miss",
    pool_kinds.ORACLE: "and all that is relevant",
    pool_kinds.HIDDEN: "with all that is relevant hidden among them",
}
_BIRCO_TIES = "e5-large-v2"
_BIRCO_MODELS = r"gpt-4(-0613)?$|llama-2-(7|13|70)b-chat|stripedhyena"
_CRUMB_TOKENS = 8192  # of an answer, at most (section 4.4)
_DEFAULT_TOKENS = 4096  # of an answer, if neither the user nor the price table has a limit

# The BM25 of each paper, by the beginning of a task's name (the first that fits counts): the
# retriever here, and who says so.
_SCRIPT = "that of the paper's script for this task, where section 5 names rank-bm25"
BM25 = {
    "obliq/writing": ("bm25s", _SCRIPT),
    "obliq/congress": ("bm25s", _SCRIPT),
    "obliq/": ("rank_bm25", "the paper's (section 5)"),
    "birco/": ("rank_bm25", "rank-bm25, as the paper names no package"),
    "crumb/": ("bm25(analyzer=english)", "the paper's, of Pyserini (section 4.3)"),
    "multiconir/": ("pool_bm25", "that of the paper's script"),
}
# Papers that print what models are told of a task (environments/paper_instructions.toml).
_INSTRUCTED = ("crumb/", "birco/", "multiconir/")


def uses_model(expression: str, model: str) -> bool:
    """Return whether a retriever is one model's alone: KIND:MODEL, KIND:OWNER/MODEL or KIND:FOLDER/MODEL."""
    return (
        re.fullmatch(rf"\w+:(\S*/)?{re.escape(model)}(\(.*\))?", expression, re.IGNORECASE)
        is not None
    )


def compare_search(setup: Setup) -> str:
    """Compare a run's retriever with OBLIQ-Bench's, whose programs all search with one embedding model."""
    if uses_model(setup.retriever, _OBLIQ_EMBEDDING):
        return ""
    return (
        f"it searches with {setup.retriever}, the paper's with Gemini Embedding 2, on which its "
        "figures rest"
    )


def compare_bm25(setup: Setup) -> str:
    """Compare a run over BM25 with the BM25 of its task's paper."""
    if not re.match(r"\w*bm25\w*\b(?!:)", setup.retriever):
        return ""
    for prefix, (theirs, source) in BM25.items():
        if setup.task.startswith(prefix):
            is_theirs = setup.retriever == theirs
            return "" if is_theirs else f"its BM25 is {setup.retriever}; '{theirs}' is {source}"
    return ""


def compare_instruction(setup: Setup) -> str:
    """Compare what models are told of the task with what the paper prints (CRUMB's Table 3, BIRCO's
    appendix B, MultiConIR's appendix A).
    """
    if setup.config["instruction"] != "ours" or not setup.task.startswith(_INSTRUCTED):
        return ""
    return "it is told of the task in our words or the release's (--instruction paper)"


def compare_retriever_instruction(setup: Setup) -> str:
    """Compare the same for a bare retriever, if it is a model that was trained with instructions."""
    from sextant.tools.retrievers.neural import (
        model_table,  # imports what a list of programs does not need
    )

    row = model_table.rows().get(setup.retriever.partition(":")[2].partition("(")[0])
    return compare_instruction(setup) if row and row.instructed else ""


def compare_model(pattern: str, theirs: str) -> Callable[[Setup], str]:
    """Compare a model with the paper's; the offline engine has a line of its own."""

    def compare(setup: Setup) -> str:
        if setup.lm == "offline" or re.search(pattern, setup.lm, re.IGNORECASE):
            return ""
        return f"its model is {setup.lm}, the paper's {theirs}"

    return compare


compare_obliq_model = compare_model(r"gpt-5\.2(-20\d\d-\d\d-\d\d)?$", "GPT-5.2")
compare_birco_model = compare_model(_BIRCO_MODELS, "GPT-4, Llama 2 or StripedHyena")
compare_crumb_model = compare_model(r"gemma-?3[-:]27b", "Gemma 3 27B")


def describe_pool(setup: Setup) -> str:
    """Return what a program ranks."""
    if pool := setup.config.get("pool"):
        return (
            f"the first {pool['size']} of {' and '.join(pool['of'])} "
            f"{_RELEVANT[pool_kinds.read_kind(setup.config)]}"
        )
    if setup.has_candidates:
        return "the query's candidates"
    return f"the first {setup.parameter('pool')} of {setup.retriever}, whatever these miss"


def compare_tournament_pool(setup: Setup) -> str:
    """Compare a run's pool with that of OBLIQ-Bench's tournament (section 5)."""
    pool = setup.config.get("pool") or {"of": [], "size": 0}
    if (
        pool["size"] == _OBLIQ_POOL_SIZE
        and pool_kinds.read_kind(setup.config) == pool_kinds.ORACLE
        and len(pool["of"]) == len(_OBLIQ_POOL)
        and all(any(uses_model(part, model) for part in pool["of"]) for model in _OBLIQ_POOL)
    ):
        return ""
    return (
        f"its pool is {describe_pool(setup)}, the paper's is some 300 of three dense retrievers, "
        "with all that is relevant"
    )


def compare_birco_pool(setup: Setup) -> str:
    """Compare a run's pool with BIRCO's, whose queries have candidates of their own."""
    if setup.has_candidates or pool_kinds.read_kind(setup.config) in pool_kinds.WITH_RELEVANT:
        return ""
    return (
        f"its pool is {describe_pool(setup)}, the paper's queries have pools with all that is "
        "relevant"
    )


def compare_ties(setup: Setup) -> str:
    """Compare the order of equal scores with BIRCO's (section 4.1)."""
    ties = str(setup.parameter("ties") or "")
    ours = {"": setup.retriever, "dense": "all-MiniLM-L6-v2"}.get(ties, ties)
    if uses_model(ties, _BIRCO_TIES):
        return ""
    return (
        f"equal scores are ordered by {ours}, the paper's by E5-Large-v2 (-P "
        "ties=dense:intfloat/e5-large-v2)"
    )


def by_task(*tasks: str, on: str = "", elsewhere: str = "") -> Callable[[Setup], str]:
    """Return a deviation on some tasks of OBLIQ-Bench, and one on all other tasks."""
    return lambda setup: on if setup.task.removeprefix("obliq/") in tasks else elsewhere


# On all tasks but those for which OBLIQ-Bench prints prompts (appendix D)
OUR_ADVICE = "its advice on this task is ours, as the paper prints no prompt for it"


def compare_ranking_prompts(setup: Setup) -> str:
    """Compare the task of a tournament with those of appendices D.3.6 and D.4.1; it thinks first for Math alone."""
    tasks = ("math",) if setup.parameter("think") else ("math", "writing")
    return by_task(*tasks, elsewhere=OUR_ADVICE)(setup)


def compare_target(setup: Setup) -> str:
    """Compare a guess without the corpus with BIRCO's, which has a prompt for each task (appendix L.5)."""
    if not setup.parameter("target"):
        return "the paper has prompts for its tasks, and none for others (-P target=)"
    if setup.parameter("target") == "quotations" and not setup.parameter("works"):
        return "no work is named, from which the quotations come (-P works=FILE)"
    return ""


def compare_solutions(setup: Setup) -> str:
    """Compare solutions with the excerpts of OBLIQ-Bench's appendix D.3.6, whose length it leaves open."""
    if not setup.parameter("solutions"):
        return ""
    return (
        f"of each solution it shows {setup.parameter('solution_chars')} characters, the paper an "
        "excerpt"
    )


def compare_reranking(setup: Setup) -> str:
    """Compare with OBLIQ-Bench's appendix D.5.4, which ends in a reranking, for Congress alone."""
    ends = "nothing is reranked in the end, as it is in appendix D.5.4 (-P rerank=N)"
    return "" if setup.parameter("rerank") else by_task("congress", on=ends)(setup)


def compare_thinking(setup: Setup) -> str:
    """Compare with BIRCO's section 4.2, which figure 12 contradicts."""
    thinks = (
        "it thinks and quotes before it scores, as in figure 12, but three phrases at most, where "
        "that asks for all quotes; section 4.2 has a score alone (-P think=false)"
    )
    return thinks if setup.parameter("think") else ""


def compare_answer_length(setup: Setup) -> str:
    """Compare the longest answer with CRUMB's (section 4.4)."""
    # The signatures have the paper's limit, which takes the place of the default.
    limit = setup.config["lm"].get("max_tokens") or _DEFAULT_TOKENS
    if setup.lm == "offline" or limit >= _CRUMB_TOKENS or limit == _DEFAULT_TOKENS:
        return ""
    return f"an answer may have {limit:,} tokens, the paper's 8,192 (--max-tokens {_CRUMB_TOKENS})"


# Tasks of which OBLIQ-Bench prints a prompt for judging pooled documents (appendices D.1.4, D.2.4,
# D.3.5) -> what differs beside the reason with each grade.
_GOLD = (
    "eight relevant documents are shown at most, the paper's prompt has those of the gold labels"
)
_JUDGING = {
    "obliq/twitter": _GOLD,
    "obliq/wildchat": "eight relevant conversations are shown at most, the paper's prompt has none",
    "obliq/math": f"{_GOLD}; the query comes without the fingerprint of its solution",
}


def describe_judging(task: str) -> str:
    """Say in a line how grading new documents of a task differs from its paper's; "" if it has none."""
    if task not in _JUDGING:
        return ""
    return (
        f"the judge differs from the paper's: a reason is given with each grade; {_JUDGING[task]}"
    )


MULTI_HOP: Sequence[Deviation] = (
    compare_search,
    "a search that was made before is not made again, which costs its hop",
    by_task("congress", on="a reading is not told which hop it is of"),
    compare_reranking,
    by_task("writing", "congress", elsewhere=OUR_ADVICE),
    compare_obliq_model,
)
POINTWISE: Sequence[Deviation] = (
    compare_ties,
    compare_birco_pool,
    compare_instruction,
    compare_birco_model,
)
REWRITING: Sequence[Deviation] = (
    "the thinking is in fields of its own, not in a text before a mark",
    compare_instruction,
    compare_answer_length,
    compare_crumb_model,
)
