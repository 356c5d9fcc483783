"""All programs and agents as one, `--program FILE:All`: each answers some of the queries of a miniature."""

from typing import Any

from sextant.agents import AGENTS
from sextant.programs import PROGRAMS
from sextant.tools.platform.cli_options import list_parameters
from sextant.tools.plugins import load_object
from sextant.tools.records import Query, Submission
from sextant.tools.retrievers.expressions import Expression, Expressions
from sextant.tools.session import Toolbox

TIES, RETRIEVERS = Expression("rank_bm25"), Expressions("bm25,rank_bm25")


class All:
    """The programs and agents, in turn by the number of a query; those that search by other retrievers, by these."""

    def __init__(
        self,
        toolbox: Toolbox,
        *,
        depth: int = 20,
        ties: Expression = TIES,
        retrievers: Expressions = RETRIEVERS,
    ) -> None:
        others: dict[str, Any] = {"ties": ties, "retrievers": retrievers}
        self.systems = []
        for name in sorted(PROGRAMS | AGENTS):
            made = load_object("system", name, PROGRAMS | AGENTS)
            known = {one: others[one] for one in list_parameters(made) if one in others}
            self.systems.append(made(toolbox, depth=depth, **known))

    def __call__(self, query: Query) -> Submission:
        return self.systems[int(query.query_id.removeprefix("MINI-q")) % len(self.systems)](
            query=query
        )
