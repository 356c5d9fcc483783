"""An encoder's transformer with 8-bit weights, for the CPU: exported to ONNX, quantised, and run by
onnxruntime. docs/decisions/retrieval.md says why sentence-transformers' own export is not used.

Activations are quantised too, with one scale for a batch; so texts are computed one at a time.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic

from sextant.tools.errors import DataError, UsageError
from sextant.tools.retrievers.index_store import index_code_digest, open_index
from sextant.tools.retrievers.neural import loading
from sextant.tools.retrievers.neural.model_table import LocalModel, versions

# Models whose export was compared with the original.
FAMILIES = (
    "bert",
    "roberta",
    "xlm-roberta",
    "mpnet",
)
_FILE = "transformer.onnx"
_OPSET = 17  # of ONNX: the newest that torch's exporter by tracing is sure of


def quantize(transformer: Any, model: LocalModel, home: Path | None) -> torch.nn.Module:
    """Return an encoder's `transformer` with 8-bit weights, kept under `home` as an index of
    kind "encoder".
    """
    if (family := transformer.config.model_type) not in FAMILIES:
        raise UsageError(
            f"encoder=int8 is for the families {', '.join(FAMILIES)}; {model.folder} is {family}"
        )
    key = {
        "kind": "encoder",
        "weights": model.weights,
        "versions": versions("onnx", "onnxruntime", "torch", "transformers"),
        "code": index_code_digest("sextant.tools.retrievers.neural.quantized"),
    }
    return open_index(
        home,
        key,
        build=partial(_export, transformer, model.folder),
        load=lambda folder: _Quantized(transformer.config, folder / _FILE),
    )


class _Quantized(torch.nn.Module):
    """Maps one text's token ids, shape (1, tokens), to its last hidden states, shape (1, tokens, width)."""

    def __init__(self, config: Any, file: Path) -> None:
        super().__init__()
        self.config = config
        self._weights = file.read_bytes()
        # By the number of threads: 1, or the number of cores.
        self._session = loading.cache_last_two(self._open)

    def forward(self, input_ids: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        [states] = self._session(torch.get_num_threads()).run(None, {"ids": input_ids.numpy()})
        return {"last_hidden_state": torch.from_numpy(states)}

    def _open(self, count: int) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = count
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors only
        # A thread that spins while it waits takes the core from whoever else has work.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return onnxruntime.InferenceSession(
            self._weights, options, providers=["CPUExecutionProvider"]
        )


def _export(model: Any, source: Path, folder: Path) -> None:
    """Write `model`, loaded from `source`, to `folder`, its matrices in 8 bits with a scale a
    column.
    """
    for name, weights in model.named_parameters():
        if not weights.isfinite().all():
            raise DataError(
                f"the weights {name} in {source} have NaN or infinity; copy or download it again, "
                f"whole"
            )

    class Traced(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.model(input_ids=ids).last_hidden_state
            return states

    exact = folder / "float32.onnx"
    axes = {0: "texts", 1: "tokens"}
    with _quiet():
        torch.onnx.export(
            # The exporter leaves it as it was, and a new module is in training, with dropout
            Traced().eval(),
            (torch.arange(10).reshape(2, 5),),
            str(exact),
            dynamo=False,
            opset_version=_OPSET,
            input_names=["ids"],
            output_names=["states"],
            dynamic_axes={"ids": axes, "states": axes},
        )
    graph = onnx.load(exact).graph
    sizes = {weight.name: weight.dims for weight in graph.initializer}
    # A layer's wide part puts out a few large numbers, which 8 bits serve badly. With the matrices
    # behind it in float32 the cosine to the exact vector was at least 0.992, and 0.985 without;
    # that costs a sixth of the speed.
    narrowing = [
        node.name
        for node in graph.node
        if node.op_type == "MatMul"
        and len(size := sizes.get(node.input[1], ())) == 2
        and size[0] > size[1]
    ]
    with _quiet():
        quantize_dynamic(
            exact,
            folder / _FILE,
            op_types_to_quantize=["MatMul"],
            nodes_to_exclude=narrowing,
            per_channel=True,
            # 7 bits of the 8: sums of two products saturate where there is no VNNI
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
    exact.unlink()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence logs and warnings of the libraries during an export."""
    root = logging.getLogger()
    before = root.disabled
    root.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.disabled = before
