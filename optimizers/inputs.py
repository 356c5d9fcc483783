"""What a compilation works with: the arguments, understood and checked; models, retrievers and programs, made once."""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.running import parameters, resolve
from evals.running.engines import Engines
from tools import retrievers
from tools.console.command import say
from tools.errors import UnknownName, UsageError
from tools.table import pick

if TYPE_CHECKING:
    from optimizers.evaluations import Study
    from optimizers.teleprompters import Teleprompter
    from optimizers.training.splits import Training
    from programs.parts.compiled import Compiled
    from tools.models.answers import Ledger
    from tools.models.budget import Budget
    from tools.models.lm import Model
    from tools.records import Usage


@dataclass(slots=True)
class Asked:
    """What the arguments name, checked as far as that needs no data."""

    wanted: resolve.Wanted
    options: dict[str, Any]  # of the teleprompter
    members: "list[Compiled]"  # of an ensemble
    ranges: Mapping[str, list[Any]]  # of what is tuned
    template: str  # the retriever as it was given, with {names} to be tuned

    def parameters(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """The program's parameters with those that are `chosen`."""
        return {name: chosen.get(name, value) for name, value in self.wanted.values.items()}


def started_from(asked: Asked) -> dict[str, Any]:
    """Where tuning starts: the program's own parameters, and the first value of what has no other."""
    from optimizers import tune

    own = asked.wanted.values | {tune.RETRIEVER: asked.template}
    return {name: own.get(name, values[0]) for name, values in asked.ranges.items()}


def asked_for(arguments: argparse.Namespace) -> Asked:
    """What the command line asks for. UsageError, or UnknownName, for what it cannot have."""
    from optimizers import tune
    from optimizers.teleprompters import TELEPROMPTERS, settings
    from programs.parts.compiled import read

    if arguments.program is None:
        raise UsageError("--program is missing; python -m evals.run --program list has them")
    if arguments.optimizer not in TELEPROMPTERS:
        raise UnknownName("optimizer", arguments.optimizer, TELEPROMPTERS)
    if limits := parameters.limits(arguments.parameters):
        raise UsageError(f"-P {next(iter(limits))} is a limit of evals.run; a program is compiled without")
    row = TELEPROMPTERS[arguments.optimizer]
    options = settings(arguments.optimizer, arguments.budget, arguments.options)
    for option, owner, given in (("--of", "ensemble", arguments.of), ("--range", "tune", arguments.ranges)):
        if given and arguments.optimizer != owner:
            raise UsageError(f"{option} is for --optimizer {owner}; leave it out")
    if not 0 <= arguments.seed < 2**32:
        raise UsageError(f"--seed {arguments.seed} is not from 0 to {2**32 - 1}, as NumPy's seeds are")
    _check_models(arguments, row)
    declared: Mapping[str, list[Any]] = {}
    template = arguments.retriever or "bm25"
    if arguments.optimizer == "tune":
        constructor = pick("program", arguments.program, resolve.SYSTEMS)
        declared = tune.ranges(arguments.program, constructor, template, arguments.ranges)
        for chosen in tune.each_retriever(template, declared):
            retrievers.require(retrievers.check(chosen))
        arguments.retriever = tune.filled(template, tune.first(declared) | {tune.RETRIEVER: template})
    if arguments.optimizer == "ensemble" and len(arguments.of) < 2:
        raise UsageError("ensemble needs two compiled programs or more; name each with --of FILE")
    members = [read(file) for file in arguments.of]
    wanted = resolve.wanted(arguments)
    fixed = getattr(wanted.constructor, "compiled_with", {})
    wanted.values |= {name: value for name, value in fixed.items() if name not in wanted.given}
    return Asked(wanted, options, members, declared, template)


def _check_models(arguments: argparse.Namespace, row: "Teleprompter") -> None:
    """UsageError for a second or third model that the optimizer has no use for, or that is none."""
    from tools.models import lm

    if arguments.teacher and not row.teacher:
        raise UsageError(f"{arguments.optimizer} makes no demonstrations with a model; leave out --teacher")
    if arguments.prompt_lm and not row.proposes:
        raise UsageError(f"{arguments.optimizer} has no instructions written; leave out --prompt-lm")
    for option, spec in (("--teacher", arguments.teacher), ("--prompt-lm", arguments.prompt_lm)):
        if spec:
            lm.check(spec, option)
            if arguments.budget_usd is not None and not lm.price_is_known(spec, arguments.prices):
                raise UsageError(f"the price of {spec} is not known; use --budget-calls instead of --budget-usd")


def check_prompts(arguments: argparse.Namespace, asked: Asked) -> None:
    """UsageError for a program without prompts, values that it refuses, or members of an ensemble of another."""
    from optimizers import tune
    from optimizers.teleprompters import TELEPROMPTERS
    from programs.parts.compiled import check

    for chosen in tune.combinations(asked.ranges, asked.options["trials"], arguments.seed) if asked.ranges else ():
        resolve.trial(asked.wanted.constructor, asked.parameters(chosen))
    program = resolve.trial(asked.wanted.constructor, asked.wanted.values)
    if TELEPROMPTERS[arguments.optimizer].prompts and not program.predictors():
        raise UsageError(f"{arguments.program} has no prompts; --optimizer tune searches its parameters and retriever")
    for file, member in zip(arguments.of, asked.members, strict=True):
        own = {**asked.wanted.values, **member.parameters}
        check(member, arguments.program, resolve.trial(asked.wanted.constructor, own), str(file))
        if dict(member.parameters) != asked.wanted.values or member.retriever != arguments.retriever:
            raise UsageError(f"{file} has other parameters, or another retriever, than the command; give it the same")


class Bench:
    """What a compilation was asked for, and has for it: models, retrievers, programs. The corpus is there once."""

    def __init__(self, arguments: argparse.Namespace, asked: Asked, training: "Training") -> None:
        from optimizers.teleprompters import TELEPROMPTERS

        self.arguments, self.asked, self.training = arguments, asked, training
        self._environment = training.environment
        terminal = sys.stderr  # which DSPy's bars are kept away from while it works
        self.tell: Callable[[str], None] = (lambda line: None) if arguments.json else (lambda line: say(line, terminal))
        self.budget: Budget = resolve.budget_of(arguments)
        self._gate = resolve.gate_of(arguments)  # one for student, teacher, who writes prompts, and lenses
        connect = resolve.for_lenses(arguments, self.budget, self._gate)
        self.engines = Engines(arguments, self._environment, self.budget, connect)
        self.retriever = self.engines.build(asked.wanted.retriever)
        self._others = {name: self.engines.build(retrievers.check(name)) for name in asked.wanted.others}
        self.student = self._connect(arguments.lm)
        self.teacher = self._connect(arguments.teacher) if arguments.teacher else None
        proposes = TELEPROMPTERS[arguments.optimizer].proposes
        self.prompter = self._prompter(arguments.prompt_lm or arguments.lm) if proposes else None
        self.models = [model for model in (self.student, self.teacher, self.prompter) if model]
        self.workers: int = arguments.max_concurrent or (1 if arguments.lm == "offline" else resolve.WORKERS)
        self._ledger: Ledger | None = None

    def _connect(self, spec: str, **options: Any) -> "Model":
        return resolve.connect(
            self.arguments, self._environment, self.retriever, self.budget, spec=spec, gate=self._gate, **options
        )

    def _prompter(self, spec: str) -> "Model":
        """The model that writes instructions, at temperature 1 where it takes one: it is asked for something new."""
        from optimizers.offline import RULES

        model = self._connect(spec, rules=RULES)
        if model.lm.kwargs.get("temperature") is not None:
            model.lm.kwargs["temperature"] = 1.0
        model.lm.halts = True
        return model

    def open(self, folder: Path) -> None:
        """Take up what earlier sittings of this compilation paid for."""
        from tools.models.answers import ledger

        self.engines.keep(folder, self.arguments.runs)
        if all(model.name == "offline" for model in self.models):
            return
        self._ledger = ledger(folder, runs=self.arguments.runs)
        for model in self.models:
            if model.name != "offline":
                model.share(self._ledger, repeats=True)

    def halt(self) -> None:
        """Send nothing more; what is in flight is answered and booked."""
        self._gate.halt()
        for model in self.models:  # the offline engine has a gate of its own
            model.halt()

    def settle(self) -> None:
        """Wait until the books of what all models were sent are on disk."""
        for model in self.models:
            model.settle()

    def resume(self, study: "Study") -> None:
        """Count what earlier sittings used; with a ledger, `open` did."""
        if self._ledger is None:
            self.budget.resume(self.usage(study))

    def usage(self, study: "Study") -> "Usage":
        """Of all model calls so far, those that wrote instructions included; offline, those of evaluations."""
        from tools.records import Usage

        return self._ledger.books.usage if self._ledger else Usage(calls=study.calls)

    def spent(self, study: "Study") -> "Usage":
        """What is off the budgets: requests sent, answered or not."""
        books = self._ledger.books if self._ledger else self.engines.account.books
        return replace(books.usage, calls=books.sent) if books else self.usage(study)

    def program(self, chosen: Mapping[str, Any] | None = None) -> Any:
        """The program as it was before, or with some parameters `chosen`, over the shared retrievers."""
        from optimizers import tune
        from tools.session import Toolbox

        chosen = chosen or {}
        retriever, values = self.retriever, self.asked.parameters(chosen)
        if chosen and self.asked.ranges:
            retriever = self.engines.build(retrievers.check(tune.filled(self.asked.template, chosen)))
        # One line of work at a time inside a query: which predictor was asked first is then the same every time.
        at_once = {"parallel": 1} if "parallel" in values else {}
        toolbox = Toolbox(self._environment.documents, retriever, others=self._others)
        depth = self.arguments.k or self._environment.depth
        return self.asked.wanted.constructor(toolbox, depth=depth, **values | at_once)
