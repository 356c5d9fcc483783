"""One rewriting, one search: OBLIQ-Bench's query rewriter (section 5; for Congress, appendix D.5.3).

A model that has seen nothing of the corpus says what the wanted document would say; the retriever does the rest. `lens`
stands for the paper's prompts, which differ from task to task. A rewriting that is blank is an unusable answer: nothing
else is searched with in its place.
"""

from typing import ClassVar

import dspy

from programs.base import Program
from tools.models.offline import rules
from tools.models.offline.engine import Rules
from tools.models.prompting import DESCRIPTION, ask, filled, lens, through
from tools.records import Query, Submission


class RewriteDescription(dspy.Signature):
    """Rewrite a query into one search text that wanted documents match better than the query does.

    The objective says how a wanted document stands to the query; its words are probably others. Infer which
    terms, turns of phrase and specifics it would have, in its own register, and write those.
    """

    objective: str = dspy.InputField(desc="what the collection is, and what counts as a find")
    description: str = dspy.InputField(desc=DESCRIPTION)
    rewritten: str = dspy.OutputField(desc="one search text")


class Rewrite(Program):
    """OBLIQ-Bench's rewriter: rewrite once, search once."""

    offline: ClassVar[Rules] = {"rewritten": rules.rewrite}

    lens: str = ""  # a name of tools/models/prompting.py: what makes a document relevant in this task

    def __post_init__(self) -> None:
        self.rewrite = dspy.Predict(through(RewriteDescription, lens(self.lens).search))

    def forward(self, query: Query) -> Submission:
        """The first `depth` documents for the rewritten text."""
        session = self.toolbox.open(query)
        session.hop = 1
        text = ask(self.rewrite, filled("rewritten"), objective=query.objective, description=query.text).rewritten
        found = session.search(text.strip(), self.depth)
        return session.submit([snippet.doc_id for snippet in found])
