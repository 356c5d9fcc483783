"""Transformers that run here, with their tokenizers and adapters, and batches without padding.

Importing this takes seconds, for it imports the libraries; they are kept off the network and off the terminal.
"""

import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TQDM_DISABLE", "1")

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, normalizers
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, AutoTokenizer
from transformers.utils import logging

from tools.errors import DataError
from tools.retrievers.neural.models import TOKENIZERS, Row, digest_code, find_base
from tools.text import encodable

logging.disable_progress_bar()  # type: ignore[no-untyped-call]
logging.set_verbosity_error()  # type: ignore[no-untyped-call]

T = TypeVar("T")

# Tokens a thread. With fewer, MiniLM's last bits depended on the batch: at 3 tokens with one thread, 11 with two.
_FEW = 8


def keep_loaded(load: Callable[..., T]) -> Callable[..., T]:
    """`load`, with its last two results kept: a model may fill the memory. Threads that want the same load it once."""
    kept, lock = lru_cache(maxsize=2)(load), Lock()

    def loaded(*arguments: Any) -> T:
        with lock:
            return kept(*arguments)

    return loaded


def device() -> str:
    """Where models run: $SEXTANT_DEVICE, or the first CUDA device, or the CPU."""
    return os.environ.get("SEXTANT_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")


def cores() -> int:
    """How many threads may compute at once: $OMP_NUM_THREADS, or the cores that this process may use."""
    return int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let PyTorch compute with `count` threads inside, and with as many as before afterwards."""
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def batch_equal_lengths(lengths: Sequence[int], most_tokens: int) -> Iterator[list[int]]:
    """Batches of the positions of texts with exactly equal lengths in tokens, the longest first.

    A batch has at most `most_tokens` tokens, and at least one text. Nothing is padded, so nothing is wasted, and a
    text's output does not depend on what it shares a batch with: a padded batch differs in the last bits. So do very
    short texts that share one, for which matrix products take another path: each is a batch.
    """
    places = defaultdict[int, list[int]](list)
    for place, length in enumerate(lengths):
        places[length].append(place)
    for length in sorted(places, reverse=True):
        size = max(1, most_tokens // length) if length > _FEW * cores() else 1
        for start in range(0, len(places[length]), size):
            yield places[length][start : start + size]


class Transformer:
    """A model folder's transformer and tokenizer: texts to token ids, and ids to hidden states. Threads share it.

    Loaded in float32 on a CPU, where `row.dtype` would be slower; weights that are missing are an error, and never
    random. An adapter (peft) is merged into its base model, and so is that of a `task`, a folder inside the model's.
    """

    batch_tokens = 1024  # what it takes at a time: more was slower with MiniLM on a CPU

    def __init__(self, folder: Path, row: Row, *, task: str = "", where: str = "") -> None:
        self.device = where or device()
        self.dtype = (row.dtype or "float32") if self.device != "cpu" else "float32"
        self.tokenizer = load_tokenizer(folder, row)
        model = _model(folder, row, getattr(torch, self.dtype))
        if task:
            model = merge_adapter(model, folder / task)
        self.model = model.eval().to(self.device)
        if row.bidirectional:
            _attend_both_ways(self.model, folder)

        self.width = int(self.model.config.hidden_size)  # numbers in the hidden state of a token
        self.positions = positions(self.model.config, self.tokenizer)

    def hidden(self, ids: NDArray[np.int64]) -> Any:
        """The last hidden states of texts of equal length: ids of shape (texts, tokens) to (texts, tokens, width)."""
        with torch.inference_mode():
            placed = torch.from_numpy(ids).to(self.device)
            return self.model(input_ids=placed, attention_mask=torch.ones_like(placed)).last_hidden_state


def load_tokenizer(folder: Path, row: Row) -> Any:
    """The tokenizer of a model folder, or of the base model of an adapter that has none; DataError without one."""
    base = find_base(folder, row.base)
    own = any((folder / name).is_file() for name in TOKENIZERS)
    place = folder if own or not base else base
    with loading("tokenizer", place, row):
        tokenizer = AutoTokenizer.from_pretrained(place, **from_files(row))
    if not tokenizer.is_fast:
        raise DataError(f"{place} has no fast tokenizer (tokenizer.json); save one beside its weights")
    return tokenizer


def load_config(folder: Path, row: Row) -> Any:
    """The configuration of a model folder, or of the base model of an adapter; DataError when it cannot be loaded."""
    place = find_base(folder, row.base) or folder
    with loading("configuration", place, row):
        return AutoConfig.from_pretrained(place, **from_files(row))


def positions(config: Any, tokenizer: Any) -> int:
    """The most tokens that a model and its tokenizer take."""
    most = getattr(config, "max_position_embeddings", None) or 1 << 30
    if config.model_type in ("roberta", "xlm-roberta", "mpnet", "camembert"):
        most -= (config.pad_token_id or 0) + 1  # their positions are counted from there
    return int(min(most, tokenizer.model_max_length))


def _model(folder: Path, row: Row, dtype: Any) -> Any:
    """The transformer of a folder in `dtype`, without a head, on the CPU."""
    if base := find_base(folder, row.base):
        return merge_adapter(_model(base, replace(row, base=""), dtype), folder)
    config, how = load_config(folder, row), from_files(row)
    kind = AutoModelForTextEncoding if config.is_encoder_decoder else AutoModel
    with loading("model", folder, row):
        model, report = kind.from_pretrained(folder, config=config, dtype=dtype, output_loading_info=True, **how)
    require_weights(folder, [name for name in report["missing_keys"] if "pooler" not in name])  # no pooler is used
    return model


def require_weights(folder: Path, missing: Collection[str]) -> None:
    """DataError when weights that a model needs are missing in its folder: the library would make random ones."""
    if missing:
        first = min(missing)
        raise DataError(f"the weights in {folder} lack {first} and {len(missing) - 1} more; is it another model?")


def merge_adapter(model: Any, folder: Path) -> Any:
    """`model` with the adapter of `folder` merged into its weights; DataError when it was made for another model."""
    if not (folder / "adapter_config.json").is_file():
        raise DataError(f"{folder} is no adapter: it lacks adapter_config.json")
    brought = load_adapter_weights(folder)
    from peft import PeftConfig, get_peft_model  # an extra
    from peft.utils import set_peft_model_state_dict  # an extra

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the base model is not in the place that the adapter names
        adapted = get_peft_model(model, PeftConfig.from_pretrained(str(folder)))
    report = set_peft_model_state_dict(adapted, brought)
    if strange := [*(name for name in report.missing_keys if "lora_" in name), *report.unexpected_keys]:
        raise DataError(f"the adapter in {folder} was made for another base model: {strange[0]} does not fit")
    return adapted.merge_and_unload()


def load_adapter_weights(folder: Path) -> dict[str, Any]:
    """Read what an adapter adds to its base model; DataError where the package peft is not installed."""
    try:
        from peft.utils import load_peft_weights  # an extra
    except ImportError:
        raise DataError(f"{folder} is an adapter; it needs the package peft: pip install 'sextant[adapters]'") from None
    brought: dict[str, Any] = load_peft_weights(str(folder), device="cpu")
    return brought


def _attend_both_ways(model: Any, folder: Path) -> None:
    """Let the tokens of a decoder attend to those after them too; DataError when the model goes on without."""
    model.config.is_causal = False  # what transformers makes its masks by
    for module in model.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False  # what holds where there is no mask, as in a batch without padding
    with torch.inference_mode():
        ids = torch.tensor([[1, 2, 3], [1, 2, 4]], device=next(model.parameters()).device)
        first, second = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[:, 0]
    if torch.equal(first, second):
        raise DataError(
            f"the model in {folder} needs attention to both sides, which this transformers does not give it"
        )


def from_files(row: Row) -> dict[str, bool]:
    """How transformers loads a part of a model: from this machine alone, its own code only where that is allowed."""
    return {"local_files_only": True, "trust_remote_code": bool(row.run_code)}


@contextmanager
def loading(what: str, folder: Path, row: Row) -> Iterator[None]:
    """Turn what the libraries raise, while a part of a model is loaded in the block, into a DataError."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError) as error:
        if "trust_remote_code" in str(error) and not row.run_code:
            raise DataError(
                f"the {what} in {folder} is Python code of its own, which may do anything with your files and keys; "
                f"read it, and allow just that code with the option run_code={digest_code(folder, row.base)} of this "
                "retriever"
            ) from error
        line = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise DataError(f"the {what} in {folder} cannot be loaded: {line}") from error


