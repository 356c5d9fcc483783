"""What each program and agent asks a model, for each of the 23 tasks, against a table of the papers' facts.

Fields, their order, and limits are compared, not wording. A difference is allowed if the line under the tables of such
a run says it. Programs that no paper has are compared with a table of their own and with the bounds in
docs/decisions/programs.md. With `pytest -s`, the requests are printed.
"""

import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import dspy
import pytest

from sextant import environments
from sextant.agents import AGENTS
from sextant.evals.papers.sections import sections
from sextant.evals.running.request import (
    apply_hints,
    find_program,
    find_retrievers,
    parse_parameters,
)
from sextant.programs import DIFFERS, PROGRAMS, describe_deviations
from sextant.tools.corpus import Corpus
from sextant.tools.models import offline_engine
from sextant.tools.models.language_model import LanguageModel
from sextant.tools.models.prompting import Adapter, max_answer_tokens
from sextant.tools.models.run_resources import RunResources
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox

TASKS = environments.tasks()
SMALL = 6  # documents of a pool, which is enough to see a call


class Call(NamedTuple):
    """A call as a paper prints it: fields by the names that FIELDS gives ours, in order."""

    inputs: str
    outputs: str


# Ours -> the papers'. The task is in the papers' instructions, as is the number of guesses.
FIELDS = {"description": "query", "rewritten": "search", "assessment": "thinking", "work": "work"}
FIELDS |= {"observations": "notes"}
FIELDS |= {"description_insight": "insight of query", "passage_insights": "insights of passages"}
IN_INSTRUCTIONS = {"objective", "most"}

# Program, with parameters that are not its defaults -> the tasks for which its paper prints a prompt -> its calls.
# OBLIQ-Bench, appendix D; BIRCO, figures 12 to 14 and 19 to 23; CRUMB, figures 7 to 9.
SEARCHED = Call("query notes hop", "search rationale")
READ = Call("query notes passages", "selected notes summary")
READ_IN_HOP = Call("query notes passages hop", "selected notes summary")
RANKED = Call("query passages", "ranked reason")
JUDGED = Call("query passages", "thinking quotes score")
PAPERS = {
    "rewrite": {
        "obliq/twitter": [Call("query", "search")],
        "obliq/writing": [Call("query", "search rationale")],
        "obliq/congress": [Call("query", "search rationale")],
    },
    "multihop hops=1": {
        "obliq/writing": [SEARCHED, READ],
        "obliq/congress": [SEARCHED, READ_IN_HOP],
    },
    "multihop hops=1 rerank=3": {
        "obliq/writing": [SEARCHED, READ, RANKED],
        "obliq/congress": [SEARCHED, READ_IN_HOP, RANKED],
    },
    "notes hops=1": {
        "obliq/writing": [SEARCHED, READ],
        "obliq/congress": [SEARCHED, READ_IN_HOP],
    },
    "tournament": {"obliq/math": [RANKED], "obliq/writing": [RANKED]},
    "tournament think=true": {
        "obliq/math": [
            Call("query passages", "insight of query insights of passages ranked reason")
        ]
    },
    "rank": {"": [Call("query passages", "ranked")]},
    "score": {"": [JUDGED]},
    "score think=false": {"": [Call("query passages", "score")]},
    "reason": {"": [Call("query passages", "criteria thinking quotes score")]},
    "subtask requirements=1": {"": [Call("passages requirement query", "met")]},
    "query_to_answer": {"": [Call("query", "analysis brainstorming answer")]},
    "query_to_doc": {"": [Call("query", "analysis brainstorming document")]},
    "reasoning_trace": {"": [Call("query", "problem contents answer")]},
    "closed_book": {
        "birco/doris_mae": [Call("query", "guess")],
        "birco/arguana": [Call("query", "guess")],
        "birco/clinical_trial": [Call("query", "guess")],
        "birco/whatsthatbook": [Call("query", "guesses")],
        "birco/relic": [Call("query work", "guesses")],
    },
}
# What differs -> a text in the line under the tables that says so.
SAID = {
    "no prompt": "no prompt",
    "lacks hop": "not told which hop",
    "adds kind": "the kind of document is in a field of its own",
    "adds document": "an example document is asked for",
    "lacks met": "a score from 0 to 10",
    "adds score": "a score from 0 to 10",
    "calls apart": "criteria are a call of their own",
    "adds requirements": "no prompt for listing requirements",
}
# Numbers of the papers that are defaults: OBLIQ-Bench, section 5 and appendix C; RankGPT; BIRCO, appendix L.5.
LIMITS = {
    "multihop": {"hops": 4, "per_hop": 25},
    "notes": {"hops": 4, "per_hop": 25},
    "tournament": {"batch": 20, "promote": 4},
    "rank": {"window": 20, "step": 10},
    "closed_book": {"guesses": 5},
    "subtask": {"requirements": 0},
}
CRUMB_TOKENS = 8192  # section 4.4


