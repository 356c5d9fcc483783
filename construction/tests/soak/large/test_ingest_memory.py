"""Half a million documents are ingested in bounded memory, and many are screened in little more.

Of all documents, only ids and signatures are held.
"""

import json
import random
import subprocess
import sys

from conftest import ROOT

DOCUMENTS, CHARACTERS = 500_000, 900

MEASURE = """
import json, sys, time
from pathlib import Path
from sextant_construction.text_cleaning import CleanSettings
from sextant_construction.ingest import CorpusSettings, CutSettings, ingest
def peak():  # MiB
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
before, start = peak(), time.perf_counter()
corpus = CorpusSettings(sys.argv[1], group="post", private=("author",))
source = ingest(corpus, CleanSettings(), CutSettings(), Path(sys.argv[2]))
read, took = peak() - before, time.perf_counter() - start
assert source.private["5"] == {"author": "author-5"} and source.group["5"] == "post-0"
print(json.dumps([len(source.documents), len(source.twins), read, took]))
"""


def test_half_a_million_documents_are_ingested_in_bounded_memory(tmp_path):
    draw = random.Random(0)
    words = [f"word{n}" for n in range(30_000)]
    with (tmp_path / "posts.jsonl").open("w") as file:
        for n in range(DOCUMENTS):
            if n % 4 or n == 0:  # a quarter repeats the text before it
                text = " ".join(draw.choices(words, k=CHARACTERS // 10))
            row = {"id": str(n), "text": text, "post": f"post-{n // 10}", "author": f"author-{n}"}
            file.write(json.dumps(row) + "\n")
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "posts.jsonl"), str(tmp_path / "home")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    many, twins, grown, took = json.loads(done.stdout)
    assert (many, twins) == (DOCUMENTS, DOCUMENTS // 4 - 1)
    assert grown < 1536, (grown, took)  # MiB; the texts alone are 430
    print(f"{grown:.0f} MiB, {took:.0f} s")  # noqa: T201


SCREEN = """
import json, sys
from pathlib import Path
sys.path.append("tests/support")
from building import build, prepare
def peak():  # MiB
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
kinds = {"implied": "it is implied", "other": "it is not"}
screen = {"kinds": kinds, "eligible": ["implied"]}
folder = prepare(Path(sys.argv[2]), "latent", sys.argv[1], attribute={"lens": "stance"}, screen=screen)
before = peak()
build(folder, until="screen")
[row] = [row for row in json.loads((folder / "funnel.json").read_text()) if row["stage"] == "screen"]
print(json.dumps([row["came_out"], peak() - before]))
"""


def test_many_documents_are_screened_in_bounded_memory(tmp_path):
    draw, many = random.Random(0), 50_000
    words = [f"word{n}" for n in range(30_000)]
    with (tmp_path / "posts.jsonl").open("w") as file:
        for n in range(many):
            file.write(
                json.dumps({"id": str(n), "text": " ".join(draw.choices(words, k=33))}) + "\n"
            )
    command = [sys.executable, "-c", SCREEN, str(tmp_path / "posts.jsonl"), str(tmp_path / "built")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    came_out, grown = json.loads(done.stdout)
    print(f"{grown:.0f} MiB")  # noqa: T201
    assert came_out == many and grown < 512
