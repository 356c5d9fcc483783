"""Sextant changes nothing of others in its process, but what a run needs, while it lasts."""

import json
import subprocess
import sys

from conftest import ROOT


def test_nothing_of_others_is_changed_by_an_import_or_after_a_run(tmp_path):
    script = ROOT / "tests/support/process_state.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    assert json.loads((tmp_path / "differences.json").read_text()) == {
        "an import": [],
        "a run": [],
        "a run that is refused": [],
        "a run that is not begun": [],
    }
