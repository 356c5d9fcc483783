"""The line that says how a program differs from its paper's follows from what the run was."""

import re
from fnmatch import fnmatch

import pytest
from conftest import ROOT

from sextant.agents import AGENTS
from sextant.evals import compare, reproduce, score, study
from sextant.evals import run as run_module
from sextant.evals.papers.sections import sections
from sextant.evals.running.candidate_pools import read as read_pool
from sextant.programs import DIFFERS, PROGRAMS, describe_deviations
from sextant.programs.deviations import describe_judging
from sextant.tools import retrievers

SYSTEMS = {
    (section.name.partition("/")[0], system["name"], system.get("tasks", ["*"])[0]): system
    for section in sections().values()
    for system in section.systems
    if "program" in system and "sizes" not in system
}
OF_DEFAULTS = [
    *("its pool is", "searches with", "equal scores", "its BM25", "its model is", "tokens"),
    "told of the task",
]


def configure(
    program,
    task,
    retriever="bm25",
    lm="offline",
    parameters=None,
    pool=None,
    max_tokens=None,
    instruction="ours",
):
    """What a run's configuration says of a system."""
    parts = read_pool(pool, retrievers.canonicalize(retriever)) if pool else None
    of = parts and {"kind": parts.kind, "size": parts.size, "of": list(map(str, parts.parts))}
    if parts and parts.kind == "oracle":
        of["put_in"] = "what is missing"
    model = {"name": lm} | ({"max_tokens": max_tokens} if max_tokens else {})
    defaults = {"ties": "dense", "pool": 100, "rerank": 0, "think": True}
    return {
        "program": program,
        "task": task,
        "instruction": instruction,
        "retriever": {"name": retriever},
        "lm": model,
        "parameters": defaults | (parameters or {}),
        "pool": of,
    }


def test_every_program_of_a_paper_has_a_row_and_a_row_in_the_docs():
    named = {system["program"] for system in SYSTEMS.values()}
    assert named <= DIFFERS.keys() <= PROGRAMS.keys() | AGENTS.keys()
    page = (ROOT / "docs/decisions/programs.md").read_text(encoding="utf-8")
    table = page.partition("## Differences from the papers")[2].partition("\n## ")[0]
    rows = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", rows)) == DIFFERS.keys()


@pytest.mark.parametrize(("max_tokens", "differs"), [(2000, True), (4096, False), (30000, False)])
def test_a_limit_below_the_papers_is_said_unless_it_is_the_default(max_tokens, differs):
    config = configure("query_to_doc", "crumb/legal_qa", lm="openai/gpt-4o", max_tokens=max_tokens)
    lines = describe_deviations(config, has_candidates=False)
    assert ("(--max-tokens 8192)" in lines) == differs


@pytest.mark.parametrize("key", SYSTEMS, ids="-".join)
def test_a_system_as_in_the_paper_has_no_deviation_of_the_defaults(key):
    system = SYSTEMS[key]
    tasks = {
        cell.task
        for section in sections().values()
        for cell in section.cells
        if "*" not in cell.task
    }
    task = next(one for one in sorted(tasks) if one.startswith(key[0]) and fnmatch(one, key[2]))
    if key[0] == "obliq" and key[1:] == ("BM25", "*"):
        task = "obliq/wildchat"  # the others have a system of their own
    fields = ("retriever", "lm", "parameters", "pool", "max_tokens", "instruction")
    config = configure(
        system["program"], task, **{name: system[name] for name in fields if name in system}
    )
    said = describe_deviations(config, has_candidates=key[0] == "birco")
    assert not [text for text in OF_DEFAULTS if text in said], said


def test_a_run_with_the_defaults_says_what_most_of_the_number_rests_on():
    expected = {
        "multihop": "searches with bm25, the paper's with Gemini Embedding 2",
        "notes": "searches with bm25, the paper's with Gemini Embedding 2",
        "rewrite": "searches with bm25, the paper's with Gemini Embedding 2",
        "score": "equal scores are ordered by all-MiniLM-L6-v2, the paper's by E5-Large-v2",
        "reason": "equal scores are ordered by all-MiniLM-L6-v2, the paper's by E5-Large-v2",
        "subtask": "equal scores are ordered by all-MiniLM-L6-v2, the paper's by E5-Large-v2",
        "tournament": "its pool is the first 100 of bm25, whatever these miss, the paper's is some 300",
        "retrieve": "its BM25 is bm25; 'bm25s' is that of the paper's script for this task, where "
        "section 5 names rank-bm25",
    }
    for program, text in expected.items():
        line = describe_deviations(configure(program, "obliq/congress"), has_candidates=False)
        assert line.startswith(f"{program} differs from the paper's: ") and text in line
    fused = configure(
        "rewrite",
        "obliq/congress",
        "fusion(bm25,api:gemini/gemini-embedding-2)",
        "openai/gpt-5-mini",
    )
    line = describe_deviations(fused, has_candidates=False)
    assert (
        "searches with fusion(" in line
        and "its model is openai/gpt-5-mini, the paper's GPT-5.2" in line
    )


