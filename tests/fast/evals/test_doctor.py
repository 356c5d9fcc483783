"""The doctor says what is here and what to do about the rest, and shows no key."""

import socket

import pytest

from sextant.evals import doctor

SUBJECTS = ["Python", "packages", "memory", "disk", "GPU", "keys", "model", "server"]
SUBJECTS += ["indexes", "data"]


@pytest.fixture
def command(command_of):
    return command_of(doctor)


def findings(command):
    return {row["subject"]: row for row in command("--json").json["findings"]}


def test_every_subject_has_a_line_and_what_is_not_well_a_remedy(command):
    rows = findings(command)
    assert list(rows) == SUBJECTS
    for row in rows.values():
        assert row["state"] in ("ok", "note", "wrong") and row["text"]
        assert row["remedy"] or row["state"] == "ok"
    printed = command().out
    for subject in SUBJECTS:
        assert f" {subject} " in printed


def test_keys_are_named_and_never_shown(command, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-key-of-somebody")
    row = findings(command)["keys"]
    assert "OPENAI_API_KEY" in row["text"]
    assert "sk-a-key" not in command().out + command("--json").out


def test_a_server_that_listens_is_named_with_the_command_that_asks_it(command, monkeypatch):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        monkeypatch.setattr(doctor, "SERVERS", {port: "a server"})
        row = findings(command)["server"]
    assert row["state"] == "ok" and f"@http://127.0.0.1:{port}/v1" in row["remedy"]


def test_an_installation_is_held_to_what_sextant_asks_for(command, monkeypatch):
    assert findings(command)["packages"]["state"] == "ok"
    asked = ["numpy<0.1", "no-such-package>=1", "other>=1; extra == 'x'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: asked)
    row = findings(command)["packages"]
    assert row["state"] == "wrong"
    assert "no-such-package is missing" in row["text"] and "wanted: <0.1" in row["text"]
    assert "other" not in row["text"]
