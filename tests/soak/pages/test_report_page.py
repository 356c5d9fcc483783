"""The report's page in a real browser: accessible in both themes, on a narrow window as on a wide one."""

import json

import pytest
from axe_playwright_python.sync_playwright import Axe
from run_folders import make, pooled, retrieve

from sextant.evals import report
from sextant.tools.platform.cli import run_command

FULL = {"data": "full", "split": "all"}


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_the_page_is_accessible_in_both_themes_and_narrow(browser, tmp_path, scheme, width):
    for task in ("twitter", "wildchat", "math", "writing", "congress"):
        for name, values, more in (("a", [0.1, 0.2], {}), ("b", [0.2, 0.2], retrieve())):
            columns = {"nDCG@10": values, "R@10": [0.5, 1.0]}
            make(
                tmp_path / f"runs/{name}-{task}", columns, {**FULL, "task": f"obliq/{task}", **more}
            )
    make(
        tmp_path / "runs/c",
        {"nDCG@10": [0.7, 0.2], "R@10": [0.5, 1.0]},
        FULL | pooled("oracle", 300),
    )
    words = [str(tmp_path / "runs"), "--out", str(tmp_path / "report")]
    assert run_command(report.parser(), report.command, words) == 0
    # Axe is a script of the test's: the page's policy would refuse it.
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True, offline=True
    )
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.goto((tmp_path / "report" / "index.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    widths = page.evaluate("[...document.images].map(image => image.naturalWidth)")
    assert widths and all(widths)
    found = Axe().run(page).response["violations"]
    assert not found, json.dumps(found)[:2000]
    assert said == []
    context.close()
