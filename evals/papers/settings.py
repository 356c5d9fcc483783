"""The conditions under which a paper's table is made: its data, the models and retrievers that stand
in for others, and files of the user's own for texts that no release has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from evals.papers.difficulty import FACET_COUNT, split_metric
from evals.papers.measured import CATEGORIES
from evals.running.request import find_program
from programs import PROGRAMS
from tools import files
from tools.cli_options import list_parameters
from tools.errors import UnknownName, UsageError
from tools.records import JsonMapping, JsonObject
from tools.retrievers.neural import model_table

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
)
# The parameter of programs that search with a rewritten query under an instruction of its own, as in
# CRUMB's Table 4.
INSTRUCTION = "instruction"
OUR_INSTRUCTION = (
    "searched under our wording of the instruction for rewritten queries; --instructions FILE takes "
    "the sentences of Table 4"
)


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
    # Dollars and calls for all of its runs together; None for no limit.
    budget_usd: float | None = None
    budget_calls: int | None = None
    # Files of the user's own: prices, solutions (OBLIQ-Bench's Tournament+Soln), and an instruction
    # for each program that rewrites queries.
    prices: Path | None = None
    solutions: Path | None = None
    instructions: Path | None = None
    # Results of builds, by task: the folder that has facets, and the measured contamination.
    facets: Mapping[str, Path] = field(default_factory=dict)
    contamination: Mapping[str, Path] = field(default_factory=dict)
    # Tasks of the user's own, in a figure that can have more tasks.
    tasks: tuple[str, ...] = ()
    # Else stderr has the live table of a study.
    quiet: bool = True

    def fields(
        self,
        system: JsonMapping,
    ) -> tuple[JsonObject, str]:
        """Return a system's fields of a request, and the stand-ins among them in words."""
        settings = {key: value for key, value in system.items() if key not in OF_SECTIONS}
        substitutes = self._substitutes(settings)
        stand_ins = [f"{value} for {settings[key]}" for key, value in substitutes.items()]
        changed: JsonObject = settings | substitutes
        parameters = dict(settings.get("parameters", {}))
        if self.retriever and "ties" in parameters:
            # Of the programs that score.
            stand_ins.append(f"{self.retriever} for {parameters['ties']}")
            parameters["ties"] = self.retriever
        if self.solutions and "solutions" in parameters:
            stand_ins.append(f"solutions of {self.solutions}")
            parameters["solutions"] = str(self.solutions)
        program = settings.get("program", "")
        if program in self._own_instructions:
            parameters[INSTRUCTION] = self._own_instructions[program]
            stand_ins.append(f"instruction of {self.instructions}")
        elif has_instruction(program) and takes_instruction(changed["retriever"]):
            stand_ins.append(OUR_INSTRUCTION)
        if parameters:
            changed["parameters"] = parameters
        return changed, "; ".join(stand_ins)

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
                "`python -m evals.build contamination --json` measures it; give what that prints "
                "with --contamination TASK=FILE"
            )
        _, feature = split_metric(metric)
        if FACET_COUNT in (feature, metric.partition(",")[0]) and task not in self.facets:
            return (
                "a model lists facets in `python -m evals.build` (the recipe pool, facets.kind); "
                "give the build with --facets TASK=FOLDER"
            )
        return ""

    @cached_property
    def _own_instructions(self) -> dict[str, str]:
        return read_instructions(self.instructions) if self.instructions else {}

    def _substitutes(
        self,
        settings: JsonMapping,
    ) -> dict[str, str]:
        """Return the values that stand in for other values of a system, by field."""
        wanted = {}
        if "lm" in settings:
            wanted["lm"] = self.lm
        retriever = settings.get("retriever", LEXICAL[0])
        if retriever.partition("(")[0] not in LEXICAL:
            wanted["retriever"] = self.retriever
        pool = settings.get("pool", "")
        pool_kind, _, pool_retriever = pool.partition("(")
        if pool_retriever and self.retriever:
            wanted["pool"] = f"{pool_kind}({self.retriever})"
        return {key: value for key, value in wanted.items() if value and value != settings[key]}


def read_instructions(file: Path) -> dict[str, str]:
    """Read the user's instructions for rewritten queries: program = "text", in TOML.

    DataError for a file that cannot be read, UnknownName for another program, UsageError for a
    value that is no text.
    """
    texts = files.load_toml(file)
    for program, text in texts.items():
        if not has_instruction(program):
            raise UnknownName(
                f"program that rewrites queries, in {file}",
                program,
                filter(has_instruction, PROGRAMS),
            )
        if not isinstance(text, str) or not text.strip():
            raise UsageError(f'{file} has no text for {program}; give it a line {program} = "..."')
    return texts


@cache
def has_instruction(program: str) -> bool:
    """Return whether a program of ours searches under an instruction that is a parameter of it."""
    return program in PROGRAMS and INSTRUCTION in list_parameters(find_program(program))


def takes_instruction(retriever: str) -> bool:
    """Return whether a retriever is a model that was trained with instructions."""
    model = retriever.partition(":")[2].partition("(")[0]
    row = model_table.rows().get(model)
    return row is not None and row.instructed
