"""Exact search on a GPU: the candidates are found there, within the same bounds, so the ranking is
the CPU's.

The vectors, or their 8-bit codes, are copied into the device's memory, and multiplied in float32.
Left out: several devices, and half precision, whose errors have other bounds.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sextant.tools.retrievers.index_store import iter_blocks

# No import statement: rankings do not depend on PyTorch, so that the run does not either
# (tools/code_digest.py).
torch: Any = import_module("torch")

Numbers = NDArray[np.float32] | NDArray[np.int8]
_SHARE = 0.5  # of a device's free memory, at most: models are there as well
_ROWS = 1 << 20  # codes that are converted at a time


def copy_to_device(
    device: str,
    numbers: Numbers,
    scales: NDArray[np.float32] | None,
    errors: NDArray[np.float32],
) -> "GpuCandidateSearch | None":
    """Copy the numbers of estimates (exact_search.ScoreEstimates) to a device of PyTorch; None
    if it has no room.
    """
    room = torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else np.inf
    return (
        GpuCandidateSearch(device, numbers, scales, errors)
        if numbers.nbytes <= _SHARE * room
        else None
    )


class GpuCandidateSearch:
    """Finds candidates on a device. Threads share it."""

    def __init__(
        self,
        device: str,
        numbers: Numbers,
        scales: NDArray[np.float32] | None,
        errors: NDArray[np.float32],
    ) -> None:
        self._numbers = torch.empty(
            numbers.shape,
            dtype=torch.from_numpy(numbers[:0].copy()).dtype,
            device=device,
        )
        for span, block in iter_blocks(numbers):
            self._numbers[span] = torch.tensor(block)
        self._scales = None if scales is None else torch.tensor(scales, device=device)
        self._errors = torch.tensor(errors, device=device)

    def find(
        self,
        query: NDArray[np.float32],
        excluded: Sequence[int] | NDArray[Any],
        k: int,
    ) -> NDArray[np.int64]:
        """Return the documents that may be among the best `k` of a query, but for the rows
        that are `excluded`.
        """
        query_tensor = torch.tensor(query, device=self._errors.device)
        scores = torch.cat(
            [block.float() @ query_tensor for block in torch.split(self._numbers, _ROWS)]
        )
        if self._scales is not None:
            scores *= self._scales
        scores[
            torch.tensor(
                excluded,
                dtype=torch.int64,
                device=scores.device,
            )
        ] = -torch.inf
        errors = self._errors * query_tensor.norm()
        least = (
            (scores - errors).topk(min(k, len(scores))).values.min()
        )  # as VectorRetriever._candidates
        is_candidate = scores + errors >= least.clamp(min=torch.finfo(torch.float32).min)
        rows: NDArray[np.int64] = is_candidate.nonzero()[:, 0].cpu().numpy()
        return rows
