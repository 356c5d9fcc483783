"""`python -m optimizers.compile --program multihop --task congress --optimizer gepa`: prompts, compiled on dev.

The composition root of compiling. It divides dev, evaluates the program as it is, lets a teleprompter work, chooses by
the validation queries, and writes compiled.json with what was learnt beside it. Nothing here reads the test split while
a teleprompter is at work; afterwards it is read to look for its texts in the prompts, and with --held-out to run the
program on it, before and after.
"""

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

# As in evals/run.py: before the libraries that look here are imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")  # DSPy's and GEPA's bars

from environments.base import INSTRUCTIONS
from evals import folder as run_folder
from evals import provenance, setup
from evals.run import configuration as run_configuration
from optimizers.bench import Asked, Bench, asked_for, check_prompts, started_from
from optimizers.held_out import command_line, held_out
from programs import lm
from programs.compiled import prompts_of, write
from tools import retrievers
from tools.command import Parser, positive, run_and_leave, say
from tools.errors import BudgetReached, Halt, RunIncomplete, SextantError, UsageError
from tools.records import usage_json

if TYPE_CHECKING:
    from evals.folder import Config
    from optimizers.job import Found, Job
    from optimizers.leaks import Leak
    from optimizers.objective import Objective
    from optimizers.splits import Training
    from optimizers.study import Candidate, Study
    from programs.compiled import Compiled

EFFORT = ("light", "medium", "heavy")
# The names in optimizers/teleprompters.py, which takes seconds to import.
OPTIMIZERS = (
    "labeled",
    "bootstrap",
    "bootstrap_rs",
    "knn",
    "mipro",
    "copro",
    "simba",
    "gepa",
    "infer_rules",
    "better_together",
    "ensemble",
    "tune",
)


