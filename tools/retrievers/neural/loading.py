"""Loading of local models: threads, tokenizers, adapters, and errors in words.

Importing this takes seconds, for it imports the libraries. Models come from folders: nothing here
goes to the network. transformers prints nothing while a model is loaded or computes.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import sentencepiece
import torch
from transformers import AutoTokenizer, LlamaTokenizer
from transformers.utils import logging

from sextant.tools.errors import DataError, SextantError
from sextant.tools.platform.installation import explain_missing
from sextant.tools.platform.system_calls import available_cores
from sextant.tools.platform.temporary_changes import SharedContext
from sextant.tools.retrievers.neural.model_table import (
    PIECES,
    TOKENIZERS,
    ModelRow,
    find_base_model,
    hash_model_code,
)

T = TypeVar("T")

# transformers' name of its warning of a long text
_LONG = "sequence-length-is-longer-than-the-specified-maximum"
_PROBE = "a retriever reads documents"  # lower case and single blanks, which no family rewrites


def cache_last_two(load: Callable[..., T]) -> Callable[..., T]:
    """Return `load` with its last two results kept (a model may fill the memory), for threads
    to share.
    """
    kept = lru_cache(maxsize=2)(load)
    lock = Lock()

    def loaded(*arguments: Any) -> T:
        with lock:
            return kept(*arguments)

    return loaded


def weights_dtype(row: ModelRow, torch_device: str) -> str:
    """Return the type of a model's weights: the row's on an accelerator, float32 on a CPU, if
    others are slower.
    """
    return "float32" if torch_device == "cpu" else row.dtype or "float32"


def cores() -> int:
    """Return how many threads may compute at once: $OMP_NUM_THREADS, or the cores that this
    process may use.
    """
    return int(os.environ.get("OMP_NUM_THREADS") or available_cores())


@SharedContext
@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Have transformers draw no bars and log errors alone in the block."""
    verbosity = logging.get_verbosity()
    has_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let PyTorch compute with `count` threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with _quiet_transformers():
            yield
    finally:
        torch.set_num_threads(before)


def local_only_options(row: ModelRow) -> dict[str, bool]:
    """Return options by which transformers loads from this machine alone, and a model's own
    code only if allowed.
    """
    return {"local_files_only": True, "trust_remote_code": bool(row.run_code)}


@contextmanager
def translate_load_errors(subject: str, folder: Path, row: ModelRow) -> Iterator[None]:
    """Turn the libraries' exceptions from loading `what`, a part of a model, into a DataError."""
    try:
        with _quiet_transformers():
            yield
    except SextantError:
        raise
    except Exception as error:  # of any library, for a file that is missing or damaged
        if "trust_remote_code" in str(error) and not row.run_code:
            raise DataError(
                f"the {subject} in {folder} is Python code of its own, which may do anything with "
                "your files and keys; read it, and allow just that code with the option "
                f"run_code={hash_model_code(folder, row.base)} of this retriever"
            ) from error
        line = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise DataError(
            f"the {subject} in {folder} cannot be loaded: {line}; copy or download it again, whole"
        ) from error


def load_tokenizer(folder: Path, row: ModelRow) -> Any:
    """Return a model folder's tokenizer, or the base model's when an adapter has none."""
    has_tokenizer = any((folder / name).is_file() for name in TOKENIZERS)
    tokenizer_folder = folder if has_tokenizer else find_base_model(folder, row.base) or folder
    with translate_load_errors("tokenizer", tokenizer_folder, row):
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder, **local_only_options(row))
    return mend_tokenizer(tokenizer)


def mend_tokenizer(tokenizer: Any) -> Any:
    """Return a tokenizer that has a padding token, and cuts words as the SentencePiece file of its
    folder has it.

    No text is padded here, but the library asks for the token. If a folder has no tokenizer.json,
    transformers makes a tokenizer of the SentencePiece file, and from a Mistral file a tokenizer
    that drops the blank before the first word.
    """
    folder = Path(getattr(tokenizer, "name_or_path", "") or os.devnull)
    if folder.is_dir() and not any(next(folder.rglob(name), None) for name in TOKENIZERS):
        # transformers would make an empty one.
        raise DataError(f"the model folder {folder} lacks a tokenizer (tokenizer.json or the like)")
    expected = _read_pieces(folder)
    if expected and _cut(tokenizer) != expected:
        tokenizer = LlamaTokenizer.from_pretrained(folder, local_files_only=True)
    if expected and (pieces := _cut(tokenizer)) != expected:
        raise DataError(
            f"transformers cuts words otherwise ({pieces}) than SentencePiece ({expected}) by the "
            f"files in {folder}; add the tokenizer.json that its model was published with"
        )
    # Texts that are longer than the model reads are cut, which `left_out` counts.
    getattr(tokenizer, "deprecation_warnings", {})[_LONG] = True
    if getattr(tokenizer, "pad_token", "") is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer


def _read_pieces(folder: Path) -> list[str]:
    """Return _PROBE as a folder's SentencePiece file cuts it; [] if that does not count or
    is not known.
    """
    files = [folder / name for name in PIECES if (folder / name).is_file()]
    if not files or (folder / "tokenizer.json").is_file():
        return []
    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(files[0]))
    except RuntimeError:  # a file of tiktoken's, which Llama 3 calls tokenizer.model, too
        return []
    if processor.unk_id() in processor.encode(_PROBE):  # a vocabulary of another script
        return []
    pieces: list[str] = processor.encode(_PROBE, out_type=str)
    return pieces


def _cut(tokenizer: Any) -> list[str]:
    ids = tokenizer(_PROBE, add_special_tokens=False)["input_ids"]
    pieces: list[str] = tokenizer.convert_ids_to_tokens(ids)
    return pieces


def max_positions(config: Any) -> int:
    """Return the most tokens that a model takes."""
    most = getattr(config, "max_position_embeddings", None) or 1 << 30
    if config.model_type in ("roberta", "xlm-roberta", "mpnet", "camembert"):
        most -= (config.pad_token_id or 0) + 1  # their positions are counted from there
    return int(most)


def merge_adapter(model: Any, folder: Path) -> Any:
    """Return `model` with the adapter (peft) of `folder` merged in.

    DataError when it is for another model.
    """
    if not (folder / "adapter_config.json").is_file():
        raise DataError(f"{folder} is no adapter: it lacks adapter_config.json")
    peft = import_peft(folder)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # that the base model is not in the place that the adapter names
        adapted = peft.get_peft_model(model, peft.PeftConfig.from_pretrained(str(folder)))
    report = peft.set_peft_model_state_dict(
        adapted, peft.load_peft_weights(str(folder), device="cpu")
    )
    if strange := [
        *(name for name in report.missing_keys if "lora_" in name),
        *report.unexpected_keys,
    ]:
        raise DataError(
            f"the adapter in {folder} was made for another base model: {strange[0]} does not fit"
        )
    return adapted.merge_and_unload()


def import_peft(folder: Path) -> Any:
    """Return the package peft. DataError if it is not installed."""
    try:
        import peft  # an extra
    except ImportError:
        raise DataError(
            f"{folder} is an adapter; it needs {explain_missing('peft', 'adapters')}"
        ) from None
    return peft
