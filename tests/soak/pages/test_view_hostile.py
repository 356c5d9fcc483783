"""Text of corpora and models that would like to be more than text: it stays text, on the page and in the terminal."""

import base64
import gzip
import json
import re
import threading

import pytest
from chromium import Watched
from conftest import lines
from hostile_texts import HOSTILE, LONE
from openai_server import OpenAIServer, fill
from run_folders import unsealed

from sextant.evals import compare, run, score, view
from sextant.evals.viewer import server as page_server
from sextant.evals.viewer.data import ViewerApi
from sextant.tools.platform.cli import run_command

LONG = "orchard " + "x" * 1_000_000
# What must be readable on the page where the first of these is in the data.
SEEN = {"\u202e": "⟨U+202E⟩", "\x1b": "⟨U+001B⟩", "\x00": "⟨U+0000⟩"}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A folder with two runs over a corpus, queries, ids and answers of the worst kind."""
    place = tmp_path_factory.mktemp("hostile")
    data = place / "data" / "tip-of-tongue" / "congress"
    for name in ("corpus", "queries+qrels"):
        (data / name).mkdir(parents=True)
    texts = [*HOSTILE.values(), LONE, LONG]
    doc_ids = [f"D{n} {text[:40]}" for n, text in enumerate(HOSTILE.values())] + [
        "D-lone",
        "D-long",
    ]
    query_ids = [f"Q{n} {text[:60]}" for n, text in enumerate(HOSTILE.values())]
    documents = [
        {"_id": clean_id(doc_id), "text": f"orchard {text}", "title": text[:500]}
        for doc_id, text in zip(doc_ids, texts, strict=True)
    ]
    queries = [
        {"_id": clean_id(query_id), "text": f"orchard {HOSTILE[k]}"}
        for query_id, k in zip(query_ids, HOSTILE, strict=True)
    ]
    lines(data / "corpus/corpus.jsonl", map(json.dumps, documents))
    lines(data / "queries+qrels/queries.jsonl", map(json.dumps, queries))
    judged = [
        f"{query['_id']}\t{document['_id']}\t1"
        for query, document in zip(queries, documents, strict=False)
    ]
    lines(data / "queries+qrels/qrels.tsv", ["query-id\tcorpus-id\tscore", *judged])
    runs = place / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEXTANT_HOME", str(place / "home"))
        server = OpenAIServer(
            lambda prompt: fill(prompt) | {"observations": "".join(HOSTILE.values())}
        )
        for program, lm in (("retrieve", "offline"), ("multihop", server.spec)):
            words = [
                "--program",
                program,
                "--task",
                "congress",
                "--data",
                str(place / "data"),
                "--split",
                "all",
            ]
            words += ["--lm", lm]
            assert (
                run_command(run.parser(), run.command, [*words, "--runs", str(runs), "--json"]) == 0
            )
        for path in sorted(runs.glob("*/*")):
            spoil(path)
            assert (
                run_command(score.parser(), score.command, [str(path)]) == 7
            )  # one of its queries has failed
        renamed = path.with_name("<img src=x onerror=window.pwned=1>\u202e\x1b[31m")
        path.rename(renamed)
        yield runs


def clean_id(text: str) -> str:
    """Without the characters for which an id is refused when a corpus is read."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", " ", text).strip()


def spoil(path):
    """Let a model have answered the worst things."""
    rows = [json.loads(line) for line in (unsealed(path) / "outcomes.jsonl").open(encoding="utf-8")]
    for number, (row, text) in enumerate(zip(rows, HOSTILE.values(), strict=True)):
        row["answer"] = text
        row["trace"]["notes"] = [text, LONE]
        row["trace"]["unusable"] = {text: 1}
        row["trace"]["followed"] = {row["ranking"][0]: text}
        row["trace"]["steps"] += [
            {
                "tool": "note",
                "argument": text,
                "doc_ids": [],
                "hop": 3,
                "started": 1.0,
                "seconds": 0.1,
            },
            {
                "tool": text,
                "argument": LONE,
                "doc_ids": [text, LONE],
                "hop": 3,
                "started": 1.0,
                "seconds": 0.1,
            },
            {
                "tool": "search",
                "argument": text if number else LONG,
                "doc_ids": [row["ranking"][0], text],
                "hop": 3,
            }
            | {
                "started": 1.0,
                "seconds": 0.1,
                "retriever": text,
                "k": 2,
                "instruction": text,
                "refused": text,
            },
        ]
    error = f"ValueError: {HOSTILE['script']} {HOSTILE['controls']}"
    rows[3] |= {"error": error, "traceback": "".join(HOSTILE.values())}
    (path / "outcomes.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
    )


@pytest.fixture(scope="module")
def server(hostile):
    with page_server.open_server(ViewerApi([hostile]), 0) as opened:
        thread = threading.Thread(target=opened.serve_forever, args=(0.01,))
        thread.start()
        yield opened
        opened.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def exported(hostile, tmp_path_factory):
    file = tmp_path_factory.mktemp("exported") / "page.html"
    assert (
        run_command(view.parser(), view.command, [str(hostile), "--export", str(file), "--prompts"])
        == 0
    )
    return file


@pytest.fixture(params=["served", "exported"])
def place(request):
    """Where the page is."""
    if request.param == "served":
        return request.getfixturevalue("server").address
    return request.getfixturevalue("exported").as_uri()


