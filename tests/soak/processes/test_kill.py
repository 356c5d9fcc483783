"""kill -9 at fifty random moments of a run of 200 queries at 32 at a time: what is resumed is as if nothing had been.

A process that has imported everything forks one process for the server and one for each sitting, so that a sitting
begins in a hundredth of a second. A run is killed, resumed, killed again at another moment, until it has come to its
end; then it is compared with one that nobody disturbed, and its ledger with the server's own books
(tests/support/bad_server.py). `python tests/soak/processes/test_kill.py SEED KILLS` is one draw alone.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]  # when it is run as a script

from bad_server import BadServer, latency  # noqa: E402
from run_folders import CONFIG  # noqa: E402

from sextant import environments  # noqa: E402
from sextant.evals import run_folder  # noqa: E402
from sextant.evals.running.runner import run_queries  # noqa: E402
from sextant.evals.scoring.score_run import score  # noqa: E402
from sextant.programs.multihop import MultiHop  # noqa: E402
from sextant.tools.models import language_model  # noqa: E402
from sextant.tools.models.call_limits import ConcurrencyLimiter  # noqa: E402
from sextant.tools.models.run_resources import RunResources  # noqa: E402
from sextant.tools.models.storage.ledger import open_ledger  # noqa: E402
from sextant.tools.retrievers.lexical.bm25 import BM25  # noqa: E402
from sextant.tools.session import Toolbox  # noqa: E402

QUERIES = 200
AT_ONCE = 32
KILLS = 25  # in each of two tests, so that two processes share the work


def data(place: Path) -> Path:
    """The miniature's documents, and its queries so often that there are 200; each is asked in words of its own."""
    mini = environments.load("congress", "mini", "all")
    folder = place / "tip-of-tongue" / "congress"
    (folder / "corpus").mkdir(parents=True)
    (folder / "queries+qrels").mkdir()
    documents = [
        {"_id": document.doc_id, "text": document.text} for document in mini.documents.values()
    ]
    queries, judged = [], ["query-id\tcorpus-id\tscore"]
    for number in range(QUERIES):
        query = mini.queries[number % len(mini.queries)]
        queries.append({"_id": f"Q{number}", "text": f"{query.text} ({number})"})
        judged += [
            f"Q{number}\t{doc_id}\t{grade:g}"
            for doc_id, grade in mini.qrels[query.query_id].items()
        ]
    for name, rows in (("corpus/corpus", documents), ("queries+qrels/queries", queries)):
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )
    (folder / "queries+qrels/qrels.tsv").write_text("\n".join(judged) + "\n", encoding="utf-8")
    return place


