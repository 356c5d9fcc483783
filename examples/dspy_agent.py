"""A dspy.Module that knows nothing of Sextant: an agent of DSPy's with the tools that it asks for.

Try it, without a key:

    sextant run --program examples/dspy_agent.py:Agent --task congress
    sextant compile --program examples/dspy_agent.py:Agent --task congress --optimizer bootstrap
"""

import dspy


class Find(dspy.Signature):
    """Find the documents that satisfy a query, with searches in the words that they would contain."""

    question: str = dspy.InputField()
    doc_ids: list[str] = dspy.OutputField(desc="ids of the documents that fit, best first")


class Agent(dspy.Module):
    def __init__(self, search, read, max_iters: int = 6):
        super().__init__()
        self.find = dspy.ReAct(Find, tools=[search, read], max_iters=max_iters)

    def forward(self, question):
        return self.find(question=question)
