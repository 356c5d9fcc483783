"""A search with the description as it stands, no model: the floor that every program has to clear."""

from sextant.programs.base import Program
from sextant.tools.records import Query, Submission


class Retrieve(Program):
    """The shared retriever, bare: the floor."""

    def forward(self, query: Query) -> Submission:
        """Return the first `depth` documents for the query's own text."""
        session = self.toolbox.open(query)
        hits = session.find_hits(query.text, self.depth)
        return session.submit(hits.doc_ids, scores=hits.scores)