class Own(NamedTuple):
    """A program that no benchmark paper has: its calls by signature, and its bounds as the documentation has them."""

    calls: list[Call]
    row: str  # of the table of docs/decisions/programs.md: calls, documents shown
    most_calls: Callable[[Any], int]
    most_shown: Callable[[Any], int]


PLAN = Call("query", "plan")
READ_FOR_QUESTION = Call("query notes question passages", "selected notes")
REFLECT = Call("query notes earlier_searches selected_so_far", "missing further")
WITHOUT_A_PAPER = {
    "decompose": Own(
        calls=[Call("query", "subqueries")],
        row="1 | 0",
        most_calls=lambda values: 1,
        most_shown=lambda values: 0,
    ),
    "planner": Own(
        calls=[PLAN, READ_FOR_QUESTION, REFLECT],
        row="≤ rounds · (parts + 1) | ≤ rounds · parts · per_search",
        most_calls=lambda values: values["rounds"] * (values["parts"] + 1),
        most_shown=lambda values: values["rounds"] * values["parts"] * values["per_search"],
    ),
    "react": Own(
        calls=[Call("query tools history steps_left", "thought calls")],
        row="≤ steps | per_search a search (snippets), 1 a reading",
        most_calls=lambda values: values["steps"],
        most_shown=lambda values: values["steps"] * values["per_search"],
    ),
    "grep": Own(
        calls=[Call("query tools history steps_left", "thought calls")],
        row="≤ steps | 10 lines a grep, 1 a reading",
        most_calls=lambda values: values["steps"],
        most_shown=lambda values: 10 * values["steps"],
    ),
    "pages": Own(
        calls=[Call("query tools history steps_left", "thought calls")],
        row="≤ steps | per_search a search or page (snippets), 1 a reading",
        most_calls=lambda values: values["steps"],
        most_shown=lambda values: values["steps"] * values["per_search"],
    ),
    "verifier": Own(
        calls=[
            Call("query learned earlier_searches", "searches"),
            Call("query passages", "judgements"),
            Call("query learned passages", "common"),
        ],
        row="≤ rounds · (⌈verify / batch⌉ + 2) − 1 | ≤ rounds · verify + (rounds − 1) · batch",
        most_calls=lambda values: (
            values["rounds"] * (math.ceil(values["verify"] / values["batch"]) + 2) - 1
        ),
        most_shown=lambda values: (
            values["rounds"] * values["verify"] + (values["rounds"] - 1) * values["batch"]
        ),
    ),
}
DOCUMENTED = (Path(__file__).parents[3] / "docs/decisions/programs.md").read_text()


class Request(NamedTuple):
    """A call of ours: its fields by the papers' names, and all of its text."""

    inputs: list[str]
    outputs: list[str]
    text: str


def read_request(text):
    """The fields of a prompt, by the papers' names."""
    listed, _, rest = text.partition("Your output fields are:")
    outputs = rest.partition("All interactions")[0]
    names = [re.findall(r"^\d+\. `(\w+)`", part, re.MULTILINE) for part in (listed, outputs)]
    inputs, outputs = ([FIELDS.get(name, name) for name in part] for part in names)
    if outputs[-1:] == ["ranked"] and '"reason"' in text:
        outputs.append("reason")  # of the rows of `ranked`
    return Request([name for name in inputs if name not in IN_INSTRUCTIONS], outputs, text)


class Recorder(offline_engine.OfflineEngine):
    """The engine without a model, which keeps each request."""

    def __init__(self, statistics, requests):
        super().__init__(statistics)
        self.requests = requests

    def complete(self, request):
        texts = [request.system or "", *(message.text or "" for message in request.messages)]
        self.requests.append(read_request("\n\n".join(map(str, texts))))
        return super().complete(request)


