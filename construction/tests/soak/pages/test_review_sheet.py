"""The sheet as people judge on it, in a real browser, from a file: keys, reloads, files, bad storage."""

import json

import pytest
from axe_playwright_python.sync_playwright import Axe
from chromium import Watched
from hostile_texts import HOSTILE, LONE

from sextant_construction import human_review
from sextant_construction.human_review import (
    Item,
    answers,
    identify,
    import_answers,
    offer,
    write_sheet,
)

WIDE = {
    "viewport": {"width": 1280, "height": 900},
    "reduced_motion": "reduce",
    "accept_downloads": True,
}
GOLD = [
    Item([("Query", f"query {n}"), ("Document", f"document {n} " * 300)], str(n % 3))
    for n in range(6)
]
NAMES = [f"d{n}" for n in range(4)]
CLUSTERS = [
    Item([("Label", f"label {n}"), *((one, f"{one} of {n}") for one in NAMES)], ["d0"], NAMES)
    for n in range(2)
]


@pytest.fixture
def sheet(tmp_path):
    """A sheet of six grades and two clusters."""
    offer(tmp_path, "gold", GOLD)
    offer(tmp_path, "clusters", CLUSTERS)
    write_sheet(tmp_path, tmp_path / "sheet.html")
    return tmp_path / "sheet.html"


@pytest.fixture
def watched(browser):
    """A window; at the end of the test the page must have said nothing, and asked for nothing but itself."""
    with Watched(browser, **WIDE) as one:
        one.offline()
        yield one
        assert one.problems() == []
        assert {request.partition(":")[0] for request in one.requests} <= {"file", "blob"}


def begin(watched, sheet, name="Ann"):
    watched.go(sheet.as_uri(), "start")
    watched.page.keyboard.type(name)
    watched.page.keyboard.press("Enter")
    watched.page.wait_for_selector('main[data-view="item"]')
    return watched.page


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def export(page):
    with page.expect_download() as download:
        page.keyboard.press("e")
    path = download.value.path()
    return [json.loads(line) for line in path.open(encoding="utf-8")]


def shown(page):
    return page.locator("main .part").all_inner_texts()


def done(page):
    return page.locator("#export").inner_text().removeprefix("Export ")


