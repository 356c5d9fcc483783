"""The page as a reader uses it, in a real browser: lists, links, keys, runs side by side, the file without network."""

import csv
import itertools
import json
import re
import shutil
import threading
from importlib.resources import files
from pathlib import Path

import pytest
from chromium import Watched
from openai_server import OpenAIServer, fill
from run_folders import unsealed

from sextant.evals import run, score
from sextant.evals.viewer import server as page_server
from sextant.evals.viewer.data import ViewerApi
from sextant.tools.platform.cli import run_command

THEMES = ("light", "dark")
WIDE = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
# What repeats what is before it: axe takes a second for a hundred elements.
ALIKE = [
    ".trajectory > ol:nth-of-type(n+2)",
    ".hits > li:not(.gold):nth-child(n+3)",
    ".list tbody tr:nth-child(n+5)",
    ".chips > li:nth-child(n+3)",
]
NARROW = {"width": 400, "height": 800}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of the miniatures, by name: of two lengths of one program, of others, one with a failure, one of old."""
    place = tmp_path_factory.mktemp("page")
    wanted = {
        "short": ("multihop", "wildchat", "-P", "hops=2"),
        "long": ("multihop", "wildchat"),
        "floor": ("retrieve", "wildchat"),
        "units": (
            "tournament",
            "crumb/clinical_trial",
            "--lm",
            (server := OpenAIServer(fill)).spec,
        ),
    }
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEXTANT_HOME", str(place / "home"))
        for name, (program, task, *more) in wanted.items():
            words = [
                "--program",
                program,
                "--task",
                task,
                "--data",
                "mini",
                "--lm",
                "offline",
                *more,
            ]
            before = set((place / "runs").glob("*/*"))
            assert (
                run_command(run.parser(), run.command, [*words, "--runs", str(place / "runs")]) == 0
            )
            (made[name],) = set((place / "runs").glob("*/*")) - before
        for name in ("failed", "old"):
            copied = made["floor"].with_name(f"retrieve-offline-{name}")
            made[name] = unsealed(shutil.copytree(made["floor"], copied))
        rows = [json.loads(line) for line in (made["failed"] / "outcomes.jsonl").open()]
        rows[2] |= {
            "error": "ValueError: the answer\u202e was unusable",
            "ranking": [],
            "scores": [],
        }
        (made["failed"] / "outcomes.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
        assert run_command(score.parser(), score.command, [str(made["failed"])]) in (0, 7)
    server.close()
    (made["old"] / "attribution.jsonl").unlink()
    scores = json.loads((made["old"] / "scores.json").read_text())
    (made["old"] / "scores.json").write_text(
        json.dumps({k: v for k, v in scores.items() if k != "losses"})
    )
    return made


@pytest.fixture(scope="module")
def address(runs):
    """Where these runs are served."""
    place = runs["short"].parent.parent
    with page_server.open_server(ViewerApi([place]), 0) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served.address
        served.shutdown()


@pytest.fixture(scope="module")
def usual(browser):
    """The browser's window that most tests use one after the other; a new one takes half a second."""
    with Watched(browser, **WIDE) as one:
        yield one


@pytest.fixture
def open_page(browser, address, usual):
    """Open a view; at the end of the test, the page must have said nothing and broken no policy."""
    watched = []
    usual.said.clear()

    def opened(place="#/", kind="overview", **context):
        if not context:
            watched.append(usual)
            usual.go(f"{address}?{len(usual.requests)}{place}", kind)  # the "?" makes it load anew
            return usual.page
        watched.append(Watched(browser, **WIDE | context))
        watched[-1].go(address + place, kind)
        return watched[-1].page

    yield opened
    problems = [problem for one in dict.fromkeys(watched) for problem in one.problems()]
    for one in watched:
        if one is not usual:
            one.__exit__()
    assert problems == []


def name(path: Path) -> str:
    return "/".join(path.parts[-2:])


def outcome(path: Path, query_id: str):
    rows = [json.loads(line) for line in (path / "outcomes.jsonl").open()]
    return next(row for row in rows if row["query_id"] == query_id)


def judged(path: Path):
    return {row["query_id"]: row for row in map(json.loads, (path / "attribution.jsonl").open())}