@pytest.fixture(scope="module", params=TASKS)
def task(request):
    """A task of the miniatures with one query, over few documents."""
    environment = environments.load(request.param, "mini", "all")
    query = environment.queries[0]
    found = BM25(environment.documents).search(query.text, SMALL).doc_ids
    doc_ids = [*(query.candidates or ()), *found, *environment.documents][:SMALL]
    documents = Corpus(environment.documents[doc_id] for doc_id in dict.fromkeys(doc_ids))
    pool = query.candidates and frozenset(documents)
    return replace(environment, documents=documents, queries=(replace(query, candidates=pool),))


def ask(program, task):
    """The requests of a program about the query of a task, its parameters, and its predictors."""
    name, *settings = program.split()
    constructor = find_program(name)
    given = dict(setting.split("=") for setting in settings)
    values = apply_hints(parse_parameters(name, constructor, given), given, task.hints)
    index = BM25(task.documents)
    toolbox = Toolbox(task.documents, index, others=dict.fromkeys(find_retrievers(values), index))
    system, requests = constructor(toolbox, **values), []
    engine = Recorder(index.statistics, requests)
    model = LanguageModel(offline_engine.VERSION, RunResources(), free=True, engine=engine)
    with dspy.context(lm=model, adapter=Adapter(), trace=[]):
        system(query=task.queries[0])
    for request in requests:
        sys.stdout.write(f"--- {program}, {task.task}\n{request.text}\n")
    return requests, values, system


def describe(program, task, values):
    """The line under the tables of such a run."""
    name = program.split()[0]
    config = {"program": name, "task": task.task, "parameters": values}
    config |= {"retriever": {"name": "bm25"}, "lm": {"name": "offline"}, "instruction": "paper"}
    return describe_deviations(config, has_candidates=task.queries[0].candidates is not None)


def kinds_of_call(requests):
    """The requests of different signatures, each once, in order."""
    return list({(*one.inputs, "->", *one.outputs): one for one in requests}.values())


def compare(calls, requests):
    """In which respects the requests differ from a paper's calls."""
    differences = set()
    if len(requests) > len(calls):
        # A call that comes first makes what the paper's one call makes as well, or what its input is.
        first, requests = requests[: -len(calls)], requests[-len(calls) :]
        made = {name for one in first for name in one.outputs}
        wanted = {name for call in calls for name in call.outputs.split()}
        differences |= {"calls apart"} if made & wanted else {f"adds {name}" for name in made}
        requests = [
            one._replace(
                inputs=[name for name in one.inputs if name not in made & wanted],
                outputs=[name for name in made if name in wanted] + one.outputs,
            )
            for one in requests
        ]
    for call, request in zip(calls, requests, strict=True):
        for theirs, ours in ((call.inputs, request.inputs), (call.outputs, request.outputs)):
            for name in FIELDS.values():
                theirs = theirs.replace(name, name.replace(" ", "_"))
            theirs = theirs.split()
            ours = [name.replace(" ", "_") for name in ours]
            differences |= {
                f"lacks {name}".replace("_", " ") for name in theirs if name not in ours
            }
            differences |= {f"adds {name}".replace("_", " ") for name in ours if name not in theirs}
            common = [name for name in theirs if name in ours]
            if common != [name for name in ours if name in theirs]:
                differences.add("another order")
    return differences


def test_every_program_and_agent_is_compared_here():
    compared = {program.split()[0] for program in PAPERS} | {*WITHOUT_A_PAPER, "retrieve"}
    assert compared == {*PROGRAMS, *AGENTS}


@pytest.mark.parametrize("program", WITHOUT_A_PAPER)
def test_a_program_without_a_paper_asks_for_its_fields_within_the_documented_bounds(program, task):
    own = WITHOUT_A_PAPER[program]
    requests, values, _ = ask(program, task)
    fields = {(tuple(one.inputs), tuple(one.outputs)) for one in requests}
    allowed = {(tuple(one.inputs.split()), tuple(one.outputs.split())) for one in own.calls}
    assert fields and fields <= allowed
    assert (tuple(own.calls[0].inputs.split()), tuple(own.calls[0].outputs.split())) in fields
    assert len(requests) <= own.most_calls(values)
    assert sum(request.text.count('{"id":') for request in requests) <= own.most_shown(values)
    rows = [line for line in DOCUMENTED.splitlines() if line.startswith(f"| `{program}` |")]
    assert any(own.row in row for row in rows)
    assert program == "decompose" or program not in DIFFERS


def test_retrieve_asks_nobody(task):
    requests, _, system = ask("retrieve", task)
    assert not requests and not system.predictors()


