"""The conditions under which a paper's table is made: its data, the models and retrievers that stand
in for others, and files of the user's own for texts that no release has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sextant.evals.papers.difficulty import FACET_COUNT, split_metric
from sextant.evals.papers.measured import CATEGORIES
from sextant.tools.records import JsonMapping, JsonObject

# Retrievers that need neither key nor weights.
LEXICAL = (
    "bm25",
    "bm25s",
    "rank_bm25",
    "pool_bm25",
)
# Keys of a system that a run does not have.
OF_SECTIONS = (
    "name",
    "row",
    "also",
    "tasks",
    "lacks",
    "make",
    "mean_of",
    "sizes",
    "of",
    "differs",
)
# A text on the task, and the parameter of programs that search with a rewritten query under an
# instruction of its own (CRUMB's Table 4).
INSTRUCTION = "instruction"


@dataclass(frozen=True, kw_only=True)
class ReproductionSettings:
    """The conditions under which a table is made."""

    data: str | None
    limit: int | None
    # In place of the models of the paper.
    lm: str
    # In place of retrievers that need a key or weights.
    retriever: str
    runs: Path
    # "paper" or "ours": whose words models are told of the task, where the paper prints some.
    instruction: str = "paper"
    # Dollars and calls for all of its runs together; None for no limit.
    budget_usd: float | None = None
    budget_calls: int | None = None
    # Files of the user's own: prices, and solutions (OBLIQ-Bench's Tournament+Soln).
    prices: Path | None = None
    solutions: Path | None = None
    # Results of builds, by task: the folder that has facets, and the measured contamination.
    facets: Mapping[str, Path] = field(default_factory=dict)
    contamination: Mapping[str, Path] = field(default_factory=dict)
    # Tasks of the user's own, in a figure that can have more tasks.
    tasks: tuple[str, ...] = ()
    # Else stderr has the live table of a study.
    quiet: bool = True

    def fields(self, system: JsonMapping) -> tuple[JsonObject, str]:
        """Return a system's fields of a request, and the stand-ins among them in words."""
        changed = {key: value for key, value in system.items() if key not in OF_SECTIONS}
        parameters = dict(changed.get("parameters", {}))
        is_lexical = changed.get("retriever", "").partition("(")[0] in LEXICAL
        pool_kind, _, pool_retriever = changed.get("pool", "").partition("(")
        has_pool = pool_retriever and self.retriever
        stand_ins = []
        for fields, name, value in (
            (changed, "lm", self.lm),
            (changed, "retriever", "" if is_lexical else self.retriever),
            (changed, "pool", f"{pool_kind}({self.retriever})" if has_pool else ""),
            (parameters, "ties", self.retriever),  # of the programs that score
        ):
            if value and value != fields.get(name, value):
                stand_ins.append(f"{value} for {fields[name]}")
                fields[name] = value
        if self.solutions and "solutions" in parameters:
            stand_ins.append(f"solutions of {self.solutions}")
            parameters["solutions"] = str(self.solutions)
        if self.instruction == "ours" and changed.get(INSTRUCTION) == "paper":
            stand_ins.append("our words for what the paper's models are told of the task")
            changed[INSTRUCTION] = "ours"
            parameters.pop(INSTRUCTION, None)
        return changed | {"parameters": parameters}, "; ".join(stand_ins)

    def explain_lack(self, system: JsonMapping) -> str:
        """Return why a system cannot be run; "" if it can, with the user's files or model."""
        if "solutions" in system.get("parameters", {}):
            is_given = self.solutions is not None
        else:
            is_given = bool(self.lm) and "lm" in system
        return "" if is_given else str(system.get("lacks", ""))

    def explain_missing_file(
        self,
        task: str,
        metric: str,
    ) -> str:
        """Return how to measure a figure that a build gives; "" for another, or if it is given."""
        if metric in CATEGORIES and task not in self.contamination:
            return (
                "`sextant build contamination --json` measures it; give what that prints "
                "with --contamination TASK=FILE"
            )
        _, feature = split_metric(metric)
        if FACET_COUNT in (feature, metric.partition(",")[0]) and task not in self.facets:
            return (
                "a model lists facets in `sextant build` (the recipe pool, facets.kind); "
                "give the build with --facets TASK=FOLDER"
            )
        return ""