@pytest.mark.smoke
def test_a_person_judges_by_keys_goes_on_after_a_reload_and_the_answers_come_back(
    watched, sheet, tmp_path
):
    page = begin(watched, sheet)
    assert (
        page.locator("h1").inner_text() == human_review.SHEETS["clusters"].ask
        and done(page) == "0 of 8"
    )
    odd = [place for place, text in enumerate(shown(page)) if "d0 of" in text]
    press(page, str(odd[0]), "n")
    page.keyboard.type("told by e")  # letters in a note are no keys
    press(page, "Escape", "Enter", "Enter")  # what is marked; then none of the next
    assert (
        page.locator("h1").inner_text() == human_review.SHEETS["gold"].ask
        and done(page) == "2 of 8"
    )
    press(
        page, "2", "1", "u", "0", "j", "k", "k", "2"
    )  # the second is undone, judged 0, gone back to, judged 2
    assert done(page) == "4 of 8"
    page.reload()
    page.wait_for_selector('main[data-view="item"]')
    assert (
        done(page) == "4 of 8"
        and page.locator("h1").inner_text() == human_review.SHEETS["gold"].ask
    )
    press(page, "3", "1", "1", "1", "1")  # there is no grade 3
    page.wait_for_selector('main[data-view="done"]')
    rows = export(page)
    assert {row["item"] for row in rows} == {identify("gold", one) for one in GOLD} | {
        identify("clusters", one) for one in CLUSTERS
    }
    assert sorted(map(str, (row["value"] for row in rows))) == sorted(
        [*"221111", "[]", "['d0']"], key=str
    )
    assert [row["note"] for row in rows if row["note"]] == ["told by e"]
    (tmp_path / "ann.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert import_answers(tmp_path, [tmp_path / "ann.jsonl"]) == 0
    assert answers(tmp_path) == {row["item"]: row["value"] for row in rows}
    assert (
        human_review.measure_agreement(tmp_path)["sheets"]["clusters"]["model agreement"].mean
        == 7 / 8
    )


def test_two_people_see_the_same_items_in_orders_of_their_own(browser, sheet):
    seen = []
    for name in ("Ann", "Ben"):
        with Watched(browser, **WIDE) as watched:
            page, order = begin(watched, sheet, name), []
            for _ in range(8):
                order.append(shown(page)[0])
                press(page, "j")
            seen.append(order)
    first, second = seen
    assert sorted(first) == sorted(second) and first != second


def test_an_earlier_export_is_taken_but_not_anothers_nor_over_what_was_said_since(
    watched, sheet, tmp_path
):
    page = begin(watched, sheet)
    press(page, "Enter", "Enter", "2", "2")
    rows = export(page)
    page.evaluate("localStorage.clear()")
    page = begin(watched, sheet)
    press(page, "Enter", "Enter", "1")
    rows += [
        dict(rows[0], rater="Ben"),
        {"item": "gold-0", "rater": "Ann", "value": "2"},
        dict(rows[-1], value="9"),
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows) + "no json\n"
    (tmp_path / "mine.jsonl").write_text(text)
    page.locator("#file").set_input_files(tmp_path / "mine.jsonl")
    page.wait_for_selector(".notice.bad")
    told = "1 answer taken; 4 lines left out: not of this sheet, or not by Ann; "
    assert (
        page.locator(".notice span").inner_text()
        == f"{told}1 left out that you have answered otherwise here"
    )
    assert done(page) == "4 of 8" and sorted(str(row["value"]) for row in export(page)) == [
        "1",
        "2",
        "[]",
        "[]",
    ]


@pytest.mark.parametrize(
    "damage", ["{", "[]", "7", '{"gold-1": {"value": "2", "note": ""}}', "spoil"]
)
def test_what_the_browser_kept_and_cannot_be_used_is_put_aside(watched, sheet, damage):
    page = begin(watched, sheet)
    press(page, "Enter", "Enter", "2")
    key = page.evaluate("Object.keys(localStorage).find((key) => key.endsWith('Ann'))")
    kept = page.evaluate("key => localStorage.getItem(key)", key)
    damage = kept.replace('"2"', "2") if damage == "spoil" else damage
    page.evaluate("([key, text]) => localStorage.setItem(key, text)", [key, damage])
    page.reload()
    page.wait_for_selector('main[data-view="item"]')
    assert "damaged" in page.locator(".notice.bad").inner_text()
    assert page.evaluate("key => localStorage.getItem(`${key} damaged`)", key) == damage
    assert done(page) == ("2 of 8" if damage.count("item") or "clusters" in damage else "0 of 8")
    press(page, *(["Enter"] if "clusters" not in damage else ["1"]))
    assert len(export(page)) == (3 if "clusters" in damage else 1)


def test_a_browser_that_keeps_nothing_says_so_and_the_answers_can_still_be_exported(watched, sheet):
    watched.page.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new Error('no'); } })"
    )
    page = begin(watched, sheet)
    press(page, "Enter")
    assert "keeps nothing" in page.locator(".notice.bad").inner_text()
    assert len(export(page)) == 1


def test_hostile_texts_stay_texts(watched, tmp_path):
    texts = [*HOSTILE.values(), LONE]
    offer(tmp_path, "gold", [Item([(text, text), ("Document", text)], "1") for text in texts])
    offer(tmp_path, "ambiguity", [Item([(one, one) for one in texts[:6]], texts[:1], texts[:6])])
    write_sheet(tmp_path, tmp_path / "sheet.html")
    page = begin(watched, tmp_path / "sheet.html", name=HOSTILE["quotes"])
    for _ in range(len(texts) + 1):
        assert page.evaluate(
            "[window.pwned, document.querySelectorAll('main img, main script').length]"
        ) == [None, 0]
        press(page, "1", "Enter")
    rows = export(page)
    assert len(rows) == len(texts) + 1 and {row["rater"] for row in rows} == {HOSTILE["quotes"]}
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert import_answers(tmp_path, [tmp_path / "a.jsonl"]) == 0


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_the_sheet_is_accessible_in_both_themes_and_narrow(browser, sheet, scheme, width):
    # Axe is a script of the test's: the page's policy would refuse it.
    more = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}, "bypass_csp": True}
    with Watched(browser, **WIDE | more) as watched:
        watched.go(sheet.as_uri(), "start")
        found = []
        for view in ("start", "clusters", "gold"):
            found += Axe().run(watched.page).response["violations"]
            assert watched.page.evaluate("document.documentElement.scrollWidth") <= width, view
            if view == "start":
                begin(watched, sheet)
                press(watched.page, "1")
            else:
                press(watched.page, "Enter", "Enter")
        assert [one for one in found if one["impact"] in ("serious", "critical")] == []