@pytest.mark.parametrize("program", PAPERS)
def test_fields_and_their_order_are_the_papers_or_the_line_says_what_differs(program, task):
    requests, values, _ = ask(program, task)
    printed = PAPERS[program]
    calls = printed.get(task.task, printed.get(""))
    said = describe(program, task, values)
    differences = compare(calls, kinds_of_call(requests)) if calls else {"no prompt"}
    if program == "closed_book":
        differences -= {"adds kind"}  # what a document is, the papers' instructions say
    if program.startswith("closed_book") and not calls:
        assert "none for others" in said
        return
    unsaid = {name for name in differences if SAID[name] not in said}
    assert not unsaid, said


def test_documents_shown_stay_within_the_papers_limits_and_scores_between_theirs(task):
    for program in ("rank", "tournament"):
        [request] = kinds_of_call(ask(program, task)[0])
        assert 1 < request.text.count('"id":') <= 20
    for program in ("score", "reason", "subtask requirements=1"):
        request = kinds_of_call(ask(program, task)[0])[-1]
        scale = re.search(r"`score` \(float\): (.*)", request.text).group(1)
        assert re.search(r"\bfrom 0\b.*\bto 10\b", scale)
        assert request.text.count('"id":') == 1


def test_a_guess_is_what_the_papers_prompt_for_the_task_asks_for(task):
    [request], values, _ = ask("closed_book", task)
    wanted = {"birco/whatsthatbook": 5, "birco/relic": 5}
    one = task.task.startswith("birco/") and task.task not in wanted
    assert ("guess" in request.outputs) == one
    if task.task in wanted:
        assert "[[ ## most ## ]]\n5" in request.text and values["guesses"] == wanted[task.task]
    for words, target in (("by title", "birco/whatsthatbook"), ("behind the mask", "birco/relic")):
        assert (words in request.text.partition("[[ ## objective ## ]]")[2]) == (
            task.task == target
        )


def test_a_query_about_a_stance_and_about_style_stays_a_query_and_is_told_its_length(task):
    for program in ("rewrite", "multihop hops=1"):
        text = kinds_of_call(ask(program, task)[0])[0].text
        is_stance = task.task == "obliq/twitter"
        assert ("to three sentences" in text and "is no post" in text) == is_stance
        words = "describes this hand" if program == "rewrite" else "features of style"
        assert (words in text) == (task.task == "obliq/writing")
        assert ("themes" in text) == (words in text and program != "rewrite")
    read = kinds_of_call(ask("multihop hops=1", task)[0])[-1].text
    assert ("punctuation, tone" in read and "themes" in read) == (task.task == "obliq/writing")


def test_the_queries_of_multiconir_have_its_one_instruction_and_those_of_the_others_their_own(task):
    objective = task.queries[0].objective
    assert objective
    same = {one.partition("/")[0] for one in TASKS if instruction_of(one) == objective}
    assert same == {task.task.partition("/")[0]}
    if same == {"multiconir"}:
        assert all(
            instruction_of(one) == objective for one in TASKS if one.startswith("multiconir")
        )
        assert "domain" in objective and "conditions" in objective


def instruction_of(task):
    return environments.load(task, "mini", "all").queries[0].objective


def test_crumbs_programs_may_write_as_much_as_the_paper_lets_them(task):
    for program in ("query_to_answer", "query_to_doc", "reasoning_trace"):
        _, _, system = ask(program, task)
        [predictor] = system.predictors()
        assert max_answer_tokens(predictor, {}) >= CRUMB_TOKENS


def test_a_search_brings_as_many_documents_as_the_papers_rank(task):
    # OBLIQ-Bench, section 5; CRUMB, section 4.3, where the best passage of a document counts.
    assert task.depth == (2000 if task.max_p else 1000)


@pytest.mark.parametrize("name", LIMITS)
def test_the_papers_numbers_are_the_defaults(name):
    values = parse_parameters(name, find_program(name), {})
    assert LIMITS[name].items() <= values.items()


def test_the_pool_of_the_papers_tournament_has_three_hundred_documents_of_three_dense_models():
    pools = {
        system["pool"]
        for section in sections().values()
        for system in section.systems
        if system["name"].startswith("Oracle GPT-5.2 Tournament") and "sizes" not in system
    }
    [pool] = pools
    assert pool.startswith("oracle:300(") and pool.count("dense:Qwen/") == 2
    assert "gemini-embedding-2" in pool