def parser() -> Parser:
    """The command line."""
    made = Parser(
        prog="python -m optimizers.compile",
        description="Compile a program on the dev split: its prompts, or its parameters.",
    )
    add = made.add_argument
    add("--program", metavar="NAME", help=f"one of {', '.join(sorted(setup.SYSTEMS))}")
    add("--task", metavar="TASK", help="a task, e.g. congress or obliq/congress")
    add("--optimizer", required=True, metavar="NAME", help=f"list, or one of {', '.join(OPTIMIZERS)}")
    add("--budget", default="light", choices=EFFORT, help="how much an optimizer tries; -O sets each number by itself")
    add("-O", dest="options", action="append", default=[], metavar="NAME=VALUE", help="an option of the optimizer")
    add(
        "--lm",
        default=os.environ.get("SEXTANT_LM") or "offline",
        metavar="SPEC",
        help="the student: offline, provider/model or MODEL@http://host:port/v1; also $SEXTANT_LM",
    )
    add("--teacher", metavar="SPEC", help="a model that makes demonstrations in the student's place")
    add("--prompt-lm", metavar="SPEC", help="a model that writes instructions; the student where none is named")
    add("--metric", default="", metavar="NAME", help="a metric of the task; nDCG@10 where it has that, else its own")
    add("--price", type=float, default=0.0, metavar="X", help="what a thousand tokens of a query take off its metric")
    add(
        "--train-share",
        type=float,
        default=0.5,
        metavar="X",
        help="share of the dev queries to train on; the others validate",
    )
    add("--split-seed", type=int, default=0, metavar="N", help="which queries train and which validate")
    add("--seed", type=int, default=0, metavar="N", help="random seed of the optimizer")
    add("--of", type=Path, action="append", default=[], metavar="FILE", help="a compiled program, for ensemble")
    add("--range", dest="ranges", action="append", default=[], metavar="NAME=VALUES", help="for tune: 1..6 or a|b|c")
    add("--held-out", action="store_true", help="then run the program on test, as it was and compiled, and compare")
    add("--data", metavar="WHAT", help="mini, full or a folder; full where it is fetched, else mini")
    add("--qrels", default="", metavar="NAME", help="which judgements lead, e.g. gold or pooled")
    add("--instruction", default="task", metavar="KIND", help=f"one of {', '.join(INSTRUCTIONS)}")
    add("--retriever", metavar="SPEC", help="as of evals.run; bm25 where none is named")
    add("--limit", type=positive, metavar="N", help="only N of the dev queries")
    add("-P", dest="parameters", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the program")
    add("--k", type=positive, metavar="N", help="documents in a ranking; the task's own number, mostly 1000")
    setup.add_model_options(made)
    add("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where run folders go; this one to DIR/compiled")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    made.set_defaults(compiled=None, pool=None, query_id=[], split="dev")  # what evals.run has besides
    return made


def command(arguments: argparse.Namespace) -> int:
    """Compile, or go on compiling; print what was learnt."""
    started = time.monotonic()
    if arguments.optimizer == "list":
        from optimizers.show import show_table

        show_table(as_json=arguments.json)
        return 0
    lm.read_keys()
    asked = asked_for(arguments)

    from optimizers.objective import objective
    from optimizers.splits import divide

    training = divide(
        arguments.task,
        arguments.data,
        qrels=arguments.qrels,
        instruction=arguments.instruction,
        limit=arguments.limit,
        seed=arguments.split_seed,
        share=arguments.train_share,
    )
    aim = objective(training.environment, arguments.metric, arguments.price)
    setup.fit(arguments, training.environment, asked.wanted)
    check_prompts(arguments, asked)
    bench = Bench(arguments, asked, training)
    config = _configuration(arguments, asked, training, bench, aim)
    path = _place(arguments, config)
    with run_folder.claim(path, config):
        bench.open(path)
        from optimizers.study import Study

        study = Study(path, training, aim, workers=bench.workers, say=_teller(arguments))
        bench.resume(study)
        _check_parts(study)
        _announce(arguments, training, study)
        problem, forms = _work(arguments, asked, bench, study)
        return _conclude(arguments, asked, bench, study, problem, forms, config, started)


def _check_parts(study: "Study") -> None:
    for part, queries in study.parts.items():
        if not queries:
            raise UsageError(
                f"{study.objective.metric} is the same for all rankings of the {part} queries; "
                "choose another --metric, or another --split-seed"
            )


def _work(
    arguments: argparse.Namespace, asked: Asked, bench: Bench, study: "Study"
) -> tuple[SextantError | None, dict[str, Mapping[str, Any]]]:
    """Evaluate the program before, and what the teleprompter finds. Why it ended early, and forms by candidate."""
    import dspy

    from optimizers.teleprompters import TELEPROMPTERS
    from programs.adapter import Adapter

    job = _job(arguments, asked, bench, study)
    tell = _teller(arguments)
    forms: dict[str, Mapping[str, Any]] = {}
    context = dspy.context(lm=bench.student.lm, adapter=Adapter(), trace=None, num_threads=bench.workers)
    try:
        with context, study.working(bench.student.lm), _quiet(study):
            study.before = study.candidate(job.student, started_from(asked)).digest
            before = study.evaluate(job.student, "validation")
            if warning := study.objective.check_spread([one.metrics[study.objective.metric] or 0.0 for one in before]):
                tell(warning)
            found: Found = TELEPROMPTERS[arguments.optimizer].run(job)
            study.returned = study.evaluate(found.program, "validation")[0].candidate
            forms[study.returned] = found.form
    except Halt as halt:
        return _why(halt.reason, arguments), forms
    except KeyboardInterrupt:
        say(f"what was answered and evaluated is safe in {study.folder}; the same command goes on")
        raise
    except SextantError:
        raise
    except Exception as error:  # noqa: BLE001  # a library's optimizer may raise anything; what was evaluated is kept
        study.log(error)
        first = " ".join(f"{type(error).__name__}: {error}".split())
        return RunIncomplete(f"{arguments.optimizer} broke off: {first}; optimizer.log has more"), forms
    finally:
        bench.student.settle()
    return None, forms


def _why(reason: Exception, arguments: argparse.Namespace) -> SextantError:
    """What stopped a teleprompter, as an error of ours; a bare one is of the model that writes instructions."""
    from programs.faults import fault, refusal

    if isinstance(reason, SextantError):
        return reason
    if fault(reason) == "refused":
        return refusal(reason, arguments.prompt_lm or arguments.lm)
    first = str(reason).strip().partition("\n")[0]
    return RunIncomplete(f"the model's provider failed: {first}")


def _job(arguments: argparse.Namespace, asked: Asked, bench: Bench, study: "Study") -> "Job":
    from optimizers.job import Job
    from optimizers.labels import labelled

    return Job(
        study=study,
        student=study.instrument(bench.program(), started_from(asked)),
        plain=bench.program,
        lm=bench.student.lm,
        prompt_lm=bench.prompter and bench.prompter.lm,
        teacher_lm=bench.teacher.lm if bench.teacher else None,
        labelled=lambda: labelled(study.parts["train"], study.training.environment, bench.retriever),
        options=asked.options,
        workers=bench.workers,
        seed=arguments.seed,
        members=asked.members,
        ranges=asked.ranges,
        variant=lambda chosen: study.instrument(bench.program(chosen), chosen),
    )


@contextmanager
def _quiet(study: "Study") -> Iterator[None]:
    """What DSPy prints and logs goes to optimizer.log in the folder; our own talk still reaches the terminal."""
    import logging

    with (study.folder / "optimizer.log").open("a", encoding="utf-8", errors="backslashreplace") as log:
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


def _teller(arguments: argparse.Namespace) -> Callable[[str], None]:
    terminal = sys.stderr  # which DSPy's bars are kept away from while it works
    return (lambda line: None) if arguments.json else lambda line: say(line, terminal)


def _announce(arguments: argparse.Namespace, training: "Training", study: "Study") -> None:
    if arguments.json:
        return
    train, validation = (len(queries) for queries in study.parts.values())
    say(f"{training.task}: {train} dev queries to train on, {validation} to validate; {arguments.optimizer}")
    if training.left_out:
        ids = ", ".join(one.query_id for one in training.left_out[:3])
        more = ", ..." if len(training.left_out) > 3 else ""
        say(f"left out because they nearly repeat a test query: {len(training.left_out)} ({ids}{more})")
    if training.one_need:
        say("all of these dev queries want the same documents, so a gain on validation says little; ask test")
    if study.candidates:
        say(f"going on: {len(study.candidates)} candidates are known from before")


def _place(arguments: argparse.Namespace, config: "Config") -> Path:
    """RUNS/compiled/<suite>-<task>/<program>-<optimizer>-<lm>-<digest>."""
    named = {**config, "program": f"{arguments.program}-{arguments.optimizer}"}
    path = run_folder.place(arguments.runs / "compiled", named)
    return path.with_name(f"{path.name.rpartition('-')[0]}-{run_folder.digest(config)}")


def _configuration(
    arguments: argparse.Namespace, asked: Asked, training: "Training", bench: Bench, aim: "Objective"
) -> "Config":
    """Everything that determines what is found; budgets, concurrency and places do not."""
    environment = training.environment
    run = run_configuration(arguments, environment, bench.retriever, bench.student, asked.wanted)
    return {
        **run,
        "asked": {"limit": arguments.limit, "query_ids": []},
        "split_digest": training.digest,
        "optimizer": {"name": arguments.optimizer, "seed": arguments.seed, **asked.options},
        # Here judgements decide what is found; of a run they only decide how it is scored.
        "objective": {"is": str(aim), "judgements": environment.headline},
        "teacher": bench.teacher and bench.teacher.settings,
        "prompt_lm": bench.prompter and bench.prompter.settings,
        "members": [member.digest() for member in asked.members],
        "ranges": {name: list(values) for name, values in asked.ranges.items()},
        "tuned": asked.template if asked.ranges else None,
        "code": provenance.code_digest("optimizers", "evals"),  # evals scores: values are kept, not made again
        "versions": provenance.versions("gepa", "optuna"),
    }


def _conclude(
    arguments: argparse.Namespace,
    asked: Asked,
    bench: Bench,
    study: "Study",
    problem: SextantError | None,
    forms: Mapping[str, Mapping[str, Any]],
    config: "Config",
    started: float,
) -> int:
    """Write what is kept, show it, and say why it ended early if it did."""
    from evals import looks
    from optimizers import result
    from optimizers.show import show

    best = result.kept(study)
    if best is None:
        raise _nothing(problem, study)
    compiled = _compiled(arguments, asked, bench, study, best, forms)
    found = result.learnt(study, best, _leaks(arguments, study, compiled), bench.usage(study), str(problem or ""))
    file = study.folder / "compiled.json"
    write(file, compiled)
    found = _about(arguments, asked, bench, study) | {
        "compiled": str(file),
        "take_up": _take_up(arguments, file),
        **found,
    }
    _keep(study, found)
    if problem is None and arguments.held_out and found["kept"] == "compiled":
        try:
            before = asked.parameters(started_from(asked))
            metric = study.objective.metric  # the one that was chosen by, so that there is nothing to correct for
            found["held_out"] = held_out(arguments, before, file, bench.spent(study), bench.budget.ends, metric)
            _keep(study, found)
        except SextantError as error:
            problem = error.saying(f"on the test split: {error}")
    # Not in the file, which is the same however often the command is given.
    found["looks"] = looks.count(config["task"], looks.data_of(config), arguments.program)
    found["seconds"] = round(time.monotonic() - started, 2)
    show(found, as_json=arguments.json)
    if problem:
        raise problem.saying(f"{problem}; the best so far is in {file}, and {_again(problem)} goes on")
    return 0


def _take_up(arguments: argparse.Namespace, file: Path) -> str:
    """The command that runs what was compiled on test."""
    return shlex.join(["python", "-m", "evals.run", *command_line(arguments, ["--compiled", str(file)])])


def _keep(study: "Study", found: Mapping[str, Any]) -> None:
    run_folder.write(study.folder / "learnt.json", json.dumps(found, indent=2) + "\n")


def _nothing(problem: SextantError | None, study: "Study") -> SextantError:
    """Why there is not even the program before to show."""
    done = len(study.of(study.before, "validation"))
    whole = len(study.parts["validation"])
    problem = problem or RunIncomplete("compiling broke off")
    return problem.saying(
        f"{problem}; the program as it is was evaluated on {done} of {whole} validation "
        f"queries, so there is nothing to choose from yet; {_again(problem)} goes on"
    )


def _again(problem: SextantError | None) -> str:
    return "the same command" + (
        " with a larger budget" if isinstance(problem, BudgetReached) and problem.larger else ""
    )


def _compiled(
    arguments: argparse.Namespace,
    asked: Asked,
    bench: Bench,
    study: "Study",
    best: "Candidate",
    forms: Mapping[str, Mapping[str, Any]],
) -> "Compiled":
    from optimizers import result, tune

    chosen = best.parameters if asked.ranges else {}
    retriever = tune.filled(asked.template, chosen) if asked.ranges else arguments.retriever
    return result.compiled(
        best,
        prompts_of(bench.program(chosen)),
        program=arguments.program,
        parameters=asked.parameters(chosen),
        retriever=str(retrievers.check(retriever)),
        form=forms.get(best.digest, {}),
        origin={
            "task": study.training.task,
            "data": study.training.environment.data,
            "data_fingerprint": study.training.environment.fingerprint,
            "split_digest": study.training.digest,
            "instruction": arguments.instruction,
            "optimizer": arguments.optimizer,
            "options": asked.options,
            "seed": arguments.seed,
            "lm": bench.student.settings,
            "teacher": bench.teacher and bench.teacher.settings,
            "prompt_lm": bench.prompter and bench.prompter.settings,
            "metric": study.objective.metric,
            "price": study.objective.price,
            "code": provenance.code_digest("optimizers", "evals"),
            "usage": usage_json(bench.usage(study)),
            "before": result.scored(study, study.before, "validation"),
            "after": result.scored(study, best.digest, "validation"),
            "gain": result.gain(study, best),
        },
    )


def _leaks(arguments: argparse.Namespace, study: "Study", compiled: "Compiled") -> "list[Leak]":
    """Where the prompts repeat training texts or, which would be worse, test texts; looked for once all is chosen."""
    from optimizers.leaks import leaks, passages_of, passages_of_task
    from optimizers.result import pieces

    texts = pieces(compiled)
    test = passages_of_task(arguments.task, arguments.data, qrels=arguments.qrels)
    return [*leaks(texts, passages_of(study.training)), *leaks(texts, test)] if texts else []


def _about(arguments: argparse.Namespace, asked: Asked, bench: Bench, study: "Study") -> dict[str, Any]:
    """What was compiled, with what."""
    environment = study.training.environment
    return {
        "task": study.training.task,
        "data": environment.data,
        "program": arguments.program,
        "optimizer": arguments.optimizer,
        "options": asked.options,
        "retriever": arguments.retriever,
        "lm": bench.student.name,
        "teacher": bench.teacher and bench.teacher.name,
        "prompt_lm": bench.prompter and bench.prompter.name,
        "objective": str(study.objective),
        "queries": {
            **{part: len(queries) for part, queries in study.parts.items()},
            "left_out": [asdict(one) for one in study.training.left_out],
        },
    }


if __name__ == "__main__":
    run_and_leave(parser(), command)
