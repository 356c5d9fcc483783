"""The panels of the page of a run or a query, by name; panel.py says what a panel is."""

import re
from collections.abc import Sequence

from sextant.evals.viewer.panel import Panel
from sextant.tools import plugins
from sextant.tools.errors import UsageError

# To add a panel: a file with a Panel, as docs/guide/extend.md has one, and its row here, under the
# panel's own name. They stand on the page in this order.
PANELS = {
    "search": "sextant.evals.viewer.run_panels:SEARCH",
    "behaviour": "sextant.evals.viewer.run_panels:BEHAVIOUR",
    "ranks": "sextant.evals.viewer.run_panels:RANKS",
    "reach": "sextant.evals.viewer.run_panels:REACH",
}


def load_panels(names: Sequence[str]) -> list[Panel]:
    """Return the panels of every page, then those of `names`: FILE.py:NAME, package.module:NAME or
    an entry point in the group sextant.panels.

    UsageError for a name that is no panel, or a panel whose name is taken.
    """
    panels = {name: plugins.load_object("panel", name, PANELS) for name in PANELS}
    for name in names:
        panel = plugins.load_object("panel", name, {}, plugins.PANELS)
        if not isinstance(panel, Panel):
            raise UsageError(f"{name} is a {type(panel).__name__}; a panel is a Panel(...)")
        if not re.fullmatch("[a-z][a-z0-9-]*", panel.name):
            raise UsageError(f"panel {panel.name!r}: a name has small letters, digits and hyphens")
        if panel.name in {*panels, "q", "s", "query", "call"}:
            raise UsageError(f"there is a panel {panel.name!r} already; choose another name")
        panels[panel.name] = panel
    return list(panels.values())