class Server:
    """A server in a process of its own. It knows of each request which call and which sitting it was of."""

    def __init__(self) -> None:
        asked, telling = os.pipe()
        answered, self._answering = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _apart(lambda: self._serve(answered, telling))
        os.close(telling)
        os.close(answered)
        self._told = os.fdopen(asked)
        self.spec = json.loads(self._told.readline())

    def _serve(self, answered: int, telling: int) -> None:
        def script(number, body):
            return latency(0.02 + 0.03 * _share(json.dumps(body)))

        server = BadServer(script)
        with os.fdopen(telling, "w") as told, os.fdopen(answered) as asked:
            print(json.dumps(server.spec), file=told, flush=True)
            for _ in asked:
                tries = [
                    (_name(one.asked), int(one.key.split("-")[-1]), one.usage)
                    for one in server.tries
                ]
                server.forget()
                print(json.dumps(tries), file=told, flush=True)

    def usage_totals(self):
        """(call, sitting, usage) of each request since it was last asked."""
        os.write(self._answering, b"books\n")
        return json.loads(self._told.readline())

    def close(self):
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _share(text: str) -> float:
    """From 0 to 1, by the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) / 2**32


def _name(asked: str) -> str:
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def _apart(work) -> None:
    """Do it in this process, which was forked, and end."""
    code = 1
    try:
        work()
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


class Killed:
    """Runs that are killed and resumed."""

    def __init__(self, place: Path) -> None:
        self.place = place
        os.environ["SEXTANT_HOME"] = str(place / "home")
        self.environment = environments.load("congress", str(data(place / "data")), "all")
        index = BM25(self.environment.documents)
        self.program = MultiHop(
            Toolbox(self.environment.documents, index), depth=50, hops=1, per_hop=3, read_chars=150
        )
        assert threading.active_count() == 1, (
            "a fork takes one thread along, and the locks of the others for ever"
        )
        self.server = Server()

    def sit(self, path: Path, number: int = 0, ends: float = 3600.0) -> bool:
        """One sitting; whether it was killed after `ends` seconds, or had come to its end before."""
        pid = os.fork()
        if not pid:
            os.environ["SEXTANT_API_KEY"] = (
                f"sitting-{number}"  # by which the server tells sittings apart
            )
            _apart(lambda: self._work(path))
        due = time.monotonic() + ends
        while time.monotonic() < due:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                assert status == 0, f"a sitting ended with {status}"
                return False
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return True

    def _work(self, path: Path) -> None:
        model = language_model.connect(
            self.server.spec, RunResources(limiter=ConcurrencyLimiter(AT_ONCE))
        )
        with run_folder.claim(path, CONFIG | {"split": "all"}) as folder:
            model.begin(folder.path, folder.usage)
            world = self.environment
            left = run_queries(
                self.program, world.queries, world.documents, folder, model, workers=AT_ONCE
            )
        assert left is None, left

    def told(self, path: Path):
        """What a run has come to: scores, and of each query what does not depend on the hour. In a fork, too."""
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reading)
            _apart(lambda: self._tell(path, writing))
        os.close(writing)
        with os.fdopen(reading) as told:
            made = told.read()
        os.waitpid(pid, 0)
        return json.loads(made)

    def _tell(self, path: Path, writing: int) -> None:
        scores = score(path, self.environment)
        outcomes = {}
        for query_id, outcome in sorted(run_folder.read_outcomes(path).items()):
            steps = [
                (step["tool"], step["argument"], step["doc_ids"])
                for step in outcome["trace"]["steps"]
            ]
            outcomes[query_id] = outcome["ranking"], outcome["usage"], outcome["error"], steps
        usage_totals = open_ledger(path).usage_totals.json()
        lines = (path / "outcomes.jsonl").read_bytes().count(b"\n")
        with os.fdopen(writing, "w") as told:
            same = {
                "metrics": scores["metrics"],
                "outcomes": outcomes,
                "csv": (path / "scores.csv").read_text(),
            }
            json.dump({"same": same, "books": usage_totals, "lines": lines}, told)

    def check(self, seed: int, kills: int):
        """So many kills; what they came to."""
        drawn = random.Random(seed)
        began = time.monotonic()
        assert not self.sit(self.place / "whole" / "task" / "run")
        took = time.monotonic() - began
        reference = self.told(self.place / "whole" / "task" / "run")
        calls = {call: usage for call, _, usage in self.server.usage_totals()}
        done = twice = runs = 0
        while done < kills:
            path = (
                self.place / f"killed-{runs}" / "task" / "run"
            )  # another one, also where the last met no kill
            sittings = 0
            while self.sit(path, sittings, drawn.uniform(0.0, took / 2)):
                sittings += 1
            done, runs = done + sittings, runs + 1
            twice += compare(self.told(path), reference, self.server.usage_totals(), calls)
        return {
            "kills": done,
            "twice": twice,
            "calls": len(calls),
            "runs": runs,
            "seconds": round(took, 2),
        }


def compare(told, reference, tries, calls) -> int:
    """AssertionError for what is not as in the run that nobody disturbed. How many calls were paid for twice."""
    assert told["lines"] == QUERIES and told["same"] == reference["same"], "another outcome"
    by_call = defaultdict(list)
    for call, sitting, _ in tries:
        by_call[call].append(sitting)
    assert by_call.keys() == calls.keys(), "other calls"
    vain = [
        sitting for sittings in by_call.values() for sitting in sorted(sittings)[:-1]
    ]  # paid for, and asked again
    most = max(
        Counter(vain).values(), default=0
    )  # a thread has its answer on disk before it asks again
    assert most <= AT_ONCE, f"{most} calls of one sitting were paid twice"
    usage_totals = told["books"]
    tokens = [
        sum(usage[name] for usage in calls.values())
        for name in ("prompt_tokens", "completion_tokens")
    ]
    assert (usage_totals["sent"], usage_totals["answered"], usage_totals["failed"]) == (
        len(calls),
        len(calls),
        0,
    ), "the ledger"
    assert [usage_totals["input_tokens"], usage_totals["output_tokens"]] == tokens, (
        "tokens in the ledger"
    )
    return len(vain)


def main(seed: int, kills: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        runs = Killed(Path(place))
        try:
            print(json.dumps(runs.check(seed, kills)))  # noqa: T201
        finally:
            runs.server.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_that_is_killed_at_random_moments_is_resumed_to_the_undisturbed_one(seed):
    made = subprocess.run(
        [sys.executable, __file__, str(seed), str(KILLS)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert made.returncode == 0, made.stderr[-3000:]
    told = json.loads(made.stdout)
    assert told["kills"] >= KILLS and told["calls"] >= 2 * QUERIES
    assert told["twice"] <= told["kills"] * AT_ONCE
    assert told["twice"], "no kill has met a call in flight, so nothing was tested"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
