"""A name that is in no table, or a file that is not there, is refused before a library is loaded that takes seconds."""

import subprocess
import sys

from conftest import ROOT

RUN = "sextant.evals.run --program multihop --task congress"
STUDY = """name = "s"
tasks = ["congress"]
[rows]
program = ["retrieve", "mulithop"]
"""
# What is typed -> a part of what is answered
MISTYPED = {
    "sextant.evals.run --program mulithop --task congress": "did you mean 'multihop'?",
    "sextant.evals.run --program mine.py:answer --task congress": "there is no file mine.py",
    "sextant.evals.run --program multihop --task congres": "did you mean 'congress'?",
    "sextant.evals.run --program multihop --task congress,bokos": "did you mean 'books'?",
    f"{RUN} --retriever bm52": "did you mean 'bm25'",
    f"{RUN} --retriever rerank(bm25,dnse)": "did you mean 'dense'",
    f"{RUN} --compiled missing.json": "--compiled missing.json: there is no such file",
    f"{RUN} --lm qwen": "'qwen' names no model",
    f"{RUN} --metric nDGC@10": "no metric is called 'nDGC@10'",
    f"{RUN} --tier priority --limti 3": "has no option --tier",
    f"{RUN} --limti 3": "has no option --limti; did you mean --limit?",
    f"{RUN} --api caht": "no value of --api is called 'caht'; did you mean 'chat'?",
    "sextant.evals.study study.toml": "did you mean 'multihop'?",
    "sextant.evals.study missing.toml": "missing.toml cannot be read",
    "sextant.evals.compare runs/a runs/b": "runs/a is not a run folder",
    "sextant.evals.score runs/a": "runs/a is not a run folder",
    "sextant.evals.export runs/a --to trec --out x": "runs/a is not a run folder",
    "sextant.evals.replay runs/a --retriever bm25": "runs/a is not a run folder",
    "sextant.evals.curves runs": "runs holds no run folder",
    "sextant.evals.behaviour runs": "runs holds no run folder",
    "sextant.evals.report runs --out x": "runs holds no run folder",
    "sextant.evals.report runs --uot x": "has no option --uot; did you mean --out?",
    "sextant.evals.view runs": "runs holds no run folder",
    "sextant_construction.judge --task congress --runs runs": "runs holds no run folder",
    "sextant.evals.import_run missing --task congress": "there is no file missing",
    "sextant.evals.serve --task congres --mcp stdio": "did you mean 'congress'?",
    "sextant.evals.reproduce obliq/tabel2": "did you mean 'obliq/table2'",
    "sextant_construction.__main__ chekc": "did you mean 'check'?",
    "sextant.optimizers.compile --program multihop --task congress --optimizer gepaa": "did you mean 'gepa'?",
    "sextant.environments.__main__ serach": "did you mean 'search'",
    "sextant.environments.__main__ search congres word": "did you mean 'congress'?",
    "sextant.programs.__main__ show mulithop": "did you mean 'multihop'?",
    "sextant.tools.models.__main__ check qwen": "'qwen' names no model",
}
SLOW = {"dspy", "langgraph", "litellm", "numpy", "pyarrow", "torch", "transformers"}
SCRIPT = f"""
import sys
from importlib import import_module
from sextant.tools.platform.cli import run_command
for line in {[*MISTYPED]!r}:
    name, *words = line.split()
    module = import_module(name)
    code = run_command(module.parser(), module.command, words)
    print(code, sorted({SLOW!r} & sys.modules.keys()), flush=True)
"""


def test_a_mistyped_name_or_path_is_answered_without_a_library_that_takes_seconds(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    words = [sys.executable, "-c", SCRIPT]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "SEXTANT_HOME": str(tmp_path / "home")}
    ended = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    said, codes = ended.stderr.splitlines(), ended.stdout.splitlines()
    assert len(said) == len(codes) == len(MISTYPED), ended.stderr
    for (typed, expected), line, code in zip(MISTYPED.items(), said, codes, strict=True):
        assert line.startswith("error: ") and expected in line, (typed, line)
        assert code in ("2 []", "3 []"), (typed, code)
