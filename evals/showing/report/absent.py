"""The plots that a report's runs do not make, each with the commands whose runs would make it."""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import environments
from agents import AGENTS
from evals.showing.report.groups import Group, readable
from programs import FLOOR, PROGRAMS, RANKER, READER

SEARCHED = "congress"  # where no run says otherwise: the task of OBLIQ-Bench's figures


@dataclass(frozen=True, slots=True)
class Absent:
    """A plot that is not there, why, and what would make it."""

    title: str
    why: str
    command: str


def propose_plots(groups: Sequence[Group], drawn: Collection[str]) -> list[Absent]:
    """What is missing; `drawn` are the kinds of the plots that are there (drawing.KINDS)."""
    searching = next((group for group in groups if _searches(group)), None)
    over = searching.tasks[0] if searching else SEARCHED
    floor, ranker = (_command(searching, program, over) for program in (FLOOR, RANKER))
    domains = " ".join(environments.suite("multiconir").tasks)
    own = next((group for group in groups if group.suite == "multiconir"), None)
    proposals = {
        "sweep": Absent(
            "A metric by the size of the pool",
            "OBLIQ-Bench's Figure 3: a ranker and the bare retriever over pools of at least two sizes.",
            f'for size in 50 100 200 400; do for kind in union oracle; do\n  {ranker} --pool "$kind:$size"\n'
            f'  {floor} --pool "$kind:$size"\ndone; done',
        ),
        "gap": Absent(
            "The best search against the ceiling",
            "OBLIQ-Bench's Figure 1: a search of the corpus, and a ranker over a pool with gold put in.",
            f"{floor}\n{ranker} --pool oracle:300",
        ),
        **{
            variant: Absent(
                title,
                f"MultiConIR's Figure {number}: its five domains as :{variant}.",
                f"for task in {domains}; do\n  {_command(own, FLOOR, f'$task:{variant}')}\ndone",
            )
            for variant, title, number in (
                ("complexity", "Win by the number of conditions", "3"),
                ("monotonicity", "Win by conditions met", "4"),
            )
        },
        "instruction": Absent(
            "What another instruction changes",
            "CRUMB's Figure 5: the same system with the task's own instruction, and with a generic one or none.",
            f'for kind in task generic none; do\n  {_instructed(groups)} --instruction "$kind"\ndone',
        ),
    }
    return [one for kind, one in proposals.items() if kind not in drawn]


def _searches(group: Group) -> bool:
    """Whether --pool can be given for its tasks; other protocols bring pools of their own."""
    whole = (("birco", "corpus"), ("multiconir", ""))
    return group.suite in ("obliq", "crumb") or (group.suite, group.variant) in whole


def _instructed(groups: Sequence[Group]) -> str:
    """The command of a program that was run, on a task of CRUMB where there is one."""
    group = next((one for one in groups if one.suite == "crumb"), groups[0])
    programs = [run.config["program"] for run in group.runs if not group.system(run).pool]
    program = next((name for name in programs if name != FLOOR and name in PROGRAMS | AGENTS), READER)
    return _command(group, program, group.tasks[0] if group.suite in environments.SUITES else SEARCHED)


def _command(group: Group | None, program: str, task: str) -> str:
    """A command on the data of a group; a folder's place is the reader's to fill in."""
    words = ["--program", program, "--task", task]
    if group is not None:
        retriever = group.runs[0].config["retriever"]["name"]
        words += ["--data", group.data if group.data in ("mini", "full") else "FOLDER", "--split", group.split]
        words += ["--retriever", retriever] if retriever != "bm25" else []
        words += ["--lm", group.lm] if group.lm not in ("", "offline") else []
    # Names are data, and must not begin a line of their own.
    quoted = [f'"{word}"' if word.startswith("$task:") else shlex.quote(readable(word)) for word in words]
    return f"python -m evals.run {' '.join(quoted)}"
