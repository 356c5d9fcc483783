"""The table of models (models.toml), and a model of it, or beside it, that runs here. Loads no model.

What a model was trained to read (formats, instruction, pooling, lengths) stands in the table, so that a figure of a
paper can be repeated by the model's name alone.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from tools.errors import DataError, UnknownName, UsageError
from tools.retrievers.neural.model_folders import digest_code, digest_weights, find_folder, read_settings
from tools.retrievers.spec import Value, spell

Kind = Literal["dense", "sparse", "late", "cross", "api"]

_TABLE = Path(__file__).with_name("models.toml")


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
    run_code: str = ""  # the digest of the model's own Python code, which is run; never in the table, see require_model
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

    @property
    def expression(self) -> str:
        """The name of the model for `--retriever`, e.g. "splade:naver/splade_v2_max"."""
        return {"sparse": "splade"}.get(self.kind, self.kind) + f":{self.name}"

    def query_text(self, text: str, instruction: str = "") -> str:
        """Format a query for the model. An instruction goes in only where the model was trained with one."""
        return self._query_format(instruction).format(query=text, instruction=instruction)

    def query_prefix(self, instruction: str) -> str:
        """Return the part of a formatted query before its text."""
        return self._query_format(instruction).partition("{query}")[0].format(instruction=instruction)

    def document_text(self, text: str) -> str:
        """Format a document, given its title and text, joined, for the model."""
        return self.document.format(text=text)

    def document_prefix(self) -> str:
        """Return the part of a formatted document before its text."""
        return self.document.partition("{text}")[0].format()

    def _query_format(self, instruction: str) -> str:
        return self.query if instruction or not self.query_plain else self.query_plain


@cache
def rows() -> Mapping[str, Row]:
    """Return every model of the table, by name, in its order."""
    known = {field.name for field in fields(Row)} - {"run_code"}
    table: dict[str, Row] = {}
    content: dict[Kind, list[dict[str, Any]]] = cast(Any, tomllib.loads(_TABLE.read_text(encoding="utf-8")))
    for kind, entries in content.items():
        for entry in entries:
            if unknown := entry.keys() - known:
                raise DataError(f"models.toml: {entry['name']} has {', '.join(sorted(unknown))}, which is not in a row")
            table[entry["name"]] = Row(kind=kind, **entry)
    return table


def find_row(model: str, kind: Kind, like: str = "") -> Row:
    """Return the row of a model, by its name or its folder's name; `like` names another row to take instead.

    A model that is not in the table gets a plain row: query and text as they are, or after the prompts that the folder
    itself gives, and everything else as the folder says. UnknownName for a `like` that is not in the table, UsageError
    for a model of another kind.
    """
    found = _find(like or model)
    if found is None and like:
        raise UnknownName("model in the table", like, [row.name for row in rows().values() if row.kind == kind])
    if found is None:
        return _plain(model, kind)
    if found.kind != kind:
        raise UsageError(f"{found.name} is a {found.kind} model, not a {kind} one; write {found.expression}")
    return found


def _find(model: str) -> Row | None:
    """By full name, or by its last part, as of a folder; names differ in more than case."""
    table = rows()
    if model in table:
        return table[model]
    in_cache = re.search(r"models--([^/]+?)--([^/]+)/snapshots/", f"{model}/")  # a hub's cache names the model above
    if in_cache:
        return table.get(f"{in_cache[1]}/{in_cache[2]}")
    last = Path(model).name.lower()
    return next((row for row in table.values() if row.name.rpartition("/")[2].lower() == last), None)


def _plain(model: str, kind: Kind) -> Row:
    """The row of a model that the table does not have."""
    if kind == "api":  # what a folder of its name says here may not be so on a server
        return Row(model, kind)
    try:
        own = read_settings(find_folder(model) / "config_sentence_transformers.json")
    except DataError:  # which is said where the folder is opened
        return Row(model, kind)
    prompts = own.get("prompts") or {}
    query, document = (
        (prompts.get(name) or "").replace("{", "{{").replace("}", "}}")
        for name in ("query", "document" if prompts.get("document") else "passage")
    )
    # Where the score is an inner product, lengths say something; the default is a cosine.
    return Row(
        model,
        kind,
        query=query + "{query}",
        document=document + "{text}",
        normalize=own.get("similarity_fn_name") != "dot",
    )


def require_model(model: str, kind: Kind, like: str, run_code: str = "") -> Row:
    """The model's row. Refuses a model that is not here, is half copied, is of another kind, or cannot be run.

    Code of the model's own may do whatever the user may. So it takes `run_code`, the digest of the code that was read;
    UsageError when the folder's is another.
    """
    row = find_row(model, kind, like)
    if row.unsupported:
        raise UsageError(f"{row.name} cannot be run here: {row.unsupported}")
    folder = find_folder(model)
    if run_code and run_code != (found := digest_code(folder, row.base)):
        raise UsageError(f"run_code={run_code} is not the code of {folder}, {found or 'which has none'}; read it again")
    return replace(row, run_code=run_code)


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that runs here. Equal ones load the same."""

    row: Row
    folder: Path
    weights: str  # the digest of the files that shape what it gives, see digest_weights


def open_model(row: Row, model: str, weights: str) -> LocalModel:
    """The model of a required row; DataError when `weights` pins other weights than its folder's."""
    folder = find_folder(model)
    found = digest_weights(folder, row.base)
    if weights and weights != found:
        raise DataError(f"the weights in {folder} are {found}, not {weights}; give the folder that has those")
    return LocalModel(row, folder, found)


def name_model(kind: str, model: str, **options: Value) -> str:
    """The canonical expression of a retriever of one model; options that are empty or 0 are left out."""
    return spell(kind, model, (), {name: value for name, value in options.items() if value})
