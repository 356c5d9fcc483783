"""`sextant tasks list | show | fetch | check | search | init | make | audit`: the data of tasks, without
a run.

Prints the results of task_card.py and fetch.py. Only `fetch` uses the network. `make` and `audit` are
done by sextant-construction.
"""

import argparse
import shlex
from pathlib import Path
from typing import Any

from sextant import environments
from sextant.environments import task_card
from sextant.environments.base import COLUMNS, SPLITS
from sextant.tools import plugins, retrievers
from sextant.tools.errors import DataError, UsageError
from sextant.tools.platform.cli import (
    CommandParser,
    add_json_option,
    grade,
    positive,
    print_command,
    print_json,
    print_result,
    print_stderr,
    print_stdout,
    run_and_leave,
)
from sextant.tools.platform.cli_options import RELEVANT_FROM, parse_name_value
from sextant.tools.platform.files import expand_user_path, sextant_home
from sextant.tools.platform.number_format import queries
from sextant.tools.platform.result_table import (
    DefinitionList,
    ResultTable,
    TerminalBlock,
    render_terminal,
    show,
)
from sextant.tools.platform.waiting import announced, each_announced
from sextant.tools.plugins import TASKS, list_names
from sextant.tools.records import Query
from sextant.tools.session import Toolbox

SHOWN = 280  # characters of a text in a card or a search result
NAMES = 12  # of queries in a card
VERBS = {
    "list": "every task, with what is known of it",
    "show": "a task's card",
    "fetch": "download a task's public release",
    "check": "whether a task's data is whole",
    "search": "try a task's search tool by hand",
    "init": "write the benchmark.toml of a folder with data of your own",
    "make": "make a task of documents in files, and of queries and judgements of your own",
    "audit": "what is wrong with tasks, on a page: data, leaks, size, reach",
}


def parser() -> CommandParser:
    """The command line."""
    command_line = CommandParser(
        prog="sextant tasks",
        description="The benchmarks' tasks: what is there, and is it right.",
    )
    verbs = command_line.add_subparsers(
        dest="verb",
        required=True,
        metavar="COMMAND",
    )
    for name, help_text in VERBS.items():
        verb = verbs.add_parser(name, help=help_text, description=help_text)
        add = verb.add_argument
        if name not in ("list", "make", "audit"):
            help_text = "e.g. congress, crumb/legal_qa:document, or a folder with data of your own"
            add("task", metavar="TASK", help=help_text)
        if name in ("show", "check", "search", "init"):
            help_text = f"what your own data calls a column: {', '.join(COLUMNS)}"
            add(
                "--column",
                type=parse_name_value,
                action="append",
                default=[],
                metavar="NAME=COLUMN",
                help=help_text,
            )
        if name == "audit":
            add("tasks", nargs="+", metavar="TASK", help="tasks, or patterns such as 'obliq/*'")
        if name in ("show", "check", "search", "audit"):
            add(
                "--data",
                metavar="WHAT",
                help="mini, full or a folder; full where it is fetched",
            )
        if name in ("show", "check"):
            add("--relevant-from", type=grade, metavar="N", help=RELEVANT_FROM)
        if name not in ("fetch", "init", "make"):
            add_json_option(verb)
    add = verbs.choices["make"].add_argument
    add("folder", type=Path, metavar="FOLDER", help="where the task goes; it must not be there")
    about = "files and folders of documents: Word, PDF, HTML, XML, Markdown, text, tables"
    add("--corpus", type=Path, nargs="+", required=True, metavar="FILES", help=about)
    for name in ("queries", "qrels"):
        about = f"the {name}, in a form that a folder of your own may have"
        add(f"--{name}", type=Path, required=True, metavar="FILE", help=about)
    add = verbs.choices["search"].add_argument
    help_text = (
        f"one of {', '.join(retrievers.RETRIEVERS)}, your own as FILE.py:CLASS, or made of them"
    )
    add(
        "words",
        metavar="WORDS",
        help="what to search for",
    )
    add(
        "--retriever",
        default="bm25",
        metavar="SPEC",
        help=help_text,
    )
    add(
        "--k",
        type=positive,
        default=10,
        metavar="N",
        help="documents to show",
    )
    add(
        "--query-id",
        metavar="ID",
        help="search as for this query: its pool, its exclusions, its gold",
    )
    add(
        "--split",
        default="test",
        metavar="SPLIT",
        help=f"where the query is: {', '.join(SPLITS)}",
    )
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Do one verb; exit code 3 when `check` finds something wrong."""
    verbs = {
        "list": _list,
        "show": _show,
        "fetch": _fetch,
        "check": _check,
        "search": _search,
        "init": _init,
        "make": _make,
        "audit": _audit,
    }
    verbs[arguments.verb](arguments)
    return 0


def _list(arguments: argparse.Namespace) -> None:
    rows = [task_card.task_row(task) for task in environments.tasks()]
    if arguments.json:
        print_json(rows)
        return
    columns = ["documents", "dev", "test", "metric", "data", "paper_documents", "paper_queries"]
    cells = [
        [f"{row['suite']}/{row['task']}", *(_figure(row[column]) for column in columns)]
        for row in rows
    ]
    heads = ["task", *columns[:5], "paper's documents", "queries"]
    names = [heads.index(head) for head in ("task", "metric", "data")]
    lines = [f"{task}: {origin}" for task, origin in list_names({}, TASKS).items()]
    show(
        [
            ResultTable("", heads, cells, names),
            "mini: bundled, invented, not comparable with published figures",
            *lines,
        ]
    )


def _figure(value: str | int | None) -> str:
    """Return a cell of the list: a count, a name, or a dash if it is not known."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else value