class TokenIds:
    """Texts to token ids of at most `most` tokens, special ones included. Threads share it.

    It has tokenizers of its own, because where one cuts is a setting of the whole object. `eos` is appended to every
    text, within the length, when it is given. With `lower`, letters are made small first.
    """

    def __init__(self, tokenizer: Any, most: int, eos: int | None = None, *, lower: bool = False) -> None:
        written = tokenizer.backend_tokenizer.to_str()
        self.most = most
        self._whole, self._cut = Tokenizer.from_str(written), Tokenizer.from_str(written)
        for each in (self._whole, self._cut):
            each.no_padding()  # some folders keep one
            if lower:
                own = [each.normalizer] if each.normalizer else []
                each.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
        self._whole.no_truncation()
        self._eos = [] if eos is None else [eos]
        self._cut.enable_truncation(most - len(self._eos))

    def of(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text."""
        return [encoding.ids + self._eos for encoding in self._cut.encode_batch(encodable(texts))]

    def left_out(self, text: str) -> int:
        """How many tokens at the end of `text` are cut off."""
        return max(0, self._length(text) + len(self._eos) - self.most)

    def before(self, prefix: str) -> int:
        """How many tokens `prefix` takes at the start of a text that begins with it; 0 when it is empty.

        A blank at its end belongs to the word after it.
        """
        if not prefix:
            return 0
        prefix = prefix.rstrip(" ")
        at_end = self._length("") - self._at_start()
        return self._length(prefix) - at_end

    def empty(self, text: str) -> bool:
        """Whether there is no token in `text`, special ones apart."""
        return not self._whole.encode(encodable([text])[0], add_special_tokens=False).ids

    def _length(self, text: str) -> int:
        return len(self._whole.encode(encodable([text])[0]).ids)

    def _at_start(self) -> int:
        """How many special tokens stand before a text."""
        mask = self._whole.encode("a").special_tokens_mask
        return mask.index(0) if 0 in mask else 0
