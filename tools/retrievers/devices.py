"""The device that models and exact search run on."""

import os
from importlib import import_module


def device() -> str:
    """Return the device that models run on: $SEXTANT_DEVICE, or the first CUDA device, or the CPU."""
    if chosen := os.environ.get("SEXTANT_DEVICE"):
        return chosen
    # No import statement: that would make PyTorch a part of what each run depends on
    # (tools/code_digest.py).
    torch = import_module("torch")
    return "cuda" if torch.cuda.is_available() else "cpu"