def _show(arguments: argparse.Namespace) -> None:
    facts = task_card.task_card(arguments.task, arguments.data, **_options(arguments))
    print_result(facts, _card_text, as_json=arguments.json)


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"columns": dict(arguments.column), "relevant_from": arguments.relevant_from}


def _card_text(facts: dict[str, Any]) -> str:
    here = facts["here"]
    dev = facts["dev_queries"]
    hidden = f" and {len(dev) - NAMES} more (--json has all)" if len(dev) > NAMES else ""
    rows = {
        "asked": facts["asked"],
        "here": f"{here['data']}: {task_card.describe_sizes(here)}, "
        f"{here['relevant_per_query']:.1f} relevant a query",
        "protocol": facts["protocol"],
        "metrics": f"{', '.join(facts['metrics'])}; the headline is {facts['metric']}",
        "judgements": f"{', '.join(facts['judgements'])}; a document is {facts['level']}",
        "dev split": f"{facts['dev_split']}; here: {', '.join(dev[:NAMES]) or 'none'}{hidden}",
        **facts["hints"],
    }
    if "release" in facts:  # else it is the user's own
        release = facts["release"]
        paper = facts["paper"]
        rows |= {
            "paper": f"{paper['title']}: {_figure(paper['documents'])} documents, "
            f"{queries(paper['queries'])}",
            "variants": ", ".join(f":{variant}" for variant in facts["variants"]) or "none",
            "licence": facts["licence"],
            "release": f"{release['of']} at {release['revision']} ({release['by']})",
        }
    lines: list[TerminalBlock] = [facts["task"], "", DefinitionList(list(rows.items()))]
    for number, sample in enumerate(facts["samples"], start=1):
        lines += ["", f"sample {number}: query {sample['query_id']}", _quote(sample["query"])]
        for label in ("relevant", "irrelevant"):
            if shown := sample[label]:
                lines += [f"  {label}: {shown['doc_id']}", _quote(shown["text"])]
    return render_terminal(lines)


def _quote(text: str) -> str:
    flat = " ".join(text.split())
    cut = flat if len(flat) <= SHOWN else flat[:SHOWN].rsplit(" ", 1)[0] + " ..."
    return f"    {cut}"


def _fetch(arguments: argparse.Namespace) -> None:
    from sextant.environments.fetch import fetch  # httpx and rich, which --help does without

    if environments.resolve(arguments.task).startswith("own/"):
        raise UsageError(
            f"{arguments.task} is data of your own; only tasks of the benchmarks can be fetched"
        )
    print_stdout(f"{fetch(arguments.task, say=print_stderr)}\n")


