"""Queries answered by workers come out as in one process; tests/soak/processes has every program, and how they end."""

from pathlib import Path

from run_folders import lasting


def test_workers_come_to_what_one_process_does(run, server, tmp_path):
    def sit(workers):
        asked = ("--task", "congress", "--program", "multihop", "--lm", server.spec, "--limit", 4)
        found = run(
            *asked, "--workers", workers, "--runs", tmp_path / f"by-{workers}", "--json"
        ).json
        usage_totals = {
            key: found["ledger"][key] for key in ("sent", "answered", "cached", "input_tokens")
        }
        return lasting(Path(found["run"])), usage_totals

    assert sit(2) == sit(1)
    assert len({str(body["messages"]) for body in server.requests}) == len(server.requests) / 2


def test_a_program_with_processes_of_its_own_refuses_workers(run):
    refused = run("--task", "congress", "--program", "command:true", "--workers", 2)
    assert refused.code == 2
    assert "--workers 2 does not go with --program command:true, which" in refused.err
