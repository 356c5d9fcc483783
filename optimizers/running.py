"""A teleprompter at work: what it is given, how it is watched, and why it stopped if it did not come to its end."""

import contextvars
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any, TypeVar

import dspy

from evals.running.runner import GRACE, TICK
from optimizers.inputs import Inputs
from optimizers.study import Job, Study
from optimizers.training.demonstrations import label_examples
from tools.console import check_interrupts, say
from tools.errors import Halt, RunIncomplete, SextantError
from tools.models.adapter import Adapter
from tools.models.faults import fault, refusal
from tools.models.spec import hide_keys

T = TypeVar("T")


@dataclass(slots=True)
class Ended:
    """How the work of a teleprompter ended."""

    problem: SextantError | None = None  # why before its time
    forms: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # by candidate, of what is more than prompts


def compile_with(inputs: Inputs, study: Study) -> Ended:
    """Evaluate the program before, and what the teleprompter finds. KeyboardInterrupt once all in flight is booked."""
    ended = Ended()
    context = dspy.context(lm=inputs.student.lm, adapter=Adapter(), trace=None, num_threads=inputs.workers)
    try:
        with context, study.working(inputs.student.lm), _quiet(study):
            run_interruptible(lambda: _work(inputs, study, ended.forms), lambda: _halt(inputs, study))
    except Halt as halt:
        ended.problem = _why(halt.reason, inputs)
    except KeyboardInterrupt:
        say(f"what was answered and evaluated is safe in {study.folder}; the same command goes on")
        raise
    except SextantError:
        raise
    except Exception as error:  # noqa: BLE001  # a library's optimizer may raise anything; what was evaluated is kept
        study.log(error)
        first = hide_keys(" ".join(f"{type(error).__name__}: {error}".split()))
        name = inputs.request.optimizer
        ended.problem = RunIncomplete(f"{name} broke off: {first}; optimizer.log has more")
    return ended


def _work(inputs: Inputs, study: Study, forms: dict[str, Mapping[str, Any]]) -> None:
    """Do all that sends anything. What it books is on disk when it ends, however it does."""
    try:
        job = _job(inputs, study)
        study.before = study.candidate(job.student, inputs.plan.start).digest
        before = study.evaluate(job.student, "validation")
        if warning := study.objective.check_spread([one.metrics[study.objective.metric] or 0.0 for one in before]):
            inputs.tell(warning)
        found = inputs.plan.optimizer.run(job)
        study.returned = study.evaluate(found.program, "validation")[0].candidate
        forms[study.returned] = found.form
    finally:
        inputs.settle()


def run_interruptible(work: Callable[[], T], halt: Callable[[], None]) -> T:
    """Run `work` in a thread of its own, and return what it does: Ctrl-C breaks off no model call half-way.

    The first one calls `halt`. What is in flight is then waited for, GRACE seconds at most, so that it is not paid for
    in vain. At the second one nothing is waited for.
    """
    done = Future[T]()

    def begin() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  # raised again by who waits
            done.set_exception(error)

    threading.Thread(target=contextvars.copy_context().run, args=[begin], daemon=True).start()
    try:
        _wait(done)
        return done.result()
    except KeyboardInterrupt:
        halt()
        _wait(done, until=time.monotonic() + GRACE)
        raise


def _wait(done: Future[T], until: float = math.inf) -> None:
    while not done.done() and time.monotonic() < until:
        check_interrupts()
        wait([done], TICK)


def _halt(inputs: Inputs, study: Study) -> None:
    study.stop()
    inputs.halt()


def _why(reason: Exception, inputs: Inputs) -> SextantError:
    """Return what stopped a teleprompter, as an error of ours; a bare one is of the model that writes instructions."""
    if isinstance(reason, SextantError):
        return reason
    if fault(reason) == "refused":
        return refusal(reason, inputs.request.prompt_lm or inputs.request.lm)
    first = str(reason).strip().partition("\n")[0]
    return RunIncomplete(f"the model's provider failed: {first}")


def _job(inputs: Inputs, study: Study) -> Job:
    plan = inputs.plan
    return Job(
        study=study,
        student=study.instrument(inputs.program(), plan.start),
        plain=inputs.program,
        lm=inputs.student.lm,
        prompt_lm=inputs.prompter and inputs.prompter.lm,
        teacher_lm=inputs.teacher.lm if inputs.teacher else None,
        labelled=lambda: label_examples(study.parts["train"], study.training.environment, inputs.retriever),
        options=plan.options,
        workers=inputs.workers,
        seed=inputs.request.seed,
        members=plan.members,
        ranges=plan.ranges,
        variant=lambda chosen: study.instrument(inputs.program(chosen), chosen),
    )


@contextmanager
def _quiet(study: Study) -> Iterator[None]:
    """Send what DSPy prints and logs to optimizer.log in the folder; our own talk still reaches the terminal."""
    with study.open_log() as log:
        handler = logging.StreamHandler(log)
        loggers = [logging.getLogger(name) for name in ("dspy", "gepa", "py.warnings")]
        before = [(logger.handlers, logger.propagate) for logger in loggers]
        for logger in loggers:
            logger.handlers, logger.propagate = [handler], False
        logging.captureWarnings(True)
        try:
            with redirect_stdout(log), redirect_stderr(log):
                yield
        finally:
            logging.captureWarnings(False)
            for logger, (handlers, propagate) in zip(loggers, before, strict=True):
                logger.handlers, logger.propagate = handlers, propagate
