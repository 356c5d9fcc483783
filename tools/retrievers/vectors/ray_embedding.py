"""Vectors of a corpus by a Ray cluster (https://docs.ray.io): a Ray Data job, whose actors hold the
encoder.

Its blocks are those of a machine, computed with as many threads: the vectors are the same to the
last bit if the processors are. Each is on this machine's disk before it counts. Left out: models
that are asked over the network.
"""

import os
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from logging import getLogger
from traceback import walk_tb
from typing import Any

import numpy as np

from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, UsageError
from sextant.tools.platform.installation import explain_missing
from sextant.tools.retrievers.devices import device
from sextant.tools.retrievers.neural import loading
from sextant.tools.retrievers.vectors.embedder import Block, Embedder, Vectors, make_block

try:
    import ray as ray  # also for evals/running/workers/ray_workers.py
    import ray.data
except ImportError as error:
    raise UsageError(f"--workers ray needs {explain_missing(error.name, 'ray')}") from None

BLOCKS = 4096  # of a job; their ids are held in memory, and its actors load the model
# Of a client's server on the head, of which one in ten fails (issue 63202 of ray-project/ray)
STARTS = 3


@contextmanager
def connect_ray(address: str, share: str = "") -> Iterator[None]:
    """Be connected to the cluster at ray://HOST:PORT; "ray" is that of $RAY_ADDRESS, or this
    machine's, or a new one.

    Actors work in a copy of `share`, a folder or the URL of a zip file, of which Ray makes one a
    node. DataError if there is no cluster.
    """
    getLogger("ray.util.client").setLevel("CRITICAL")  # the caller reports a cluster that is lost
    getLogger("ray.util.client.logsclient").disabled = True  # it sets a level of its own
    # The DataError below says that no cluster answers.
    warnings.filterwarnings("ignore", module="ray.util.client")
    named: Any = {"runtime_env": {"working_dir": share}} if share else {}
    for tries_left in reversed(range(STARTS)):
        try:
            ray.init(
                None if address == "ray" else address,
                log_to_driver=False,
                logging_level="warning",
                **named,
            )
            break
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            if tries_left and isinstance(error, ConnectionAbortedError):
                continue
            raise _no_cluster(address, error) from error
    try:
        yield
    finally:
        ray.shutdown()


def _no_cluster(address: str, error: Exception) -> DataError:
    first, *more_lines = str(error).strip().splitlines() or [type(error).__name__]
    # Of a traceback on the head.
    line = more_lines[-1] if more_lines and first.endswith(":") else first
    mend = "start one with `ray start --head`"
    # Without it, Ray sends no token to a given address.
    if "RAY_AUTH_MODE" not in os.environ:
        mend += "; if it requires a token (~/.ray/auth_token), set RAY_AUTH_MODE=token"
    return DataError(f"no Ray cluster is at {address} ({line}); {mend}")


def ray_excepthook(raised: threading.ExceptHookArgs) -> None:
    """Print a thread's exception, as threading.excepthook does, unless Ray or gRPC began that
    thread.

    Such a thread fails when the cluster is lost, which the caller reports: Ray then closes a
    channel that gRPC is still watching (issue 18995 of grpc/grpc).
    """
    modules = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(raised.exc_traceback)]
    first = next((name for name in modules if name != "threading"), "")
    if first.partition(".")[0] not in ("grpc", "ray"):
        threading.__excepthook__(raised)


def make_blocks(
    embedder: Embedder, corpus: Corpus, blocks: Iterable[Block]
) -> Iterator[tuple[int, Vectors]]:
    """Yield the vectors of blocks as they are made. DataError for texts that the encoder refuses."""
    ray.data.DataContext.get_current().enable_progress_bars = False
    torch_device = device()
    cores = loading.cores()
    blocks = iter(blocks)
    actors = {
        "fn_constructor_args": (embedder, corpus, cores, torch_device),
        "num_cpus": cores,
        "num_gpus": 1 if torch_device.startswith("cuda") else None,
        "batch_size": 1,
    }
    while batch := [
        {"first": first, "doc_ids": doc_ids} for first, doc_ids in islice(blocks, BLOCKS)
    ]:
        pool = ray.data.ActorPoolStrategy(min_size=1, max_size=len(batch))
        job = ray.data.from_items(batch, override_num_blocks=len(batch)).map_batches(
            _Encoder,
            compute=pool,
            **actors,
        )
        try:
            for row in job.iter_rows():
                yield (
                    row["first"],
                    np.frombuffer(row["vectors"], np.float32).reshape(-1, row["dimension"]),
                )
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            line = str(cause).strip().rpartition("\n")[2]
            raise DataError(
                f"{embedder.name} failed on the Ray cluster: {line}; what is made is kept"
            ) from error


class _Encoder:
    """An actor: makes blocks with a model that it loads once."""

    def __init__(
        self,
        embedder: Embedder,
        corpus: Corpus,
        cores: int,
        torch_device: str,
    ) -> None:
        os.environ |= {"OMP_NUM_THREADS": str(cores), "SEXTANT_DEVICE": torch_device}
        self._embedder = embedder
        self._corpus = corpus

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        vectors = make_block(self._embedder, self._corpus, batch["doc_ids"][0])
        return {
            "first": batch["first"],
            "vectors": [vectors.tobytes()],
            "dimension": [vectors.shape[1]],
        }
