"""An encoder's transformer with 8-bit weights, for the CPU: exported to ONNX, quantised, and run by onnxruntime.

The numbers inside are quantised too, with one scale for all that is computed at once. Texts are therefore computed one
at a time: a text's vector does not depend on what it is embedded with.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tools.errors import DataError, UsageError
from tools.retrievers.neural.models import LocalModel
from tools.retrievers.neural.transformer import Transformer, load_config, load_tokenizer, positions
from tools.retrievers.store import code, open_index

FAMILIES = ("bert", "roberta", "xlm-roberta", "mpnet")  # whose export was compared with the original
_PACKAGES = ("onnx", "onnxruntime", "torch", "transformers")
_FILE = "transformer.onnx"
_OPSET = 17  # of ONNX: the newest that torch's exporter by tracing is sure of


class QuantizedTransformer:
    """Like Transformer, with 8-bit weights. Its file is an index of kind "encoder" under `home`."""

    batch_tokens = 1  # one text at a time, see above
    dtype = "int8"

    def __init__(self, model: LocalModel, home: Path | None) -> None:
        folder, row = model.folder, model.row
        config = load_config(folder, row)
        if config.model_type not in FAMILIES:
            raise UsageError(f"encoder=int8 is for the families {', '.join(FAMILIES)}; {folder} is {config.model_type}")
        self.tokenizer = load_tokenizer(folder, row)
        self.width, self.positions = config.hidden_size, positions(config, self.tokenizer)
        key = {
            "kind": "encoder",
            "weights": model.weights,
            "versions": _versions(),
            "code": code(neural="quantized transformer"),
        }
        self._onnx = open_index(
            home,
            key,
            build=lambda place: _export(_finite(Transformer(folder, row, where="cpu").model, folder), place),
            load=lambda place: (place / _FILE).read_bytes(),
        )
        self._sessions: dict[int, Any] = {}  # by their number of threads, which a session keeps
        self._opening = Lock()

    def hidden(self, ids: NDArray[np.int64]) -> Any:
        """The last hidden states of one text: ids of shape (1, tokens) to (1, tokens, width)."""
        [states] = self._session(torch.get_num_threads()).run(None, {"ids": ids})
        return torch.from_numpy(states)

    def _session(self, count: int) -> Any:
        import onnxruntime  # an extra, see _versions

        with self._opening:
            if count not in self._sessions:
                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads, options.inter_op_num_threads = count, 1
                options.log_severity_level = 3  # errors only
                # A thread that spins while it waits takes the core from whoever else has work.
                options.add_session_config_entry("session.intra_op.allow_spinning", "0")
                self._sessions[count] = onnxruntime.InferenceSession(
                    self._onnx, options, providers=["CPUExecutionProvider"]
                )
            return self._sessions[count]


def _versions() -> dict[str, str]:
    try:
        return {name: version(name) for name in _PACKAGES}
    except PackageNotFoundError as error:
        raise UsageError(
            f"encoder=int8 needs the package {error.name}, which is not installed: pip install 'sextant[int8]'"
        ) from None


def _finite(model: Any, folder: Path) -> Any:
    """`model`, of which there are 8 bits only where all of its weights are numbers."""
    for name, weights in model.named_parameters():
        if not weights.isfinite().all():
            raise DataError(f"the weights {name} in {folder} have NaN or infinity; copy or download it again, whole")
    return model


def _export(model: Any, folder: Path) -> None:
    """Write `model` to `folder`, its matrices in 8 bits with a scale a column."""
    import onnx  # an extra, see _versions
    from onnxruntime.quantization import QuantType, quantize_dynamic  # an extra

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
            Traced().eval(),  # the exporter leaves it as it was, and a new module is in training, with dropout
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
    # What comes out of a layer's wide part has a few large numbers, which 8 bits serve badly: with the matrices behind
    # it in float32 the cosine to the exact vector was at least 0.992, and 0.985 without, for a sixth of the speed.
    narrowing = [
        node.name
        for node in graph.node
        if node.op_type == "MatMul" and len(size := sizes.get(node.input[1], ())) == 2 and size[0] > size[1]
    ]
    with _quiet():
        quantize_dynamic(
            exact,
            folder / _FILE,
            op_types_to_quantize=["MatMul"],
            nodes_to_exclude=narrowing,
            per_channel=True,
            reduce_range=True,  # 7 bits of the 8: sums of two products saturate where there is no VNNI
            weight_type=QuantType.QInt8,
        )
    exact.unlink()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the libraries say to whoever exports a model: on the root logger, and in warnings."""
    root = logging.getLogger()
    before, root.disabled = root.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.disabled = before
