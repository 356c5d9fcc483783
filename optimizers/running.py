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
from typing import Any

import dspy

from evals.running.runner import GRACE, TICK
from optimizers.inputs import Inputs
from optimizers.request import CompileRequest
from optimizers.study import Job, Study
from optimizers.training.demonstrations import label_examples
from tools.console import check_interrupts, say
from tools.errors import Halt, RunIncomplete, SextantError
from tools.models.adapter import Adapter
from tools.models.faults import fault, refusal
from tools.models.spec import hide_keys


@dataclass(slots=True)
class Ended:
    """How the work of a teleprompter ended."""

    problem: SextantError | None = None  # why before its time
    forms: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # by candidate, of what is more than prompts


def compile_with(inputs: Inputs, study: Study) -> Ended:
    """Evaluate the program before, and what the teleprompter finds. KeyboardInterrupt once all in flight is booked."""
    ended = Ended()
    context = dspy.context(lm=inputs.student.lm, adapter=Adapter(), trace=None, num_threads=inputs.request.workers)

    def halt() -> None:
        study.stop()
        inputs.terms.gate.halt()

    try:
        with context, study.working(inputs.student.lm), _quiet(study):
            _run_interruptible(lambda: _work(inputs, study, ended.forms), halt)
    except Halt as halted:
        ended.problem = _why(halted.reason, inputs.request)
    except KeyboardInterrupt:
        say(f"what was answered and evaluated is safe in {study.folder}; the same command goes on")
        raise
    except SextantError:
        raise
    except Exception as error:  # noqa: BLE001  # a library's optimizer may raise anything; what was evaluated is kept
        study.log(error)
        first = hide_keys(" ".join(f"{type(error).__name__}: {error}".split()))
        ended.problem = RunIncomplete(f"{inputs.request.optimizer} broke off: {first}; optimizer.log has more")
    return ended


def _work(inputs: Inputs, study: Study, forms: dict[str, Mapping[str, Any]]) -> None:
    """Do all that sends anything. What it books is on disk when it ends, however it does."""
    plan = inputs.plan
    try:
        job = Job(
            study=study,
            student=study.instrument(inputs.program(), plan.start),
            plain=inputs.program,
            lm=inputs.student.lm,
            prompt_lm=inputs.prompter and inputs.prompter.lm,
            teacher_lm=inputs.teacher and inputs.teacher.lm,
            labelled=lambda: label_examples(study.parts["train"], study.training.environment, inputs.retriever),
            options=plan.options,
            workers=inputs.request.workers,
            seed=inputs.request.seed,
            members=plan.members,
            ranges=plan.ranges,
            variant=lambda chosen: study.instrument(inputs.program(chosen), chosen),
        )
        study.before = study.candidate(job.student, plan.start).digest
        before = study.evaluate(job.student, "validation")
        if warning := study.objective.check_spread([one.metrics[study.objective.metric] or 0.0 for one in before]):
            inputs.tell(warning)
        found = plan.optimizer.run(job)
        study.returned = study.evaluate(found.program, "validation")[0].candidate
        forms[study.returned] = found.form
    finally:
        inputs.terms.settle()


def _why(reason: Exception, request: CompileRequest) -> SextantError:
    """Return what stopped a teleprompter, as an error of ours; a bare one is of the model that writes instructions."""
    if isinstance(reason, SextantError):
        return reason
    if fault(reason) == "refused":
        return refusal(reason, request.prompt_lm or request.lm)
    first = str(reason).strip().partition("\n")[0]
    return RunIncomplete(f"the model's provider failed: {first}")


def _run_interruptible(work: Callable[[], None], halt: Callable[[], None]) -> None:
    """Run `work` in a thread of its own: Ctrl-C breaks off no model call half-way.

    The first one calls `halt`. What is in flight is then waited for, GRACE seconds at most, so that it is not paid for
    in vain. At the second one nothing is waited for: the thread is a daemon, and in no pool, which would wait for it.
    """
    done = Future[None]()

    def begin() -> None:
        try:
            work()
            done.set_result(None)
        except BaseException as error:  # noqa: BLE001  # raised again by who waits
            done.set_exception(error)

    def wait_for(seconds: float = math.inf) -> None:
        until = time.monotonic() + seconds
        while not done.done() and time.monotonic() < until:
            check_interrupts()
            wait([done], TICK)

    threading.Thread(target=contextvars.copy_context().run, args=[begin], daemon=True).start()
    try:
        wait_for()
        done.result()
    except KeyboardInterrupt:
        halt()
        wait_for(GRACE)
        raise


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
