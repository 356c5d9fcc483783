"""Search programs: DSPy modules that turn a Query into a ranking, by name."""

from sextant_search import require_ours

require_ours("tools")

# To add one: a Program (programs/base.py) in its own file, named here. Its annotated attributes are what
# `-P name=value` may set: int, float, bool, str, Expression or Expressions (retrievers, tools.retrievers) or
# InputFile (tools/disk.py). For `--lm offline`, `offline` names a rule for every output field of its signatures;
# tools/models/offline.py has some.
PROGRAMS = {
    "closed_book": "programs.closed_book:ClosedBook",
    "decompose": "programs.decompose:Decompose",
    "multihop": "programs.multihop:MultiHop",
    "query_to_answer": "programs.rewriting:QueryToAnswer",
    "query_to_doc": "programs.rewriting:QueryToDoc",
    "rank": "programs.listwise:Rank",
    "reason": "programs.pointwise:Reason",
    "reasoning_trace": "programs.rewriting:ReasoningTrace",
    "retrieve": "programs.retrieve:Retrieve",
    "rewrite": "programs.rewriting:Rewrite",
    "score": "programs.pointwise:Score",
    "subtask": "programs.pointwise:Subtask",
    "tournament": "programs.listwise:Tournament",
}

# What may stand before a colon, as in served:NAME -> the program that is made; it is `called` the rest.
SCHEMES = {"command": "programs.command:Command", "served": "programs.served:Served"}

FLOOR = "retrieve"  # one search, no model: what every other program has to be above
VERIFIER = "tournament"  # orders a pool that has everything relevant: what recognising alone would reach

# How a program differs from its paper's, beside its prompts; a run's table says it (docs/decisions/programs.md).
DIFFERS = {
    "closed_book": "both of BIRCO's signs count in every task, and nobody judges by hand",
    "multihop": "the model also sees its earlier searches, may end early, and gives no rationale and no summary",
    "query_to_answer": "the thinking is in fields of its own, not in a text before a mark",
    "query_to_doc": "the thinking is in fields of its own, not in a text before a mark",
    "rank": "the last window begins at the top, where RankGPT's script may leave out the first few",
    "reasoning_trace": "an example document is asked for as well, as Table 10 has it and Figure 9 has not",
    "rewrite": "no rationale is asked for",
    "subtask": "a requirement is met from 0 to 10, not or not at all, and its judge is told the objective",
    "tournament": "no reason is asked for beside a place",
}