def _check(arguments: argparse.Namespace) -> None:
    findings = []
    checks = task_card.run_checks(arguments.task, arguments.data, **_options(arguments))
    for finding in each_announced(f"checking {arguments.task}", checks):
        findings.append(finding)
        if not arguments.json:
            state = "ok     " if finding.fine else "WRONG  "
            is_left_out = finding.what == "left out"
            show([f"{'' if is_left_out else state}{finding.what}: {finding.said}"])
    if arguments.json:
        print_json([finding._asdict() for finding in findings])
    if wrong := [finding for finding in findings if not finding.fine]:
        raise DataError(f"{wrong[0].what}: {wrong[0].said}")


def _search(arguments: argparse.Namespace) -> None:
    environments.locate_task(arguments.task, arguments.data)
    retrievers.check_kinds(arguments.retriever)
    spec = retrievers.canonicalize(arguments.retriever)
    retrievers.validate(spec)
    if not arguments.words.strip():
        raise UsageError("there are no words to search for")
    with announced(f"loading {arguments.task}"):
        environment = environments.load(
            arguments.task, arguments.data, arguments.split, columns=dict(arguments.column)
        )
    query = Query("by-hand", arguments.words)
    grades = {}
    if arguments.query_id is not None:
        [query] = environment.asking(query_ids=[arguments.query_id]).queries
        grades = dict(environment.qrels[query.query_id])
    if retrievers.needs_pool(spec) and query.candidates is None:
        raise UsageError(f"{spec} ranks candidate pools; give --query-id, on a task that has them")
    unit = environment.judgements[environment.headline].unit_of or str
    with announced(f"searching {arguments.task} with {spec}"):
        retriever = retrievers.build(spec, environment.documents, sextant_home())
        session = Toolbox(environment.documents, retriever).open(query)
        hits = session.search(arguments.words, arguments.k)
    rows = [
        {
            "rank": rank,
            "doc_id": hit.doc_id,
            "score": hit.score,
            "grade": grades.get(unit(hit.doc_id)),
            "text": hit.text,
        }
        for rank, hit in enumerate(hits, start=1)
    ]
    print_result(rows, _hits_text, as_json=arguments.json)


def _hits_text(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        judged = "" if row["grade"] is None else f"  judged {row['grade']:g}"
        lines.append(f"{row['rank']:>3}  {row['doc_id']}  {row['score']:.3f}{judged}")
        lines.append(_quote(row["text"]))
    return render_terminal(lines or ["nothing found"])


def _init(arguments: argparse.Namespace) -> None:
    from sextant.environments import custom  # Pydantic, as above

    folder = expand_user_path(arguments.task)
    if (path := folder / custom.FILE).exists():
        raise UsageError(f"{path} is there already; edit it, or move it away")
    if not folder.is_dir():
        raise DataError(f"there is no folder {arguments.task}; give one with data of your own")
    text, findings = custom.draft_benchmark_toml(folder.resolve(), dict(arguments.column))
    path.write_text(text, encoding="utf-8")
    for line in (*findings, f"wrote {path}; every line of it may be changed or left out"):
        show([line])
    _say_next(arguments.task)


def _make(arguments: argparse.Namespace) -> None:
    construction = plugins.load_command("build", "sextant tasks make")
    with announced(f"making {arguments.folder}"):
        lines = construction.make_task(
            arguments.folder, arguments.corpus, arguments.queries, arguments.qrels
        )
    show([*lines, f"wrote {arguments.folder}"])
    _say_next(str(arguments.folder))


def _audit(arguments: argparse.Namespace) -> None:
    construction = plugins.load_command("build", "sextant tasks audit")
    with announced("auditing"):
        result, blocks = construction.audit(arguments.tasks, arguments.data)
    if arguments.json:
        print_json(result)
    else:
        show(blocks)


def _say_next(task: str) -> None:
    for command in ("tasks check", "run --program multihop --task"):
        print_command(" ", f"sextant {command} {shlex.quote(task)}")


if __name__ == "__main__":
    run_and_leave(parser(), command)
