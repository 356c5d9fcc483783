"""The plots that a report's runs do not make, each with the commands whose runs would make it."""

import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import environments
from agents import AGENTS
from evals.showing.report.groups import Group, readable
from programs import FLOOR, PROGRAMS, RANKER, READER

SIZES = "50 100 200 400"
SEARCHED = "congress"  # where no run says otherwise: the task of OBLIQ-Bench's figures


@dataclass(frozen=True, slots=True)
class Absent:
    """A plot that is not there, why, and what would make it."""

    title: str
    why: str
    command: str


def propose_plots(groups: Sequence[Group], drawn: Collection[str]) -> list[Absent]:
    """What is missing; `drawn` are the kinds of the plots that are there (evals.showing.report.plots.KINDS)."""
    made = {
        "sweep": _sweep(groups),
        "gap": _gap(groups),
        "complexity": _protocol(groups, "complexity", "Win by the number of conditions", "3"),
        "monotonicity": _protocol(groups, "monotonicity", "Win by conditions met", "4"),
        "instruction": _instruction(groups),
    }
    return [one for kind, one in made.items() if kind not in drawn]


def _sweep(groups: Sequence[Group]) -> Absent:
    command = _over_a_corpus(groups)
    lines = [
        f"for size in {SIZES}; do for kind in union oracle; do",
        f'  {command(RANKER)} --pool "$kind:$size"',
        f'  {command(FLOOR)} --pool "$kind:$size"',
        "done; done",
    ]
    why = "OBLIQ-Bench's Figure 3: a ranker and the bare retriever over pools of at least two sizes."
    return Absent("A metric by the size of the pool", why, "\n".join(lines))


def _gap(groups: Sequence[Group]) -> Absent:
    command = _over_a_corpus(groups)
    why = "OBLIQ-Bench's Figure 1: a search of the corpus, and a ranker over a pool with gold put in."
    return Absent("The best search against the ceiling", why, f"{command(FLOOR)}\n{command(RANKER)} --pool oracle:300")


def _protocol(groups: Sequence[Group], variant: str, title: str, figure: str) -> Absent:
    own = next((group for group in groups if group.suite == "multiconir"), None)
    domains = " ".join(environments.suite("multiconir").tasks)
    command = f"for task in {domains}; do\n  {_command(own, FLOOR, f'$task:{variant}')}\ndone"
    return Absent(title, f"MultiConIR's Figure {figure}: its five domains as :{variant}.", command)


def _instruction(groups: Sequence[Group]) -> Absent:
    group = next((one for one in groups if one.suite == "crumb"), groups[0])
    programs = [run.config["program"] for run in group.runs if not group.system(run).pool]
    program = next((name for name in programs if name != FLOOR and name in PROGRAMS | AGENTS), READER)
    task = next(iter(group.tasks), SEARCHED) if group.suite in environments.SUITES else SEARCHED
    command = _command(group, program, task)
    lines = f'for kind in task generic none; do\n  {command} --instruction "$kind"\ndone'
    why = "CRUMB's Figure 5: the same system with the task's own instruction, and with a generic one or none."
    return Absent("What another instruction changes", why, lines)


def _over_a_corpus(groups: Sequence[Group]) -> Callable[[str], str]:
    """The command of a program on a task of these runs to which --pool can be given; others bring their own pools."""
    group = next((one for one in groups if _searches(one)), None)
    task = group.tasks[0] if group else SEARCHED
    return lambda program: _command(group, program, task)


def _searches(group: Group) -> bool:
    return group.suite in ("obliq", "crumb") or (group.suite, group.variant) in (
        ("birco", "corpus"),
        ("multiconir", ""),
    )


def _quoted(text: str) -> str:
    """A word of a command; names are data, and must not begin a line of their own."""
    return shlex.quote(readable(text))


def _command(group: Group | None, program: str, task: str) -> str:
    """A command on the data of a group; a folder's place is the reader's to fill in."""
    words = ["python", "-m", "evals.run", "--program", _quoted(program)]
    words += ["--task", f'"{task}"' if "$" in task else _quoted(task)]
    if group is None:
        return " ".join(words)
    run = group.runs[0]
    words += ["--data", group.data if group.data in ("mini", "full") else "FOLDER", "--split", _quoted(group.split)]
    if (retriever := run.config["retriever"]["name"]) != "bm25":
        words += ["--retriever", _quoted(retriever)]
    if group.lm not in ("", "offline"):
        words += ["--lm", _quoted(group.lm)]
    return " ".join(words)
