"""A key is sent to the server that it is for, and is nowhere else: in no file, on no screen, in no exported page.

What is looked for is not the whole key but any twelve characters of it, because a message may be cut in its middle.
"""

import base64
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
from bad_server import OWN, PASSING, REFUSING, Fault, always, from_request, mixed, unauthorized
from conftest import on_congress

from sextant.tools.errors import UsageError
from sextant.tools.models import language_model, secrets
from sextant.tools.models.call_limits import RetryPolicy
from sextant.tools.models.run_resources import RunResources
from sextant.tools.models.transport.openai_client import organization_headers

KEY = "sk-Kd7f9Qx2LmV8tRz3WpB6nHy4JcG5sA1e"
ANOTHER = "sk-Zy5uE8iT1oP4aS7dF0gH3jK6lM9nB2vC"  # the other variable's, which this server must not even be sent
SHOWN = 12  # characters in a row of a key that nobody may see
TASK = on_congress("rewrite", 2)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    impatient = RetryPolicy(attempts=3, first=0.01, before=0.2, after=0.2, call=0.3)
    monkeypatch.setattr("sextant.tools.models.run_resources.PATIENCE", impatient)


@pytest.fixture
def keys(monkeypatch):
    monkeypatch.setenv("SEXTANT_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", ANOTHER)


def seen(text: str | bytes) -> list[str]:
    """The pieces of a key that stand in `text`, as they are or in base64."""
    data = text.encode() if isinstance(text, str) else text
    keys = (KEY, ANOTHER)
    wanted = [key[first : first + SHOWN] for key in keys for first in range(len(key) - SHOWN + 1)]
    wanted += [
        base64.b64encode(("x" * n + key).encode())[4:-4].decode() for key in keys for n in range(3)
    ]
    return [piece for piece in wanted if piece.encode() in data]


def kept(*places: Path) -> list[str]:
    """Files under `places` with a piece of a key in them, or in their name."""
    files = [file for place in places for file in place.rglob("*")]
    assert files, "nothing was looked at"
    return [
        str(file)
        for file in files
        if seen(str(file)) or (file.is_file() and seen(file.read_bytes()))
    ]


def repeating(fault: Fault) -> Fault:
    """The same fault of a server that shows what it was sent: the key in a header and in the body's text."""

    def spoil(answer, request):
        spoilt = fault.spoil(answer, request)
        if isinstance(spoilt, dict) and "error" in spoilt:
            spoilt["error"]["message"] += f" You sent: authorization: {request.key}"
        elif isinstance(spoilt, bytes):
            return b"authorization: %s in the request. %s" % (request.key.encode(), spoilt)
        return spoilt

    return replace(fault, headers=(*fault.headers, ("x-echo", f"Bearer {KEY}")), spoil=spoil)


def test_what_is_looked_for_is_found():
    assert (
        seen(f"Bearer {KEY}")
        and seen(KEY[5:17])
        and not seen(KEY[:11])
        and seen(repr(KEY.encode()))
    )
    assert seen(base64.b64encode(f"user:{KEY}".encode()))


def test_a_key_goes_to_its_server_and_nowhere_else(run, bad, keys, tmp_path):
    result = run(*TASK, "--lm", bad.spec, "--json")
    assert result.code == 0 and {one.key for one in bad.tries} == {f"Bearer {KEY}"}
    assert not kept(tmp_path) and not seen(result.out + result.err)


@pytest.mark.parametrize("kind", [*PASSING, *REFUSING, *OWN])
def test_no_failure_shows_a_key(kind, bad, keys):
    bad.script = always(repeating((PASSING | REFUSING | OWN)[kind]))
    try:
        said = str(
            language_model.connect(
                bad.spec, RunResources(patience=RetryPolicy(attempts=1, call=0.3))
            ).lm("yes?")
        )
    except Exception as error:  # noqa: BLE001  # whatever it is, it is told
        said = "".join(traceback.format_exception(error))
    assert not seen(said) and bad.tries[0].key == f"Bearer {KEY}"


def test_a_refusal_that_repeats_the_key_is_shown_without_it(run, bad, keys, tmp_path):
    bad.script = from_request(2, unauthorized(repeats=True))
    result = run(*TASK, "--lm", bad.spec, "--max-concurrent", 1)
    assert result.code == 4 and "Incorrect API key provided" in result.err
    assert not seen(result.out + result.err) and not kept(tmp_path)


def test_a_key_is_recognised_however_the_server_writes_it(run, bad, keys, tmp_path):
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in KEY)
    for status in (401, 500, 200):
        body = f'{{"error": {{"message": "not with {escaped}"}}}}'.encode()
        bad.script = always(
            Fault(str(status), status, spoil=lambda *_, body=body: body, usable=False)
        )
        result = run(*TASK, "--lm", bad.spec)
        assert result.code in (4, 7) and not seen(result.out + result.err), status
    assert not kept(tmp_path)


def test_a_long_message_that_is_cut_off_in_the_middle_of_the_key_shows_no_part_of_it(
    run, bad, keys, tmp_path
):
    for before in (455, 480):  # the line on the screen is cut after 500 characters
        told = "x" * before + " {key} " + "y" * 2000
        bad.script = always(
            Fault(
                "401",
                401,
                spoil=lambda _, request, told=told: {
                    "error": {"message": told.format(key=request.key)}
                },
            )
        )
        result = run(*TASK, "--lm", bad.spec)
        assert result.code == 4 and not seen(result.out + result.err), before
    assert not kept(tmp_path)


