"""Search programs: DSPy modules that turn a Query into a ranking, by name."""

# To add one: a dspy.Module in its own file, named here. Its __init__ takes a Toolbox and, keyword-only, `depth`
# (documents in a ranking) and whatever `-P name=value` may set, annotated int, float, bool, str,
# Expression or Expressions (retrievers, tools/retrievers/spec.py) or InputFile (tools/disk.py); its forward takes a
# Query and returns a Submission. For `--lm offline`, every output field of its signatures needs a rule in
# programs/offline_rules.py.
PROGRAMS = {
    "closed_book": "programs.closed_book:ClosedBook",
    "decompose": "programs.decompose:Decompose",
    "multihop": "programs.multihop:MultiHop",
    "query_to_answer": "programs.query_to_answer:QueryToAnswer",
    "query_to_doc": "programs.query_to_doc:QueryToDoc",
    "rank": "programs.rank:Rank",
    "reason": "programs.reason:Reason",
    "reasoning_trace": "programs.reasoning_trace:ReasoningTrace",
    "retrieve": "programs.retrieve:Retrieve",
    "rewrite": "programs.rewrite:Rewrite",
    "score": "programs.score:Score",
    "subtask": "programs.subtask:Subtask",
    "tournament": "programs.tournament:Tournament",
}
