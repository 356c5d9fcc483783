"""Have a small program ask a model about units that are no queries of a task: a stage of judging,
naming, building.

A stage is a run in a folder of its own, so it has a budget and usage totals, goes on if it was ended, pays
for nothing twice, and can be forecast. A unit is a Query whose id identifies it; the caller
interprets the outcomes.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sextant.evals import run_folder
from sextant.evals.running import cost_estimate as forecast
from sextant.evals.running import runner
from sextant.evals.running.evaluate import connect, make_resources
from sextant.evals.running.request import SharedRequest
from sextant.programs.base import Program, check_offline
from sextant.tools.corpus import Corpus
from sextant.tools.errors import FAULTS, RunIncomplete
from sextant.tools.models.model_spec import check_key
from sextant.tools.models.run_resources import RunResources
from sextant.tools.platform.files import sextant_home
from sextant.tools.records import JsonObject, Query, Usage
from sextant.tools.retrievers.lexical.bm25 import BM25

# What a stage's configuration has in place of what only runs of tasks have.
BLANK: run_folder.Config = {
    "data": "folder",
    "split": "all",
    "instruction": "none",
    "max_p": False,
    "depth": 0,
    "parameters": {},
    "asked": {"limit": None, "query_ids": []},
    "retriever": {"name": "none"},
    run_folder.PROVENANCE: {"data": "folder", "folder": None, "judgements": "none"},
}
Outcomes = Mapping[str, run_folder.Outcome]  # by the ids of units
# What it has of the configuration of runs that it asks about.
OF_RUNS = (
    "task",
    "data",
    "data_fingerprint",
    "split",
    "instruction",
    "max_p",
    run_folder.PROVENANCE,
)
REHEARSED = 50  # units of a rehearsal at most, from the smallest to the largest


def digest(*texts: str) -> str:
    """Return hex digits by which texts are told apart, and ordered the same on every machine."""
    return hashlib.sha256(":".join(texts).encode(errors="surrogatepass")).hexdigest()


class ModelStage:
    """`program` over `documents`, with the model and budget of `request`, in the folder `folder`-DIGEST."""

    def __init__(
        self,
        program: Program,
        documents: Corpus,
        folder: Path,
        config: run_folder.Config,
        request: SharedRequest,
        resources: RunResources | None = None,
    ) -> None:
        """`config` has a task's name and all that outcomes depend on except program, prompts, texts
        and model.

        Stages may share `resources`, which are then open.
        """
        if request.lm == "offline":
            check_offline(request.program_label, program)
        self._program = program
        self._documents = documents
        self._request = request
        self._own = resources is None
        self.model = connect(request, resources or make_resources(request), documents)
        self.model.lm.meet()
        identity = {
            "program": request.program_label,
            "prompt": digest(
                *(
                    str(source)
                    for predictor in program.predictors()
                    for source in (predictor.signature, *predictor.demos)
                )
            )[:16],
            "lm": {"name": self.model.name, **self.model.settings},
        }
        self.config = BLANK | {"data_fingerprint": documents.fingerprint} | config | identity
        self._kind = folder.resolve()
        self.path = self._kind.with_name(f"{folder.name}-{run_folder.digest(self.config)}")

    @property
    def outcomes(self) -> Outcomes:
        """The outcomes so far."""
        # A folder without a configuration is of a stage that ended before it asked anything.
        begun = (self.path / run_folder.CONFIG_FILE).exists()
        return run_folder.read_outcomes(self.path) if begun else {}

    @contextmanager
    def open(self) -> Iterator[Callable[..., Outcomes]]:
        """Claim the folder; yield a function that asks about units without an outcome, and returns
        all outcomes.

        It takes units and QueryHooks. SextantError if units are left without an
        outcome.
        """
        if self._request.lm != "offline":
            check_key(self._request.lm, self._request.headers)
        try:
            with run_folder.claim(self.path, self.config) as folder:
                if self._own:
                    self.model.begin(folder.path, folder.usage)
                elif self.model.lm.client.free:
                    self.model.resources.budget.resume(Usage(calls=folder.usage.calls))

                def ask(
                    units: Sequence[Query], hooks: runner.QueryHooks = runner.NO_HOOKS
                ) -> Outcomes:
                    if fault := runner.run_queries(
                        self._program,
                        units,
                        self._documents,
                        folder,
                        self.model,
                        workers=self._request.at_once,
                        hooks=hooks,
                    ):
                        raise RunIncomplete(fault)
                    return folder.outcomes

                yield ask
        except FAULTS as problem:
            raise problem.saying(f"{problem}; the same command goes on with what is left") from None

    def forecast(self, units: Sequence[Query]) -> JsonObject:
        """Return the estimate of asking about these units, as `forecast.project`. Nothing is
        sent or written.
        """
        before = self.outcomes
        unanswered = [unit for unit in units if unit.query_id not in before]

        def size(unit: Query) -> tuple[int, int]:
            return len(unit.candidates or ()), len(unit.text)

        pending = sorted(unanswered, key=size)
        statistics = BM25(self._documents, sextant_home()).statistics
        step = -(-len(pending) // REHEARSED) or 1
        chosen = pending[step // 2 :: step]  # the middle one of each `step` that are as large
        estimate = forecast.extrapolate(
            self._request,
            self.model,
            forecast.StandInModel(statistics, self.model).watch(
                self._program, chosen, self._documents
            ),
            pending,
        )
        return estimate | {"answered": len(units) - len(unanswered)}
