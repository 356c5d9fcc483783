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
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

# As in evals/run.py: before the libraries that look here are imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")  # DSPy's and GEPA's bars

from environments.base import INSTRUCTIONS
from evals import folder as run_folder
from evals.run import configuration as run_configuration
from evals.running import provenance, resolve
from optimizers.held_out import command_line, held_out
from optimizers.inputs import Bench, asked_for, check_prompts, started_from
from programs.parts.compiled import prompts_of, write
from tools import retrievers
from tools.console.command import Parser, positive, run_and_leave
from tools.errors import BudgetReached, RunIncomplete, SextantError, UsageError
from tools.models import lm
from tools.records import usage_json

if TYPE_CHECKING:
    from evals.folder import Config
    from optimizers.evaluations import Candidate, Study
    from optimizers.running import Ended
    from optimizers.training.leaks import Leak
    from optimizers.training.objective import Objective
    from programs.parts.compiled import Compiled

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
    add("--program", metavar="NAME", help=f"one of {', '.join(sorted(resolve.SYSTEMS))}")
    add("--task", metavar="TASK", help="a task, e.g. congress or obliq/congress")
    _add_optimizing(made)
    add("--held-out", action="store_true", help="then run the program on test, as it was and compiled, and compare")
    add("--data", metavar="WHAT", help="mini, full or a folder; full where it is fetched, else mini")
    add("--qrels", default="", metavar="NAME", help="which judgements lead, e.g. gold or pooled")
    add("--instruction", default="task", metavar="KIND", help=f"one of {', '.join(INSTRUCTIONS)}")
    add("--retriever", metavar="SPEC", help="as of evals.run; bm25 where none is named")
    add("--limit", type=positive, metavar="N", help="only N of the dev queries")
    add("-P", dest="parameters", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the program")
    add("--k", type=positive, metavar="N", help="documents in a ranking; the task's own number, mostly 1000")
    resolve.add_model_options(made)
    add("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where run folders go; this one to DIR/compiled")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    made.set_defaults(compiled=None, pool=None, query_id=[], split="dev")  # what evals.run has besides
    return made


def _add_optimizing(made: Parser) -> None:
    """The options of the optimizer: which, with which models, by what it chooses."""
    add = made.add_argument
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
    share = "share of the dev queries to train on; the others validate"
    add("--train-share", type=float, default=0.5, metavar="X", help=share)
    add("--split-seed", type=int, default=0, metavar="N", help="which queries train and which validate")
    add("--seed", type=int, default=0, metavar="N", help="random seed of the optimizer")
    add("--of", type=Path, action="append", default=[], metavar="FILE", help="a compiled program, for ensemble")
    add("--range", dest="ranges", action="append", default=[], metavar="NAME=VALUES", help="for tune: 1..6 or a|b|c")


def command(arguments: argparse.Namespace) -> int:
    """Compile, or go on compiling; print what was learnt."""
    started = time.monotonic()
    if arguments.optimizer == "list":
        from optimizers.show import show_table

        show_table(as_json=arguments.json)
        return 0
    lm.read_keys()
    bench, aim = _prepared(arguments)
    config = _configuration(bench, aim)
    path = _place(arguments, config)
    if not (path / "evaluations.jsonl").exists():
        for spec in filter(None, (arguments.lm, arguments.teacher, arguments.prompt_lm)):
            lm.check_key(spec)
    with run_folder.claim(path, config):
        bench.open(path)
        from optimizers.evaluations import Study
        from optimizers.running import compile_with

        study = Study(
            path,
            bench.training,
            aim,
            workers=bench.workers,
            query_seconds=bench.student.query_seconds,
            say=bench.tell,
        )
        bench.resume(study)
        _check_parts(study)
        _announce(bench, study)
        found, problem = _concluded(bench, study, compile_with(bench, study))
        return _show(found, problem, config, started, arguments)


def _prepared(arguments: argparse.Namespace) -> "tuple[Bench, Objective]":
    """What it is compiled with, and by what. All that cannot be is refused here."""
    from optimizers.training.objective import objective
    from optimizers.training.splits import divide

    asked = asked_for(arguments)
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
    resolve.fit(arguments, training.environment, asked.wanted)
    check_prompts(arguments, asked)
    return Bench(arguments, asked, training), aim


def _check_parts(study: "Study") -> None:
    for part, queries in study.parts.items():
        if not queries:
            raise UsageError(
                f"{study.objective.metric} is the same for all rankings of the {part} queries; "
                "choose another --metric, or another --split-seed"
            )


def _announce(bench: Bench, study: "Study") -> None:
    training = study.training
    train, validation = (len(queries) for queries in study.parts.values())
    bench.tell(
        f"{training.task}: {train} dev queries to train on, {validation} to validate; {bench.arguments.optimizer}"
    )
    if training.left_out:
        ids = ", ".join(one.query_id for one in training.left_out[:3])
        more = ", ..." if len(training.left_out) > 3 else ""
        bench.tell(f"left out because they nearly repeat a test query: {len(training.left_out)} ({ids}{more})")
    if training.one_need:
        bench.tell("all of these dev queries want the same documents, so a gain on validation says little; ask test")
    if study.candidates:
        bench.tell(f"going on: {len(study.candidates)} candidates are known from before")


def _place(arguments: argparse.Namespace, config: "Config") -> Path:
    """RUNS/compiled/<suite>-<task>/<program>-<optimizer>-<lm>-<digest>."""
    named = {**config, "program": f"{arguments.program}-{arguments.optimizer}"}
    path = run_folder.place(arguments.runs / "compiled", named)
    return path.with_name(f"{path.name.rpartition('-')[0]}-{run_folder.digest(config)}")


def _configuration(bench: Bench, aim: "Objective") -> "Config":
    """Everything that determines what is found; budgets, concurrency and places do not."""
    arguments, asked, environment = bench.arguments, bench.asked, bench.training.environment
    run = run_configuration(arguments, environment, bench.retriever, bench.student, asked.wanted)
    return {
        **run,
        "asked": {"limit": arguments.limit, "query_ids": []},
        "split_digest": bench.training.digest,
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


def _concluded(bench: Bench, study: "Study", ended: "Ended") -> tuple[dict[str, Any], SextantError | None]:
    """Write what is kept, and hold it out if that is asked for. What was learnt, and why it ended early if it did."""
    from optimizers import result

    best = result.kept(study)
    if best is None:
        raise _nothing(ended.problem, study)
    compiled = _compiled(bench, study, best, ended.forms)
    learnt = result.learnt(study, best, _leaks(bench, study, compiled), bench.usage(study), str(ended.problem or ""))
    file = study.folder / "compiled.json"
    write(file, compiled)
    placed = {"compiled": str(file), "take_up": _take_up(bench.arguments, file)}
    found = _about(bench, study) | placed | learnt
    _keep(study, found)
    problem = ended.problem
    if problem is None and bench.arguments.held_out and found["kept"] == "compiled":
        try:
            found["held_out"] = _held_out(bench, study, file)
            _keep(study, found)
        except SextantError as error:
            problem = error.saying(f"on the test split: {error}")
    return found, problem


def _held_out(bench: Bench, study: "Study", file: Path) -> dict[str, Any]:
    before = bench.asked.parameters(started_from(bench.asked))
    metric = study.objective.metric  # the one that was chosen by, so that there is nothing to correct for
    return held_out(bench.arguments, before, file, bench.spent(study), bench.budget.ends, metric)


def _show(
    found: dict[str, Any],
    problem: SextantError | None,
    config: "Config",
    started: float,
    arguments: argparse.Namespace,
) -> int:
    """Print what was learnt, and say why it ended early if it did."""
    from evals.measuring import split_uses
    from optimizers.show import show

    # Not in the file, which is the same however often the command is given.
    found["looks"] = split_uses.count(config["task"], split_uses.data_of(config), arguments.program)
    found["seconds"] = round(time.monotonic() - started, 2)
    show(found, as_json=arguments.json)
    if problem:
        file, again = found["compiled"], _again(problem)
        raise problem.saying(f"{problem}; the best so far is in {file}, and {again} goes on")
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


def _compiled(bench: Bench, study: "Study", best: "Candidate", forms: Mapping[str, Mapping[str, Any]]) -> "Compiled":
    from optimizers import result, tune

    arguments, asked = bench.arguments, bench.asked
    chosen = best.parameters if asked.ranges else {}
    retriever = tune.filled(asked.template, chosen) if asked.ranges else arguments.retriever
    return result.compiled(
        best,
        prompts_of(bench.program(chosen)),
        program=arguments.program,
        parameters=asked.parameters(chosen),
        retriever=str(retrievers.check(retriever)),
        form=forms.get(best.digest, {}),
        origin=_origin(bench, study, best),
    )


def _origin(bench: Bench, study: "Study", best: "Candidate") -> dict[str, Any]:
    """Where a compiled program comes from, and what it was worth there."""
    from optimizers import result

    arguments, training = bench.arguments, study.training
    return {
        "task": training.task,
        "data": training.environment.data,
        "data_fingerprint": training.environment.fingerprint,
        "split_digest": training.digest,
        "instruction": arguments.instruction,
        "optimizer": arguments.optimizer,
        "options": bench.asked.options,
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
    }


def _leaks(bench: Bench, study: "Study", compiled: "Compiled") -> "list[Leak]":
    """Where the prompts repeat training texts or, which would be worse, test texts; looked for once all is chosen."""
    from optimizers.result import pieces
    from optimizers.training.leaks import leaks, passages_of, passages_of_task

    texts = pieces(compiled)
    test = passages_of_task(bench.arguments.task, bench.arguments.data, qrels=bench.arguments.qrels)
    return [*leaks(texts, passages_of(study.training)), *leaks(texts, test)] if texts else []


def _about(bench: Bench, study: "Study") -> dict[str, Any]:
    """What was compiled, with what."""
    arguments = bench.arguments
    return {
        "task": study.training.task,
        "data": study.training.environment.data,
        "program": arguments.program,
        "optimizer": arguments.optimizer,
        "options": bench.asked.options,
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