@pytest.mark.parametrize(
    "spoilt", [f"{KEY}\n", f" {KEY}", f"{KEY}\u2013", f"{KEY}\r\nx: y"], ids=ascii
)
def test_a_key_that_no_header_can_hold_is_said_to_be_one_and_not_shown(
    spoilt, run, bad, monkeypatch, tmp_path
):
    monkeypatch.setenv("SEXTANT_API_KEY", spoilt)
    bad.script = from_request(2, unauthorized(repeats=True))
    result = run(*TASK, "--lm", bad.spec)
    assert result.code in (2, 4), result.err
    assert (
        "Traceback" not in result.err and not seen(result.out + result.err) and not kept(tmp_path)
    )
    assert all(one.key == f"Bearer {KEY}" for one in bad.tries), "trimmed, or not sent at all"


def test_neither_a_page_nor_a_report_nor_an_export_of_runs_shows_a_key(
    run, command_of, bad, keys, tmp_path
):
    from sextant.evals import export, report, score, view

    bad.script = mixed(
        3, [repeating(fault) for fault in (*OWN.values(), PASSING["500"], PASSING["page"])], 0.3
    )
    runs = [
        run("--program", program, *TASK[2:], "--lm", bad.spec)
        for program in ("rewrite", "multihop")
    ]
    said = "".join(result.out + result.err for result in runs)
    place = tmp_path / "runs"
    one = next(path for path in sorted(place.glob("*/*")) if path.is_dir())
    for module, arguments in (
        (view, (place, "--export", tmp_path / "page.html")),
        (report, (place, "--out", tmp_path / "report")),
        (score, (one,)),
        (export, (one, "--to", "atif", tmp_path / "atif")),
        (export, (one, "--to", "openinference", tmp_path / "openinference")),
    ):
        result = command_of(module)(*arguments)
        said += result.out + result.err
    assert (tmp_path / "page.html").is_file() and not kept(tmp_path) and not seen(said)


@pytest.mark.parametrize("way", ["?api_key=", "#"])
def test_an_address_with_a_key_in_it_is_refused_before_anything_is_written(way, run, bad, tmp_path):
    (tmp_path / "here").mkdir()
    spec = f"{bad.spec}{way}{KEY}"
    for words in (
        ("--lm", spec),
        ("--lm", spec, "--dry-run"),
        ("--retriever", f"api:{spec}", "--dry-run"),
    ):
        result = run(*TASK, *words)
        is_query = way.startswith("?") and "--lm" in words
        problem = "has an address with a query" if is_query else "is no server"
        assert result.code == 2 and problem in result.err and result.err.count("\n") == 1
        assert not bad.tries and not kept(tmp_path) and not seen(result.out + result.err)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            f"# keys\nSEXTANT_API_KEY={KEY}\N{LATIN SMALL LETTER E WITH ACUTE}\n".encode("latin-1"),
            "UTF-8 in line 2",
        ),
        (f"\n\nSEXTANT_API_KEY={KEY}\0\n".encode(), "a NUL in line 3"),
        (f"'SEXTANT=API_KEY'={KEY}\n".encode(), "write NAME=value"),
    ],
    ids=["not text", "NUL", "name"],
)
def test_a_file_of_keys_that_cannot_be_used_is_refused_in_words_that_show_no_key(
    content, said, tmp_path
):
    file = tmp_path / ".env"
    file.write_bytes(content)
    with pytest.raises(UsageError) as refused:
        secrets.read_keys(tmp_path)
    message = str(refused.value)
    assert str(file) in message and said in message and "\n" not in message and not seen(message)


@pytest.mark.parametrize("inside", ["pyvenv.cfg", "conda-meta", ""])
def test_a_folder_is_no_file_of_keys(tmp_path, inside):
    (tmp_path / ".env" / inside).mkdir(parents=True)
    secrets.read_keys(tmp_path)


@pytest.fixture
def no_keys(monkeypatch):
    for name in ("SEXTANT_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(
            name, ""
        )  # so that what the command sets from a file is taken back after the test
        monkeypatch.delenv(name)


def test_a_key_may_stand_in_a_file_and_stays_there(run, bad, no_keys, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    (here / ".env").write_text(
        f"# keys\nexport SEXTANT_API_KEY='{KEY}'\nOPENAI_API_KEY={ANOTHER}\n"
    )
    monkeypatch.chdir(here)
    bad.script = from_request(2, repeating(unauthorized(repeats=True)))
    result = run(*TASK, "--lm", bad.spec, "--max-concurrent", 1)
    assert result.code == 4 and {one.key for one in bad.tries} == {f"Bearer {KEY}"}
    (here / ".env").rename(tmp_path.parent / f"{tmp_path.name}.env")
    assert not kept(tmp_path) and not seen(result.out + result.err)


def test_the_environment_goes_before_the_file(run, bad, no_keys, tmp_path, monkeypatch):
    (tmp_path / ".env").write_text(f"SEXTANT_API_KEY={ANOTHER}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEXTANT_API_KEY", KEY)
    assert run(*TASK, "--lm", bad.spec).code == 0 and {one.key for one in bad.tries} == {
        f"Bearer {KEY}"
    }


def test_who_pays_at_openai_is_told_to_openai_alone(run, server, monkeypatch):
    for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ORGANIZATION", "OPENAI_PROJECT"):
        monkeypatch.setenv(name, "who-pays")
    monkeypatch.setattr(
        "sextant.tools.models.run_resources.PATIENCE", RetryPolicy()
    )  # nothing fails here, however slow the machine is
    assert run(*TASK, "--lm", server.spec, "--retriever", f"api:{server.spec}").code == 0
    assert server.headers and "who-pays" not in str(server.headers)
    told = {"openai-organization": "who-pays", "openai-project": "who-pays"}
    assert organization_headers("https://api.openai.com/v1") == told
    for url in (
        "http://api.openai.com",
        "https://api.openai.com.example.org",
        "https://example.org/api.openai.com",
    ):
        assert not organization_headers(f"{url}/v1")