def test_nothing_that_data_says_runs_in_the_page(browser, hostile, place):
    answers = ViewerApi([hostile])
    first, second = answers.run_ids
    names = answers.query_ids(first)
    with Watched(browser) as watched:
        if place.startswith("file:"):
            watched.offline()
        routes = [
            ("", "overview"),
            (f"#/run/{first}", "run"),
            (f"#/run/{second}?find=window.pwned", "run"),
        ]
        routes += [(f"#/run/{second}/q/{encoded(watched.page, name)}", "query") for name in names]
        routes += [(f"#/compare/{first},{second}", "compare")]
        routes += [
            (f"#/compare/{first},{second}/q/{encoded(watched.page, names[n])}", "compare")
            for n in (0, 3)
        ]
        watched.go(place, "overview")
        for route, name in routes:
            shown(watched.page, route, name)
            assert watched.page.evaluate("window.pwned") is None, route
            assert harmless(watched.page) == [], route
        assert watched.problems() == []
        assert all(
            url.startswith((place.partition("#")[0], "data:image/svg+xml"))
            for url in watched.requests
        )


def encoded(page, name):
    return page.evaluate("encodeURIComponent", name)


def shown(page, route, view_name):
    """Go to a view of the page that is open, and open what is folded, so that all of the data is drawn."""
    page.evaluate("document.querySelector('main').removeAttribute('data-view')")
    page.evaluate(
        "(hash) => { location.hash = hash; dispatchEvent(new HashChangeEvent('hashchange')); }",
        route or "#/",
    )
    page.wait_for_selector(f'main[data-view="{view_name}"]')
    page.wait_for_function("""() => {
      document.querySelectorAll(".disclose[aria-expanded=false]").forEach((one) => one.click());
      const read = (one) => one.children.length && !one.querySelector(":scope > [role=status]");
      return [...document.querySelectorAll(".disclosed")].every(read);
    }""")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


def harmless(page):
    """Elements and attributes on the page that only data could have brought there."""
    return page.evaluate(
        """() => [...document.querySelectorAll("*")].flatMap((node) => [
          ...(["IMG", "IFRAME", "OBJECT", "EMBED", "BASE"].includes(node.tagName) ? [node.outerHTML] : []),
          ...(node.tagName === "SCRIPT" && document.body.querySelector("main").contains(node) ? [node.outerHTML] : []),
          ...[...node.attributes].filter((one) => /^on/i.test(one.name)).map((one) => one.name),
          ...(node.matches("a:not([href^='#'])") ? [node.outerHTML] : []),
        ])"""
    )


def test_what_cannot_be_seen_is_made_visible_and_what_can_is_shown_as_it_is(
    browser, server, hostile
):
    answers = ViewerApi([hostile])
    run_id = answers.run_ids[1]
    with Watched(browser) as watched:
        watched.go(server.address, "overview")
        for number, name in enumerate(answers.query_ids(run_id)):
            shown(watched.page, f"#/run/{run_id}/q/{encoded(watched.page, name)}", "query")
            text = watched.page.evaluate("document.querySelector('main').textContent")
            assert not set(text) & set("\u202e\u2066\x00\x1b\x9b\x07")
            if number == 0:
                assert "<script>window.pwned = 1</script>" in text
            given = list(HOSTILE.values())[number]
            for character, written in SEEN.items():
                assert written in text or character not in given


def test_an_exported_page_holds_data_in_no_other_way_than_packed(exported, hostile):
    page = exported.read_text(encoding="utf-8")
    blocks = re.findall(
        r'<script type="application/json\+gzip" data-path="([^"<>\']*)">([A-Za-z0-9+/=]*)</script>',
        page,
    )
    assert len(blocks) == page.count('application/json+gzip"') > 1 + 2 + 2 * len(HOSTILE)
    assert page.count("<script") == len(blocks) + 1 and page.count("</script") == len(blocks) + 1
    assert "pwned" not in re.sub(r'data-path="[^"]*"', "", page)
    for _, block in blocks:
        text = gzip.decompress(base64.b64decode(block)).decode("utf-8")
        assert json.loads(text) and not re.search(r"\\ud[89a-f]", text)


STEERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("force_terminal", [False, True])
def test_the_terminal_is_not_steered_by_what_scoring_and_comparing_print(
    hostile, capsys, monkeypatch, force_terminal
):
    if force_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.delenv("NO_COLOR")
        monkeypatch.setenv("TERM", "xterm")
    paths = sorted(hostile.glob("*/*"))
    monkeypatch.setenv("SEXTANT_HOME", str(hostile.parent / "home"))
    capsys.readouterr()
    for module, words in [(score, [paths[0]]), (score, [paths[1]]), (compare, paths)]:
        run_command(module.parser(), module.command, [str(word) for word in words])
        out, err = capsys.readouterr()
        colours = r"\x1b\[[0-9;]*m" if force_terminal else "$^"  # those are rich's own
        assert STEERS.findall(re.sub(colours, "", out + err)) == []
        assert "31mred" not in out or "\x1b[31mred" not in out


def test_the_commands_of_the_page_say_hostile_names_harmlessly(hostile, capsys, tmp_path):
    path = tmp_path / "a\x1b[2J\u202e"
    path.mkdir()
    export = [hostile, "--export"]
    for words in (
        [path],
        [*export, path],
        [*export, path / "page.html"],
        [hostile, "--query", "\x1b[2J"],
    ):
        run_command(view.parser(), view.command, [str(word) for word in words])
    out, err = capsys.readouterr()
    assert STEERS.findall(err) == [] and STEERS.findall(out) == []
