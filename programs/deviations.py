"""How programs differ from those of the papers, for the line under the tables that have their runs.

`programs.DIFFERS` has a row for each program: texts, and functions that look at a run first,
because a deviation of the defaults (such as the retriever) can be gone in a run. A function returns
"" if its deviation does not apply. docs/decisions/programs.md has the papers' sections next to
them.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tools import pool_kinds


class Setup(NamedTuple):
    """The configuration of a run, and whether the task gives each query its candidates."""

    config: Mapping[str, Any]
    has_candidates: bool

    @property
    def retriever(self) -> str:
        """The expression of its retriever."""
        return str(self.config["retriever"]["name"])

    @property
    def lm(self) -> str:
        """The name of its model."""
        return str(self.config["lm"]["name"])

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

# What each paper means by BM25, by the beginning of a task's name; the first that fits counts.
BM25 = {
    "obliq/writing": "bm25s",
    "obliq/congress": "bm25s",
    "obliq/": "rank_bm25",
    "birco/": "rank_bm25",
    "crumb/": "bm25(analyzer=english)",
    "multiconir/": "pool_bm25",
}


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
        f"figures rest"
    )


def compare_bm25(setup: Setup) -> str:
    """Compare a run over BM25 with the BM25 of its task's paper."""
    theirs = next(
        (bm25 for prefix, bm25 in BM25.items() if setup.config["task"].startswith(prefix)), ""
    )
    if (
        not theirs
        or setup.retriever == theirs
        or not re.match(r"\w*bm25\w*\b(?!:)", setup.retriever)
    ):
        return ""
    return f"its BM25 is {setup.retriever}, the paper's is --retriever '{theirs}'"


def compare_model(pattern: str, theirs: str) -> Callable[[Setup], str]:
    """Compare a model with that of the paper; the engine without a model has a line of its own."""

    def compare(setup: Setup) -> str:
        if setup.lm == "offline" or re.search(pattern, setup.lm, re.IGNORECASE):
            return ""
        return f"its model is {setup.lm}, the paper's {theirs}"

    return compare


compare_obliq_model = compare_model(r"gpt-5\.2(-20\d\d-\d\d-\d\d)?$", "GPT-5.2")
compare_birco_model = compare_model(_BIRCO_MODELS, "GPT-4, Llama 2 or StripedHyena")
compare_crumb_model = compare_model(r"gemma-?3[-:]27b", "Gemma 3 27B")


def compare_tournament_pool(setup: Setup) -> str:
    """Compare a run's pool with that of OBLIQ-Bench's tournament (section 5)."""
    pool = setup.config.get("pool")
    if pool:
        pool_retrievers = [str(pool_retriever) for pool_retriever in pool["of"]]
        models = [
            model
            for model in _OBLIQ_POOL
            if any(uses_model(pool_retriever, model) for pool_retriever in pool_retrievers)
        ]
        is_papers = len(models) == len(pool_retrievers) == len(_OBLIQ_POOL)
        kind = pool_kinds.read_kind(setup.config)
        if is_papers and kind == pool_kinds.ORACLE and pool["size"] == _OBLIQ_POOL_SIZE:
            return ""
        ours = f"the first {pool['size']} of {' and '.join(pool_retrievers)} {_RELEVANT[kind]}"
    elif setup.has_candidates:
        ours = "the query's candidates"
    else:
        ours = f"the first {setup.parameter('pool')} of {setup.retriever}, whatever these miss"
    return (
        f"its pool is {ours}, the paper's is some 300 of three dense retrievers, with all that is "
        f"relevant"
    )


def compare_birco_pool(setup: Setup) -> str:
    """Compare a run's pool with BIRCO's, whose queries have candidates of their own."""
    kind = pool_kinds.read_kind(setup.config)
    if setup.has_candidates or kind in pool_kinds.WITH_RELEVANT:
        return ""
    ours = f"the first {setup.parameter('pool')} of {setup.retriever}"
    if kind:
        pool = setup.config["pool"]
        ours = f"the first {pool['size']} of {' and '.join(pool['of'])}"
    return f"its pool is {ours}, the paper's queries have pools with all that is relevant"


