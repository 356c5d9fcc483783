"""Opening and reading a stored corpus cost the same whatever its size."""

import json
import subprocess
import sys

from sextant.tools.corpus import store
from sextant.tools.records import Document

MEASURE = """
import json, random, sys, time
from pathlib import Path
from sextant.tools.corpus import StoredCorpus
def peak():  # MiB; getrusage's would begin with the size of the process that started this one
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
before, start = peak(), time.perf_counter()
corpus = StoredCorpus(Path(sys.argv[1]))
opened = time.perf_counter() - start
ids = [f"passage-{n}" for n in random.Random(0).sample(range(len(corpus)), 1000)]
start = time.perf_counter()
for doc_id in ids:
    assert len(corpus[doc_id].text) == 2700
print(json.dumps([opened, (time.perf_counter() - start) / 1000, peak() - before]))
"""


def test_opening_and_reading_cost_the_same_whatever_the_size(tmp_path):
    text = "".join(chr(97 + n * n % 26) for n in range(5400))
    for size in (1_000, 40_000):
        passages = (Document(f"passage-{n}", text[n % 2700 : n % 2700 + 2700]) for n in range(size))
        store(passages, tmp_path / str(size))
    opened, read, grown = {}, {}, {}
    for size in (1_000, 40_000):
        command = [sys.executable, "-c", MEASURE, str(tmp_path / str(size))]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        opened[size], read[size], grown[size] = json.loads(printed)
    assert opened[40_000] < opened[1_000] + 0.5  # seconds
    assert read[40_000] < 0.001  # seconds a document; some 30 microseconds on a quiet machine
    assert grown[40_000] < grown[1_000] + 20  # MiB; the 40,000 texts are 103 MiB
