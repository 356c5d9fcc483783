"""The memory of a run does not grow with its queries, but for what is kept on purpose.

That is, of each query, where its outcome begins in the file, and of each call its key. A process of its own does the
run, so that nothing but the run is measured; another one is the server. So many queries, with what was measured:

    python tests/soak/large/test_memory.py 10000
"""

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]  # when it is run as a script

from bad_server import BadServer  # noqa: E402
from run_folders import CONFIG  # noqa: E402

from sextant.evals import run_folder  # noqa: E402
from sextant.evals.running.runner import (  # noqa: E402
    WRITTEN_TOGETHER,
    QueryHooks,
    RemoteSystem,
    run_queries,
)
from sextant.programs.query_rewriting import Rewrite  # noqa: E402
from sextant.tools.corpus import Corpus  # noqa: E402
from sextant.tools.models import language_model  # noqa: E402
from sextant.tools.models.call_limits import ConcurrencyLimiter  # noqa: E402
from sextant.tools.models.run_resources import RunResources  # noqa: E402
from sextant.tools.records import Document, Query  # noqa: E402
from sextant.tools.retrievers.lexical.bm25 import BM25  # noqa: E402
from sextant.tools.session import Toolbox  # noqa: E402

AT_ONCE = 32
QUERIES = 10_000
# Queries until buffers of a bounded size have been filled: Python's own objects are as many from the first thousand on
# (as tracemalloc has it), but the process still takes 2 to 3 MB more, also on a busy machine.
FIRST = 5000
MOST = (
    4 << 20
)  # bytes that may come from then on: 400 a query for id, place and key, and what malloc keeps


def server() -> tuple[str, int]:
    """The address of a server in a process of its own, and that process."""
    reading, writing = os.pipe()
    if pid := os.fork():
        os.close(writing)
        with os.fdopen(reading) as told:
            return told.readline().strip(), pid
    made = BadServer()
    os.write(writing, f"{made.spec}\n".encode())
    while os.getppid() != 1:  # until nobody needs it
        time.sleep(0.2)
        made.forget()
    os._exit(0)


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measured(many: int, spec: str, place: Path) -> dict[int, int]:
    """Bytes in memory after so many queries."""
    os.environ["SEXTANT_HOME"] = str(place / "home")
    corpus = Corpus(
        Document(f"d{number}", f"The committee heard about the {number} ferries.")
        for number in range(50)
    )
    queries = [Query(f"q{number}", f"Something about {number} ferries?") for number in range(many)]
    program = Rewrite(Toolbox(corpus, BM25(corpus)), depth=5)
    model = language_model.connect(spec, RunResources(limiter=ConcurrencyLimiter(AT_ONCE)))
    sizes, done = dict[int, int](), [0]

    def count(outcome: object) -> None:
        done[0] += 1
        if done[0] % 500 == 0:
            sizes[done[0]] = resident()

    with run_folder.claim(place / "runs" / "task" / "run", CONFIG) as folder:
        model.begin(folder.path, folder.usage)
        assert (
            run_queries(
                program,
                queries,
                corpus,
                folder,
                model,
                workers=AT_ONCE,
                hooks=QueryHooks(outcome=count),
            )
            is None
        )
    return sizes


def test_memory_is_flat_over_the_queries_of_a_run():
    told = subprocess.run(
        [sys.executable, __file__, str(QUERIES)], capture_output=True, text=True, timeout=200
    )
    assert told.returncode == 0, told.stderr[-3000:]
    sizes = {int(many): size for many, size in json.loads(told.stdout.splitlines()[-1]).items()}
    assert max(sizes[many] for many in sizes if many > FIRST) - sizes[FIRST] <= MOST, sizes


class AtOnce(RemoteSystem):
    """Answers without a wait, and counts."""

    asked = 0

    def attempt(self, query):
        self.asked += 1
        return {"query_id": query.query_id, "error": None}


def test_outcomes_that_wait_for_a_slow_disk_are_no_more_than_queries_at_a_time(tmp_path):
    system, ahead, model = (
        AtOnce(),
        list[int](),
        language_model.connect("tiny@http://127.0.0.1:9/v1"),
    )

    def write(outcome):
        time.sleep(0.005)
        ahead.append(system.asked - len(ahead))

    with run_folder.claim(tmp_path / "runs" / "task" / "run", CONFIG) as folder:
        model.begin(folder.path, folder.usage)
        run_queries(
            system,
            [Query(f"q{n}", "") for n in range(200)],
            Corpus([]),
            folder,
            model,
            workers=4,
            hooks=QueryHooks(outcome=write),
        )
    assert len(ahead) == 200
    assert max(ahead) <= 4 + 4 + WRITTEN_TOGETHER, "done, at work, and those written together"


def main(many: int) -> None:
    spec, pid = server()
    try:
        with tempfile.TemporaryDirectory() as place:
            started = time.monotonic()
            sizes = measured(many, spec, Path(place))
            for after, size in sizes.items():
                print(f"{after:6} queries  {size / 2**20:.1f} MB")  # noqa: T201
            print(f"{time.monotonic() - started:.1f} s")  # noqa: T201
            print(json.dumps(sizes))  # noqa: T201
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