def values(path: Path, metric="nDCG@10"):
    head, *rows = [line.split(",") for line in (path / "scores.csv").read_text().splitlines()]
    return {row[0]: float(row[head.index(metric)]) for row in rows}


def texts(page, selector):
    return page.locator(selector).all_inner_texts()


def attributes(page, selector, attribute):
    return page.locator(selector).evaluate_all(
        f"nodes => nodes.map(node => node.getAttribute('{attribute}'))"
    )


def view_is(page, kind, title=""):
    page.wait_for_selector(f'main[data-view="{kind}"]')
    page.wait_for_function("words => document.title.includes(words)", arg=title)


# --- the runs


@pytest.mark.smoke
def test_the_runs_are_listed_with_the_values_of_their_scores(open_page, runs):
    page = open_page()
    assert set(attributes(page, "tr[data-run]", "data-run")) == {
        name(path) for path in runs.values()
    }
    for path in runs.values():
        mean = json.loads((path / "scores.json").read_text())["metrics"]["nDCG@10"]["mean"]
        assert f"{mean:.3f}" in page.locator(f'tr[data-run="{name(path)}"]').inner_text()
    heads = [
        "crumb/clinical_trial mini test split, 6 queries, nDCG@10",
        "obliq/wildchat mini test split, 8 queries, nDCG@10",
    ]
    assert texts(page, ".list .group") == heads


def test_a_run_over_few_queries_never_stands_above_one_over_more_and_the_table_fits(
    open_page, runs
):
    answer = json.loads(ViewerApi([runs["floor"]])("runs.json"))
    [one] = answer["runs"]
    one |= {
        "program": "sliding_window",
        "retriever": "fusion(bm25,dense)",
        "lm": "openai/gpt-5.2",
        "compiled": "x",
    }
    one |= {
        "imported": True,
        "pool": "oracle:300",
        "usage": {**one["usage"], "calls": 99_999, "list_usd": 99.0},
        "setting": "hops=4, notes=true",
        "unusable": 1234,
        "seconds": 7199,
        "remarks": 12,
    }
    answer["runs"] = [
        one
        | {
            "id": str(n),
            "queries": n,
            "contract": str(n),
            "metrics": {"nDCG@10": {"mean": 1 / n, "low": 0, "high": 1}},
        }
        for n in (2, 1183, 24)
    ]
    for sort in ("", "value", "-value", "unusable", "-program"):
        page = open_page()
        page.route("**/data/runs.json", lambda route: route.fulfill(json=answer))
        page = open_page(f"#/?sort={sort}")
        page.unroute("**/data/runs.json")
        heads = texts(page, ".list .group")
        asked = [re.search(r"([\d,]+) quer", head)[1] for head in heads]
        assert asked == ["1,183", "24", "2"]
        fits = "node => node.clientWidth > 1000 && node.scrollWidth <= node.clientWidth"
        assert page.locator(".scrolling").evaluate(fits), "at 1,280 pixels"


def test_a_column_sorts_both_ways_and_the_address_keeps_it(open_page):
    page = open_page(
        "#/?task=obliq/wildchat"
    )  # only runs that were asked the same are put in an order
    page.get_by_role("button", name="Headline").click()
    assert "sort=-value" in page.url
    shown = [float(text) for text in texts(page, "tr[data-run] .measured b")]
    assert shown == sorted(shown, reverse=True)
    page.get_by_role("button", name="Headline").press("Enter")
    assert texts(page, "tr[data-run] .measured b") == [f"{value:.3f}" for value in sorted(shown)]
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("Headline")
    listed = attributes(page, "tr[data-run]", "data-run")
    again = open_page(page.url[page.url.index("#") :])
    assert attributes(again, "tr[data-run]", "data-run") == listed


def test_choices_and_words_filter_the_runs(open_page, runs):
    page = open_page()
    page.get_by_label("Task").select_option("crumb/clinical_trial")
    assert attributes(page, "tr[data-run]", "data-run") == [name(runs["units"])]
    page.get_by_label("Task").select_option("")
    page.get_by_label("Program").select_option("multihop")
    assert page.locator("tr[data-run]").count() == 2
    page.locator("[data-search]").fill(f"wildchat {runs['long'].name[-8:]}")
    assert attributes(page, "tr[data-run]", "data-run") == [name(runs["long"])]
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    [row] = csv.DictReader(Path(download.value.path()).read_text().splitlines())
    scores = json.loads((runs["long"] / "scores.json").read_text())
    assert row["run"] == name(runs["long"]) and row["metric"] == "nDCG@10"
    assert float(row["mean"]) == scores["metrics"]["nDCG@10"]["mean"]
    page.locator("[data-search]").fill("nothing like it")
    assert "Nothing fits these filters" in page.locator("main").inner_text()