@pytest.mark.parametrize(
    ("program", "task", "text"),
    [
        ("multihop", "congress", "appendix D.5.4"),
        ("multihop", "congress", "which hop it is of"),
        ("rewrite", "twitter", "that of D.1.5 has one"),
    ],
)
def test_what_the_paper_has_for_one_task_is_said_of_no_other(program, task, text):
    for other in ("twitter", "wildchat", "math", "writing", "congress"):
        line = describe_deviations(configure(program, f"obliq/{other}"), has_candidates=False)
        assert (text in line) == (other == task), other


@pytest.mark.parametrize(
    ("program", "retriever", "said"),
    [
        ("retrieve", "dense:Alibaba-NLP/gte-Qwen2-7B-instruct", True),
        ("retrieve", "dense:hzeng/Lion-DS-1B-llama3-marco-mntp", False),
        ("query_to_doc", "bm25", True),
    ],
)
def test_our_words_for_the_task_are_said_where_the_paper_prints_its_own(program, retriever, said):
    for task, prints in (("crumb/legal_qa", True), ("obliq/math", False)):
        for instruction in ("ours", "paper", "none"):
            config = configure(program, task, retriever, instruction=instruction)
            line = describe_deviations(config, has_candidates=False)
            expected = said and prints and instruction == "ours"
            assert ("--instruction paper" in line) == expected


def test_the_line_is_under_the_tables_of_scores_a_comparison_a_study_its_report_and_a_papers_table(
    command_of, tmp_path
):
    line = "rewrite differs from the paper's: it searches with bm25, the paper's with Gemini Embedding 2"
    given = ("--data", "mini", "--limit", "2", "--runs", tmp_path)
    told = command_of(run_module)("--program", "rewrite", "--task", "congress", *given).out
    assert "rewrite differs from the paper's in 1 point, which sextant score RUN lists" in told
    assert line in command_of(score)(*tmp_path.glob("*/rewrite*")).out
    command_of(run_module)("--program", "retrieve", "--task", "congress", *given)
    runs = sorted(tmp_path.glob("*/*/config.json"))
    told = command_of(compare)(*(config.parent for config in runs)).out
    assert line in " ".join(told.split())
    rows = (
        '[[row]]\nname = "bare"\nprogram = "retrieve"\n[[row]]\nname = "new"\nprogram = "rewrite"\n'
    )
    file = tmp_path / "few.toml"
    file.write_text(
        f'name = "few"\ntasks = ["congress"]\n[fixed]\ndata = "mini"\nlimit = 2\n{rows}'
    )
    told = command_of(study)(file, "--runs", tmp_path).out
    assert line in " ".join(told.split())
    assert line in (tmp_path / "studies/few/report.md").read_text(encoding="utf-8").replace(
        "\\", ""
    )
    told = command_of(reproduce)(
        "obliq/table4", "--lm", "offline", "--retriever", "bm25", *given
    ).out
    assert line in told


def test_grading_new_documents_differs_from_the_papers_prompt_for_the_task():
    said = {task: describe_judging(f"obliq/{task}") for task in ("twitter", "wildchat", "math")}
    assert all(
        line.startswith("the judge differs from the paper's: a reason") for line in said.values()
    )
    assert all("eight relevant" in line for line in said.values())
    assert "prompt has none" in said["wildchat"] and "fingerprint" in said["math"]
    assert not describe_judging("obliq/congress") and not describe_judging("birco/relic")


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        (None, "its pool is the first 100 of bm25, "),
        ("union:30(rank_bm25)", "its pool is the first 30 of rank_bm25 without what these miss, "),
        ("oracle:30", ""),
        ("hidden:30", ""),
    ],
)
def test_a_pool_that_may_lack_relevant_documents_is_not_birco_s(pool, said):
    config = configure("rank", "obliq/congress", pool=pool)
    line = describe_deviations(config, has_candidates=False)
    assert said in line and bool(said) == ("its pool is" in line)