def compare_ties(setup: Setup) -> str:
    """Compare the order of equal scores with BIRCO's (section 4.1)."""
    ties = str(setup.parameter("ties") or "")
    if uses_model(ties, _BIRCO_TIES):
        return ""
    ours = {"": setup.retriever, "dense": "all-MiniLM-L6-v2"}.get(ties, ties)
    return (
        f"equal scores are ordered by {ours}, the paper's by E5-Large-v2 (-P "
        f"ties=dense:intfloat/e5-large-v2)"
    )


def compare_printed_prompts(*tasks: str) -> Callable[[Setup], str]:
    """Compare the task of a run with those of OBLIQ-Bench for which it prints prompts (appendix D)."""

    def compare(setup: Setup) -> str:
        if setup.config["task"] in {f"obliq/{task}" for task in tasks}:
            return ""
        return "its advice on this task is ours, as the paper prints no prompt for it"

    return compare


def compare_ranking_prompts(setup: Setup) -> str:
    """Compare the task of a tournament with those of appendices D.3.6 and D.4.1; it thinks first for Math alone."""
    tasks = ("math",) if setup.parameter("think") else ("math", "writing")
    return compare_printed_prompts(*tasks)(setup)


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
    return f"of each solution it shows {setup.parameter('solution_chars')} characters, the paper an excerpt"


def compare_reading(setup: Setup) -> str:
    """Compare a reading with the prompt of OBLIQ-Bench's appendix D.5.4; that of D.4.2 has no hop."""
    if setup.config["task"] != "obliq/congress":
        return ""
    return "a reading is not told which hop it is of"


def compare_reranking(setup: Setup) -> str:
    """Compare with OBLIQ-Bench's appendix D.5.4, which ends in a reranking."""
    if setup.parameter("rerank"):
        return ""
    return "nothing is reranked in the end, as it is in appendix D.5.4 (-P rerank=N)"


def compare_thinking(setup: Setup) -> str:
    """Compare with BIRCO's section 4.2, which figure 12 contradicts."""
    if not setup.parameter("think"):
        return ""
    return (
        "it thinks and quotes before it scores, as in figure 12; section 4.2 has a score alone "
        "(-P think=false)"
    )


def compare_answer_length(setup: Setup) -> str:
    """Compare the longest answer with CRUMB's (section 4.4)."""
    limit = setup.config["lm"].get("max_tokens")
    if setup.lm == "offline" or limit is None:
        return ""
    # The signatures have the paper's limit, which takes the place of the default.
    if limit >= _CRUMB_TOKENS or limit == _DEFAULT_TOKENS:
        return ""
    return (
        f"an answer may have {limit:,} tokens, the paper's {_CRUMB_TOKENS:,} (--max-tokens "
        f"{_CRUMB_TOKENS})"
    )


# Tasks of which OBLIQ-Bench prints a prompt for judging pooled documents (appendices D.1.4, D.2.4,
# D.3.5) -> what differs beside the reason with each grade.
_JUDGING = {
    "obliq/twitter": "",
    "obliq/wildchat": "relevant conversations are shown, to be as strict by",
    "obliq/math": "the query comes without the fingerprint of its solution",
}


def describe_judging(task: str) -> str:
    """Say in a line how grading new documents of a task differs from its paper's; "" if it has none."""
    if task not in _JUDGING:
        return ""
    differing = ["a reason is given with each grade", _JUDGING[task]]
    return f"the judge differs from the paper's: {'; '.join(filter(None, differing))}"


MULTI_HOP: Sequence[Deviation] = (
    compare_search,
    "a search that was made before is not made again, which costs its hop",
    compare_reading,
    compare_reranking,
    compare_printed_prompts("writing", "congress"),
    compare_obliq_model,
)
POINTWISE: Sequence[Deviation] = (compare_ties, compare_birco_pool, compare_birco_model)
REWRITING: Sequence[Deviation] = (
    "the thinking is in fields of its own, not in a text before a mark",
    compare_answer_length,
    compare_crumb_model,
)


def describe_deviations(
    deviations: Iterable[Deviation], config: Mapping[str, Any], *, has_candidates: bool
) -> str:
    """Say in a line which of a program's deviations its run has; "" if it has none."""
    setup = Setup(config, has_candidates)
    texts = [
        deviation if isinstance(deviation, str) else deviation(setup) for deviation in deviations
    ]
    differing = "; ".join(filter(None, texts))
    return f"{config['program']} differs from the paper's: {differing}" if differing else ""