def test_the_chart_names_the_runs_that_nothing_beats_for_the_money(open_page, runs):
    page = open_page("#/?task=obliq/wildchat")
    scores = [
        json.loads((path / "scores.json").read_text())
        for path in runs.values()
        if path != runs["units"]
    ]
    points = [(s["usage"]["calls"] / s["queries"], s["metrics"]["nDCG@10"]["mean"]) for s in scores]
    best = {p for p in points if not any(q != p and q[0] <= p[0] and q[1] >= p[1] for q in points)}
    drawn = attributes(page, ".scatter a.best", "aria-label")
    assert {re.search(r"nDCG@10 (\S+),", words)[1] for words in drawn} == {
        f"{y:.3f}" for _, y in best
    }
    assert page.locator(".scatter a").count() == len(points)


# --- a run


def test_a_run_lists_its_worst_queries_first_and_where_recall_is_lost(open_page, runs):
    page = open_page(f"#/run/{name(runs['long'])}", "run")
    expected = values(runs["long"])
    worst = sorted(expected, key=lambda query_id: expected[query_id])
    assert attributes(page, "tr[data-query]", "data-query") == worst
    shares = json.loads((runs["long"] / "scores.json").read_text())["losses"]["at"]["10"]
    rows = {row.split("\n")[0].split("\t")[0]: row for row in texts(page, ".waterfall tbody tr")}
    assert f"{shares['found']:.3f}" in rows["R@10: found in the first 10"]
    assert f"−{shares['never_surfaced']:.3f}" in rows["never surfaced"]
    lost = sum(map(float, re.findall(r"−(0\.\d+)", "".join(rows.values()))))
    assert lost + shares["found"] == pytest.approx(1, abs=0.003)


def test_a_run_has_the_card_of_its_harness_with_the_descriptions_of_tools(open_page, runs):
    page = open_page(f"#/run/{name(runs['units'])}", "run")
    page.locator(".harness summary").click()
    card = json.loads((runs["units"] / "config.json").read_text())["provenance"]["harness"]
    rows = dict(zip(texts(page, ".harness dt"), texts(page, ".harness dd"), strict=True))
    assert rows["ends"] == card["ends"] and rows["tools"] == "none"
    assert "provenance.harness" not in texts(page, ".config:not(.harness) dt")


def test_the_best_bare_retriever_stands_beside_programs_and_the_bounds_beside_a_run(
    open_page, runs
):
    mean = f"{json.loads((runs['floor'] / 'scores.json').read_text())['metrics']['nDCG@10']['mean']:.3f}"
    captions = open_page().locator("figcaption").all_inner_texts()
    assert any(
        f"best bare retriever {mean} (bm25)" in " ".join(text.split()) for text in captions
    ), captions
    page = open_page(f"#/run/{name(runs['long'])}", "run")
    assert "(retrieve over bm25(" in page.locator(".bounds li").first.inner_text()


def test_queries_are_filtered_by_fate_and_by_words(open_page, runs):
    page = open_page(f"#/run/{name(runs['long'])}", "run")
    fates = {
        query_id: ["found" if 0 < one["place"] <= 10 else one["lost_as"] for one in row["relevant"]]
        for query_id, row in judged(runs["long"]).items()
    }
    page.get_by_label("Has a document that was").select_option("never_surfaced")
    shown = set(attributes(page, "tr[data-query]", "data-query"))
    assert shown == {
        query_id for query_id, all_of_them in fates.items() if "never_surfaced" in all_of_them
    }
    page.get_by_label("Has a document that was").select_option("")
    text = judged(runs["long"])["wc_03"]["text"].split()[:8]
    page.locator("[data-search]").fill(" ".join(text).upper())
    assert attributes(page, "tr[data-query]", "data-query") == ["wc_03"]


