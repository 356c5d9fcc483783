"""Every program over every sort of retriever, over pools and with a cassette: the same by 1, 2 and 4 workers."""

from pathlib import Path

import pytest
import tiny_models
from openai_server import annotate, fill
from run_folders import lasting
from searchers import every_program

from sextant.agents import AGENTS
from sextant.programs import PROGRAMS

# Each program answers one query: of two queries that ask a lens the same, the one that comes first pays.
LIMIT = len(PROGRAMS | AGENTS)
ALL = (
    "--program",
    f"{every_program.__file__}:All",
    "--limit",
    LIMIT,
    "--task",
    "congress",
    "--split",
    "all",
    "--max-concurrent",
    8,
)


@pytest.fixture
def sit(run, server, tmp_path):
    """Runs everything by a number of workers, in a folder of its own; its outcomes."""
    server.answer = lambda prompt: (
        annotate(prompt) if "## annotations ##" in prompt else fill(prompt)
    )

    def ran(workers, *words, place="asked"):
        given = (
            *ALL,
            *words,
            "--lm",
            server.spec,
            "--workers",
            workers,
            "--runs",
            tmp_path / f"{place}-{workers}",
        )
        found = run(*given, "--json")
        assert found.code in (0, 7) and not found.json["owed"], found.err
        outcomes = lasting(Path(found.json["run"]))
        assert sum(not one["error"] for one in outcomes.values()) > len(outcomes) / 2
        return outcomes

    return ran


def searched(kind, server, tmp_path):
    """Retrievers that the keeper has: the run's own, and those that a query's programs name beside it."""
    lens, api = f"lens(bm25,model={server.spec},query=true)", f"api:{server.spec}"
    dense = f"dense:{tiny_models.bert(tmp_path / 'tiny', positions=512)}"
    return {
        "dense": ("--retriever", dense, "-P", f"ties={api}", "-P", f"retrievers=bm25,{lens}"),
        "lens": ("--retriever", lens, "-P", f"ties={dense}", "-P", f"retrievers={api},bm25"),
        "api": (
            "--retriever",
            f"fusion(bm25,{api})",
            "-P",
            f"ties={lens}",
            "-P",
            f"retrievers={dense}",
        ),
        "pool": ("--retriever", dense, "--pool", "union:40", "-P", "ties=bm25"),
    }[kind]


@pytest.mark.parametrize("kind", ["dense", "lens", "api", "pool"])
def test_what_the_keeper_has_is_searched_alike(sit, server, tmp_path, kind):
    words = searched(kind, server, tmp_path)
    one = sit(1, *words)
    assert one == sit(2, *words) == sit(4, *words)


def test_a_cassette_is_recorded_and_replayed_by_any_number(sit, server, tmp_path):
    recorded = {many: sit(many, "--cassette", tmp_path / f"{many}.cassette") for many in (1, 2)}
    sent = len(server.requests)
    assert recorded[1] == recorded[2]
    replayed = [
        sit(4 // by, "--cassette", tmp_path / f"{by}.cassette", place="replayed") for by in (1, 2)
    ]
    assert replayed[0] == replayed[1] and len(server.requests) == sent
    assert [one["ranking"] for one in replayed[0].values()] == [
        recorded[1][key]["ranking"] for key in replayed[0]
    ]
