"""Search with the answer: CRUMB's Query-to-Answer (section 4.2.2, appendix A, Table 4).

A model that has seen nothing of the corpus answers the request after some thinking; only the answer is searched with.
In the paper this helps weak retrievers most at the top of the ranking, and harms the best one. The prompt is ours;
what is shared with the other rewriters is in rewriting.py.
"""

import dspy

from programs.parts.rewriting import Rewriter


class AnswerRequest(dspy.Signature):
    """Answer a request for information from what you know, thinking before you answer.

    First work out what is asked for and what a full answer would have to contain, then collect what could
    be relevant and rule out what only seems so. The answer stands by itself: no remarks about how you
    came to it, and no question back. When you are not sure, commit yourself to the likeliest answer.
    """

    objective: str = dspy.InputField(desc="what the collection is, and what counts as a find; may be empty")
    description: str = dspy.InputField(desc="the request")
    analysis: str = dspy.OutputField(desc="what is asked for, and what a full answer contains")
    brainstorming: str = dspy.OutputField(desc="what could be relevant, and what is not")
    answer: str = dspy.OutputField(desc="the answer and nothing else")


class QueryToAnswer(Rewriter):
    """CRUMB's Query-to-Answer: think, answer, search once with the answer."""

    signature = AnswerRequest
    kept = ("answer",)
    instruction = "The text is an answer to a question. Find what supports it or bears on it."