def test_words_are_found_in_a_run_and_lead_to_their_step(open_page, runs):
    steps = outcome(runs["long"], "wc_03")["trace"]["steps"]
    number, step = next(
        (n, step) for n, step in enumerate(steps) if step["tool"] == "note" and step["argument"]
    )
    words = " ".join(step["argument"].split()[:3])
    page = open_page(f"#/run/{name(runs['long'])}", "run")
    page.get_by_label("documents shown").fill(words.upper())
    page.keyboard.press("Enter")
    page.wait_for_selector(".found li")
    assert words.lower().split()[0] in [text.lower() for text in texts(page, ".found mark")]
    page.click(f".found a[href$='/q/wc_03/s/{number}']")
    view_is(page, "query", "wc_03")
    assert attributes(page, ".step.current", "data-step") == [str(number)]
    page.go_back()
    page.wait_for_selector(".found li")  # the words are in the address


def test_a_step_opens_to_what_was_sent_and_what_came_back(open_page, runs):
    query_id = next(iter(judged(runs["units"])))
    steps = outcome(runs["units"], query_id)["trace"]["steps"]
    number, [key] = next((n, step["calls"]) for n, step in enumerate(steps) if step.get("calls"))
    page = open_page(f"#/run/{name(runs['units'])}/q/{query_id}", "query")
    button = page.get_by_role("button", name=f"Model call of step {number}", exact=True)
    button.press("Enter")
    page.wait_for_selector(".call .answer")
    assert texts(page, ".call .role") == ["system", "user", "answer"]
    said = page.locator(".call").inner_text()
    assert (
        key in said
        and "[[ ## completed ## ]]" in said
        and "Your input fields are" in said
        and "ended: stop" in said
    )
    assert button.get_attribute("aria-expanded") == "true"
    button.press("Space")
    assert (
        button.get_attribute("aria-expanded") == "false" and not page.locator(".call").is_visible()
    )
    open_page(f"#/run/{name(runs['units'])}?find=your+input+fields", "run")
    page.locator(".found a").first.click()
    page.wait_for_selector(".step.current .call")


def test_failures_are_counted_by_kind_and_lead_to_their_queries(open_page, runs):
    page = open_page(f"#/run/{name(runs['failed'])}", "run")
    page.get_by_role("button", name="ValueError").click()
    (failed,) = attributes(page, "tr[data-query]", "data-query")
    page.locator("tr[data-query] th a").click()
    view_is(page, "query", failed)
    assert "⟨U+202E⟩ was unusable" in page.locator(".notice.bad").inner_text()
    assert page.locator("tr.gold .fate").first.inner_text() == "lost to an error"


def test_what_the_searcher_does_is_counted_when_it_is_opened_and_leads_to_steps(open_page, runs):
    page = open_page(f"#/run/{name(runs['long'])}", "run")
    page.get_by_text("Searches, notes, hops and losses").click()
    row = page.get_by_role("row", name="share of a search's results that are new")
    row.get_by_role("link").first.click()
    assert re.search(r"/q/[^/]+/s/\d+$", page.url)
    page = open_page(f"#/run/{name(runs['old'])}", "run")
    assert page.get_by_text("Searches, notes, hops and losses").count() == 0  # which nobody knows


# --- a query


def test_links_lead_to_the_step_that_decided_a_fate(open_page, runs):
    query_id, row = next(
        (q, r) for q, r in judged(runs["long"]).items() if any(one["rank"] for one in r["relevant"])
    )
    one = next(one for one in row["relevant"] if one["rank"])
    page = open_page(f"#/run/{name(runs['long'])}/q/{query_id}", "query")
    line = page.locator(f'tr.gold[data-doc="{one["unit"]}"]')
    line.get_by_text(f"surfaced at hop {one['hop']}, rank {one['rank']}").click()
    assert page.url.endswith(f"/q/{query_id}/s/{one['search']}")
    step = page.locator(f'.step[data-step="{one["search"]}"]')
    assert "current" in step.get_attribute("class")
    assert step.locator(f'.hit.gold[data-doc="{one["doc_id"]}"] .rank').inner_text() == str(
        one["rank"]
    )
    assert page.evaluate("document.activeElement.closest('.step').dataset.step") == str(
        one["search"]
    )
    again = open_page(page.url[page.url.index("#") :], "query")
    assert "current" in again.locator(f'.step[data-step="{one["search"]}"]').get_attribute("class")


def test_every_step_shows_what_came_back_with_gold_marked_and_its_rank(open_page, runs):
    query_id = "wc_03"
    page = open_page(f"#/run/{name(runs['floor'])}/q/{query_id}", "query")
    gold = {one["unit"] for one in judged(runs["floor"])[query_id]["relevant"]}
    steps = outcome(runs["floor"], query_id)["trace"]["steps"]
    assert attributes(page, ".step", "data-step") == [str(n) for n in range(len(steps))]
    ranks = [
        str(rank) for rank, doc_id in enumerate(steps[0]["doc_ids"], start=1) if doc_id in gold
    ]
    assert texts(page, '.step[data-step="0"] .hit.gold .rank') == ranks
    assert set(texts(page, '.step[data-step="0"] .hit.gold .star')) == {"★\nrelevant:"}
    page.locator('.step[data-step="0"] .hits + .more').click()
    assert page.locator('.step[data-step="0"] .hit').count() == len(steps[0]["doc_ids"])
    assert page.locator(".block b").count() == 1  # gold surfaces in one search


def test_passages_are_gold_when_their_document_is(open_page, runs):
    query_id, row = next(iter(judged(runs["units"]).items()))
    page = open_page(f"#/run/{name(runs['units'])}/q/{query_id}", "query")
    gold = {one["unit"] for one in row["relevant"]}
    page.locator('.step[data-step="0"] .hits + .more').click()
    came = outcome(runs["units"], query_id)["trace"]["steps"][0]["doc_ids"]
    passages = [doc_id for doc_id in came if doc_id.split(":")[0] in gold]
    assert attributes(page, '.step[data-step="0"] .hit.gold', "data-doc") == passages
    assert len(passages) > len(gold)


def test_keys_lead_through_queries_steps_and_up_and_to_help(open_page, runs):
    page = open_page(f"#/run/{name(runs['long'])}?sort=-value", "run")
    order = attributes(page, "tr[data-query]", "data-query")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.closest('tr').dataset.query") == order[1]
    page.keyboard.press("Enter")
    view_is(page, "query", order[1])
    page.keyboard.press("j")
    view_is(page, "query", order[2])
    page.keyboard.press("k")
    view_is(page, "query", order[1])
    for _ in range(3):
        page.keyboard.press("n")
    page.keyboard.press("p")
    page.wait_for_function("location.hash.endsWith('/s/1')")
    page.keyboard.press("u")
    view_is(page, "run")
    page.wait_for_function("location.hash.endsWith('?sort=-value')")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.type("jku?")
    assert page.locator("[data-search]").input_value() == "jku?"
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    view_is(page, "overview")
    page.keyboard.press("?")
    assert page.get_by_role("dialog", name="Keys").is_visible()
    page.keyboard.press("Escape")
    assert not page.get_by_role("dialog", name="Keys").is_visible()
    assert page.locator("main").get_attribute("data-view") == "overview"


def test_an_address_of_nothing_says_so(browser, address):
    with Watched(browser) as one:
        one.go(f"{address}#/run/obliq-wildchat/none", "run")
        assert "no run" in one.page.get_by_role("alert").inner_text()
        one.page.get_by_role("link", name="All runs", exact=True).click()
        view_is(one.page, "overview")


# --- side by side


def test_runs_are_chosen_and_compared(open_page, runs):
    page = open_page()
    for path in (runs["short"], runs["long"]):
        page.locator(f'tr[data-run="{name(path)}"] input').check()
    page.locator("[data-compare]").click()
    view_is(page, "compare")
    sides = [values(runs[one]) for one in ("short", "long")]
    if "compare/" in page.url and page.url.index(runs["short"].name) > page.url.index(
        runs["long"].name
    ):
        sides.reverse()
    moved = {query_id: abs(sides[1][query_id] - sides[0][query_id]) for query_id in sides[0]}
    shown = attributes(page, "tr[data-query]", "data-query")
    assert [moved[query_id] for query_id in shown] == sorted(moved.values(), reverse=True)
    page.locator("tr[data-query] th a").first.click()
    view_is(page, "compare", shown[0])
    page.keyboard.press("j")
    view_is(page, "compare", shown[1])


def test_steps_that_are_the_same_are_folded_and_the_first_difference_is_marked(open_page, runs):
    query_id = "wc_03"
    sides = [runs["short"], runs["long"]]
    steps = [outcome(path, query_id)["trace"]["steps"] for path in sides]
    deeds = [[(step["tool"], step["argument"], step["doc_ids"]) for step in one] for one in steps]
    same = next(n for n, (a, b) in enumerate(zip(*deeds, strict=False)) if a != b)
    assert same > 0
    page = open_page(f"#/compare/{','.join(map(name, sides))}/q/{query_id}", "compare")
    assert page.locator(".same > summary").inner_text() == f"{same} identical steps"
    assert attributes(page, "[data-difference]", "data-step") == [str(same)] * 2
    assert attributes(page, ".side .step", "data-step") == [
        str(n) for one in steps for n in range(same, len(one))
    ]
    assert page.locator(".same .step").count() == same


def test_of_three_runs_two_may_have_ended_where_the_third_goes_on(browser, runs, tmp_path):
    paths = [
        shutil.copytree(runs["floor"], tmp_path / "runs" / "wildchat" / f"run-{letter}")
        for letter in "abc"
    ]
    steps = outcome(paths[2], "wc_03")["trace"]["steps"]
    for path in paths[:2]:
        rows = [json.loads(line) for line in (unsealed(path) / "outcomes.jsonl").open()]
        for row in rows:
            row["trace"]["steps"] = []  # it failed before its first step
        (path / "outcomes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = tmp_path / "page.html"
    page_server.write_page(ViewerApi([tmp_path / "runs"], exported=True), file)
    with Watched(browser, **WIDE) as one:
        one.go(f"{file.as_uri()}#/compare/{','.join(map(name, paths))}/q/wc_03", "compare")
        assert texts(one.page, ".side .ended") == ["Ends after 0 steps."] * 2
        assert attributes(one.page, ".side .step", "data-step") == [
            str(n) for n in range(len(steps))
        ]
        assert one.problems() == []


def test_gold_that_one_found_and_the_other_missed_is_on_top(open_page, runs):
    sides = [runs["long"], runs["floor"]]
    found = [
        {
            q: {one["unit"] for one in row["relevant"] if 0 < one["place"] <= 10}
            for q, row in judged(path).items()
        }
        for path in sides
    ]
    query_id = max(found[0], key=lambda q: len(found[0][q] ^ found[1][q]))
    apart = found[0][query_id] ^ found[1][query_id]
    assert apart
    page = open_page(f"#/compare/{','.join(map(name, sides))}/q/{query_id}", "compare")
    assert set(attributes(page, '[data-group="differs"] tr.gold', "data-doc")) == apart
    rest = (
        {one["unit"] for one in judged(sides[0])[query_id]["relevant"]}
        - found[0][query_id]
        - found[1][query_id]
    )
    assert set(attributes(page, '[data-group="missed"] tr.gold', "data-doc")) == rest


def test_runs_that_were_asked_something_else_are_shown_with_a_warning(open_page, runs):
    page = open_page(f"#/compare/{name(runs['long'])},{name(runs['units'])}", "compare")
    assert "Their values are not comparable" in page.locator("main").inner_text()


def test_three_runs_have_a_matrix_of_pairs_and_queries_that_moved_can_be_listed(open_page, runs):
    three = [runs[one] for one in ("floor", "short", "long")]
    page = open_page(f"#/compare/{','.join(map(name, three))}", "compare")
    assert page.locator(".verdicts li").count() == 2
    assert page.locator(".matrix tbody tr").count() == 2
    assert len([text for text in texts(page, ".matrix td") if "p\xa0=\xa0" in text]) == 3
    metrics = page.locator(".by-run tbody tr")
    assert [row.count("\xa0to\xa0") > 0 for row in metrics.all_inner_texts()] == [False, True, True]
    page.get_by_role("combobox", name="Show").select_option("moved")
    spread = [float(text) for text in texts(page, "tr[data-query] td:last-child b")]
    assert spread and all(spread)
    page.wait_for_selector(".lines")


def test_a_run_that_ends_meanwhile_is_shown_without_reload(browser, runs, tmp_path):
    ended = runs["floor"]
    going = tmp_path / "runs" / ended.parent.name / ended.name
    going.mkdir(parents=True)
    lines = (ended / "outcomes.jsonl").read_bytes().splitlines(keepends=True)
    shutil.copy(ended / "config.json", going)
    (going / "outcomes.jsonl").write_bytes(b"".join(lines[:3]))
    answers = ViewerApi([tmp_path / "runs"])
    with page_server.open_server(answers, 0) as served, Watched(browser, **WIDE) as one:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        one.go(served.address, "overview")
        assert "3" in one.page.locator("[data-live] dd b").first.inner_text()
        with (going / "outcomes.jsonl").open("ab") as file:
            file.write(lines[3])
        one.page.wait_for_function(
            "() => document.querySelector('[data-live] dd b')?.textContent === '4'"
        )
        one.page.locator("[data-live] a").first.click()
        view_is(one.page, "run")
        one.page.wait_for_selector("tr[data-query]")
        assert one.page.locator("tr[data-query]").count() == 4
        shutil.copytree(ended, going, dirs_exist_ok=True)
        one.page.wait_for_function("() => document.querySelectorAll('tr[data-query]').length === 8")
        assert one.page.locator("[data-live]").count() == 0
        served.shutdown()
        assert one.problems() == []


def test_what_a_reader_types_stays_while_runs_go_and_end(browser, runs, tmp_path):
    ended = runs["floor"]
    going = tmp_path / "runs" / ended.parent.name / ended.name
    going.mkdir(parents=True)
    shutil.copy(ended / "config.json", going)
    (going / "outcomes.jsonl").write_bytes(b"")
    shutil.copytree(runs["long"], tmp_path / "runs" / ended.parent.name / runs["long"].name)
    with page_server.open_server(ViewerApi([tmp_path / "runs"]), 0) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        with Watched(browser, **WIDE) as one:
            one.go(served.address, "overview")
            page = one.page
            page.locator("[data-search]").fill("wild")
            page.keyboard.press("ArrowLeft")
            assert page.locator("tr[data-run]").count() == 1
            shutil.copytree(ended, going, dirs_exist_ok=True)
            page.wait_for_function("() => document.querySelectorAll('tr[data-run]').length === 2")
            page.keyboard.type("x")
            assert page.locator("[data-search]").input_value() == "wilxd"
            assert one.problems() == []
        served.shutdown()


def test_remarks_are_saved_listed_and_carried_by_a_file(browser, runs, tmp_path):
    path = tmp_path / "runs" / runs["long"].parent.name / runs["long"].name
    shutil.copytree(runs["long"], path)
    with page_server.open_server(ViewerApi([tmp_path / "runs"]), 0) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        with Watched(browser, **WIDE) as one:
            one.go(f"{served.address}#/run/{name(path)}/q/wc_03", "query")
            page = one.page
            page.get_by_role("button", name="Remark on this query").click()
            page.get_by_role("combobox", name="Label").fill("odd")
            page.get_by_role("button", name="Save").press("Enter")
            page.wait_for_selector("text=Saved.")
            page.keyboard.press("u")
            view_is(page, "run")
            page.get_by_role("combobox", name="Remark").select_option("label:odd")
            assert attributes(page, "tr[data-query]", "data-query") == ["wc_03"]
            with page.expect_download() as download:
                page.get_by_role("button", name="CSV").click()
            [_, row] = Path(download.value.path()).read_text().splitlines()
            assert row.startswith("wc_03,") and ",odd," in row
            assert one.problems() == []
        served.shutdown()
    file = tmp_path / "page.html"
    page_server.write_page(ViewerApi([tmp_path / "runs"], exported=True), file)
    with Watched(browser, **WIDE) as one:
        one.offline()
        one.go(f"{file.as_uri()}#/run/{name(path)}/q/wc_03", "query")
        assert texts(one.page, ".remark") == ["odd"]
        assert one.problems() == []


def test_hops_fold_steps_are_found_and_the_loss_is_gone_to(open_page, runs):
    query_id = next(
        query_id
        for query_id, row in judged(runs["long"]).items()
        for one in row["relevant"]
        if one["chars"] and not 0 < one["place"] <= 10
    )
    page = open_page(f"#/run/{name(runs['long'])}/q/{query_id}", "query")
    hops = page.locator(".hop-part")
    page.keyboard.press("f")
    assert page.locator(".hop-part[open]").count() == 0 and hops.count() > 1
    page.keyboard.press("g")
    page.wait_for_function("() => location.hash.includes('/s/')")
    assert page.locator(".step.current").is_visible()
    page.locator("[data-search]").fill("stop")
    tools = [step["tool"] for step in outcome(runs["long"], query_id)["trace"]["steps"]]
    assert tools[-1] == "stop"
    shown = attributes(page, ".step:not([hidden])", "data-step")
    assert str(len(tools) - 1) in shown and len(shown) < len(tools)


# --- without network, for everybody, on small screens


def test_the_exported_file_works_from_disk_without_network(browser, runs, tmp_path):
    file = tmp_path / "page.html"
    size = page_server.write_page(ViewerApi([runs["short"].parent], exported=True), file)
    assert size == file.stat().st_size
    with Watched(browser) as one:
        one.offline()
        one.go(file.as_uri(), "overview")
        page = one.page
        assert page.locator("tr[data-run]").count() == 5
        page.locator(f'tr[data-run="{runs["long"].name}"] th a').click()
        view_is(page, "run")
        page.locator("tr[data-query] th a").first.click()
        view_is(page, "query")
        page.keyboard.press("n")
        assert page.url.endswith("/s/0")
        page.locator(".hit details summary").first.click()
        page.get_by_label("Beside").select_option(runs["short"].name)
        page.get_by_role("button", name="Compare").click()
        view_is(page, "compare")
        assert page.locator("[data-difference]").count() == 2
        assert one.requests == [file.as_uri()]
        assert one.problems() == []


@pytest.fixture(scope="module")
def places(runs):
    """Every view, by its address."""
    two = f"{name(runs['short'])},{name(runs['long'])}"
    return {
        "overview": "#/",
        "run": f"#/run/{name(runs['failed'])}",
        "query": f"#/run/{name(runs['long'])}/q/wc_03/s/2",
        "query ": f"#/run/{name(runs['units'])}/q/{next(iter(judged(runs['units'])))}",
        "compare": f"#/compare/{two}",
        "compare ": f"#/compare/{two},{name(runs['floor'])}/q/wc_03",
        "compare  ": f"#/compare/{two},{name(runs['floor'])},{name(runs['failed'])}",
    }


def visit(page, places):
    """Each view in turn, in one window, with what can be unfolded at its top unfolded."""
    for kind, place in places.items():
        page.evaluate("place => { location.hash = place }", place)
        view_is(page, kind.strip())
        page.wait_for_load_state("networkidle")
        page.evaluate(
            "[...document.querySelectorAll('details')].slice(0, 6).forEach(one => one.open = true)"
        )
        page.evaluate("document.querySelector('.disclose')?.click()")
        page.wait_for_load_state("networkidle")
        yield kind


@pytest.mark.parametrize("theme", THEMES)
def test_axe_finds_nothing_serious(open_page, places, theme):
    """Colours are looked at in both themes, all else once."""
    tags = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]}
    options = {
        "resultTypes": ["violations"],
        "preload": False,
        "runOnly": tags if theme == "light" else ["color-contrast"],
    }
    page, found = open_page(color_scheme=theme), []
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    for kind in visit(page, places):
        result = page.evaluate(
            "([exclude, options]) => axe.run({ exclude }, options)", [ALIKE, options]
        )
        assert result["passes"]
        found += [
            (kind, one["id"], one["nodes"][0]["html"][:200])
            for one in result["violations"]
            if one["impact"] in ("serious", "critical")
        ]
    assert found == []


def test_no_view_scrolls_sideways_at_400_pixels(open_page, places):
    page = open_page(viewport=NARROW)
    wide = {
        kind: page.evaluate("document.documentElement.scrollWidth") for kind in visit(page, places)
    }
    assert wide == dict.fromkeys(places, NARROW["width"])


def test_everything_is_reached_by_keyboard_and_headings_are_in_order(open_page, places):
    page = open_page()
    for kind in visit(page, places):
        levels = page.evaluate(
            "[...document.querySelectorAll('main :is(h1, h2, h3, h4, h5)')].map(one => Number(one.tagName[1]))"
        )
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), (
            kind,
            levels,
        )
        boxes = page.evaluate(
            "[...document.querySelectorAll('.scrolling')].map(box => [box.tabIndex, box.ariaLabel])"
        )
        assert all(tab == 0 and label for tab, label in boxes)
    page = open_page()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
