"""Models that turn each text into a vector, into weights of terms, or into a vector a token, by
sentence-transformers.

A folder that the library saved is loaded as it is, any other as its row of models.toml says. Beyond
the library, this merges adapters, refuses missing weights (which it would draw at random), and
never pads a text: no batch changes it.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sparse_encoder.modules import SpladePooling
from tokenizers import Tokenizer

from sextant.tools.errors import DataError
from sextant.tools.platform.cli import print_stderr
from sextant.tools.retrievers.devices import device
from sextant.tools.retrievers.neural import (
    architectures,  # noqa: F401  # it makes NV-Embed known to transformers
    loading,
)
from sextant.tools.retrievers.neural.model_table import (
    LocalModel,
    ModelRow,
    find_base_model,
    read_class,
    read_router,
)
from sextant.tools.text import encodable

# Tokens a thread. With fewer, MiniLM's last bits depended on the batch: at 3 tokens with one
# thread, 11 with two.
_FEW = 8
_TOKENIZED = 256  # texts that are tokenized at a time, to know their lengths


class Encoder:
    """A loaded model of sentence-transformers, or two, for queries and for documents. Threads share
    it.
    """

    def __init__(
        self,
        row: ModelRow,
        model: Any,
        for_queries: Any = None,
        *,
        batch_tokens: int,
    ) -> None:
        """`batch_tokens` is the most tokens of documents that are computed at a time."""
        self.models = {"document": model, "query": for_queries or model}
        self.dimension = int(model.get_embedding_dimension())  # numbers in a vector
        self._batch_tokens = batch_tokens
        self._tokenizing = Lock()
        for each in {model, for_queries or model}:
            each.preprocess = partial(self._tokenize, each.preprocess)
        # A length of 0 is what the folder says.
        self._most = {"query": row.max_query_tokens, "document": row.max_document_tokens}
        for task, each in self.models.items():
            reader = find_reader(each, task)
            longest = getattr(reader, "max_seq_length", None) or 1 << 30
            if isinstance(reader, Transformer):
                longest = loading.max_positions(reader.config)
            self._most[task] = min(self._most[task], longest)
            if isinstance(reader, Transformer) and (reader.max_seq_length or 0) > longest:
                reader.max_seq_length = longest

    def encode(
        self, texts: Sequence[str], task: str, prompt: str | None = None, **options: Any
    ) -> Iterator[tuple[list[int], Any]]:
        """Yield, batch by batch, positions in `texts` and the model's output for them; `task` is
        "query" or "document".

        A `prompt` goes before every text; None is the folder's own. A batch has documents of equal
        length, or one query, which is computed with a thread, for the same bits with every model
        and library.
        """
        model = self.models[task]
        options = options | self._cut(task)
        texts = encodable(texts)
        prompt = prompt and encodable([prompt])[0]
        batches: Iterable[list[int]] = ([position] for position in range(len(texts)))
        encode = model.encode_query
        count = 1
        if task == "document":
            batches = batch_equal_lengths(self._lengths(texts, task, prompt), self._batch_tokens)
            encode = model.encode_document
            count = loading.cores()
        for places in batches:
            batch = [texts[position] for position in places]
            with loading.torch_threads(count):
                embeddings = encode(
                    batch,
                    prompt=prompt,
                    batch_size=len(batch),
                    show_progress_bar=False,
                    **options,
                )
            yield places, embeddings

    def left_out(self, text: str) -> int:
        """Return how many tokens at the end of a query are cut off."""
        model = self.models["query"]
        reader = find_reader(model, "query")
        expansion = getattr(reader, "query_expansion", None) or {}
        fixed = expansion["length"] if expansion.get("strategy") == "fixed" else 0
        limit = (
            fixed
            or self._most["query"]
            or getattr(reader, "query_length", 0)
            or reader.max_seq_length
        )
        if not limit or limit == math.inf:  # of a table of tokens' vectors
            return 0
        [text] = encodable([(model.prompts.get("query") or "") + text])
        token_ids = self._tokenize(
            reader.tokenizer,
            text,
            truncation=False,
            verbose=False,
        )
        return max(0, len(token_ids["input_ids"]) - limit)

    def has_tokens(self, text: str) -> bool:
        """Return whether a document has tokens, special tokens apart."""
        tokenizer = find_reader(self.models["document"], "document").tokenizer
        [text] = encodable([text])
        if isinstance(tokenizer, Tokenizer):
            return bool(tokenizer.encode(text, add_special_tokens=False).ids)
        encoded = self._tokenize(
            tokenizer,
            text,
            add_special_tokens=False,
            truncation=True,
        )
        return bool(encoded["input_ids"])

    def _tokenize(self, tokenize: Callable[..., Any], *texts: Any, **options: Any) -> Any:
        # The limit is a state of the tokenizer, and would hold for the text of another thread, too.
        with self._tokenizing:
            return tokenize(*texts, **options)

    def _lengths(
        self,
        texts: Sequence[str],
        task: str,
        prompt: str | None,
    ) -> Iterator[int]:
        model = self.models[task]
        prompt = model.prompts.get(task) if prompt is None else prompt
        for first in range(0, len(texts), _TOKENIZED):
            batch = texts[first : first + _TOKENIZED]
            mask = model.preprocess(
                batch,
                prompt=prompt or None,
                task=task,
                **self._cut(task),
            ).get("attention_mask")
            # There is no mask in a model that is a table of terms.
            yield from [1] * len(batch) if mask is None else map(int, mask.sum(dim=1))

    def _cut(self, task: str) -> dict[str, Any]:
        return (
            {"processing_kwargs": {"text": {"max_length": self._most[task]}}}
            if self._most[task]
            else {}
        )


def find_reader(model: Any, task: str) -> Any:
    """Return the module of a model that reads the texts of a task."""
    first = model[0]
    if not isinstance(first, Router):
        return first
    routes: Any = first.sub_modules
    return routes[task if task in routes else first.default_route or next(iter(routes))][0]


def batch_equal_lengths(lengths: Iterator[int], most_tokens: int) -> Iterator[list[int]]:
    """Yield batches of the positions of texts with exactly equal lengths in tokens, the longest
    first.

    A batch has at most `most_tokens` tokens, and at least a text. Padding would change a text's
    last bits; so would sharing a batch for very short texts, for which matrix products take another
    path: each is a batch.
    """
    places = defaultdict(list)
    for position, length in enumerate(lengths):
        places[length].append(position)
    for length in sorted(places, reverse=True):
        size = max(1, most_tokens // length) if length > _FEW * loading.cores() else 1
        for start in range(0, len(places[length]), size):
            yield places[length][start : start + size]


@loading.cache_last_two
def load_dense(model: LocalModel, precision: str, home: Path | None) -> Encoder:
    """Load a model with a vector per text.

    With the `precision` int8, its 8-bit weights are kept in `home`.
    """
    folder = model.folder
    row = model.row
    torch_device = "cpu" if precision == "int8" else device()
    with loading.translate_load_errors("model", folder, row):
        made = _sentence_transformer(folder, row, torch_device, row.task_document)
        same_task = row.task_query == row.task_document
        for_queries = (
            None if same_task else _sentence_transformer(folder, row, torch_device, row.task_query)
        )
    if precision == "int8":
        from sextant.tools.retrievers.neural.quantized import quantize  # imports onnx, an extra

        if not isinstance(made[0], Transformer):
            raise DataError(f"encoder=int8 needs a transformer, and {folder} begins with none")
        made[0].model = quantize(made[0].model, model, home)
    # MiniLM on a CPU was slower with more than 1,024 tokens. In 8 bits, all that is computed at
    # once shares a scale.
    return Encoder(row, made, for_queries, batch_tokens=1 if precision == "int8" else 1024)


@loading.cache_last_two
def load_sparse(model: LocalModel, form: str) -> Encoder:
    """Load a model of weights of terms; `form` is "saved", "masked" or "causal", see form_of in
    sparse.py.

    A masked language model gets SPLADE's pooling, as the first SPLADE models were published; so
    does a decoder whose tokens attend to both sides (Lion, Zeng et al. 2025), with logits divided
    by the fourth root of the width.
    """
    folder = model.folder
    row = model.row
    torch_device = device()
    with loading.translate_load_errors("model", folder, row):
        if form == "saved":
            made = SparseEncoder(
                str(folder),
                device=torch_device,
                **_options(row, torch_device),
            )
            for module in {find_reader(made, "query"), find_reader(made, "document")}:
                _mend_tokenizer(module)
        else:
            first = _transformer(
                folder, row, torch_device, "fill-mask" if form == "masked" else "text-generation"
            )
            divided = (
                [_ScaleLayer(float(first.config.hidden_size) ** 0.25)] if form == "causal" else []
            )
            made = SparseEncoder(
                modules=[first, *divided, SpladePooling("max")], device=torch_device
            )
    made.prompts = {}  # the folder's own are in the row's formats, and go in once
    return Encoder(row, made, batch_tokens=1024)  # whose logits are 125 MB with BERT's vocabulary


@loading.cache_last_two
def load_tokens(model: LocalModel, trained: bool) -> Encoder:
    """Load a model with a vector per token.

    If it was `trained` for late interaction, markers, lengths, the expansion of queries and skipped
    tokens are as its folder says. A plain encoder gives its tokens' vectors, through its own
    projection if it exists, of unit length: MultiVectorEncoder would append a projection with new
    random numbers at every load.
    """
    folder = model.folder
    row = model.row
    torch_device = device()
    with loading.translate_load_errors("model", folder, row):
        if trained:
            made = MultiVectorEncoder(
                str(folder),
                device=torch_device,
                **_options(row, torch_device),
            )
            _mend_tokenizer(made[0])
        else:
            plain = SentenceTransformer(
                str(folder),
                device=torch_device,
                **_options(row, torch_device),
            )
            modules_kept = [module for module in plain if isinstance(module, Transformer | Dense)]
            _mend_tokenizer(modules_kept[0])
            for module in modules_kept[1:]:
                module.module_input_name = module.module_output_name = "token_embeddings"
            modules = [
                *modules_kept,
                MultiVectorMask(),
                Normalize(module_input_name="token_embeddings"),
            ]
            made = MultiVectorEncoder(modules=modules, device=torch_device)
    return Encoder(row, made, batch_tokens=4096)


def _options(row: ModelRow, torch_device: str) -> dict[str, Any]:
    return {
        **loading.local_only_options(row),
        "model_kwargs": {"dtype": loading.weights_dtype(row, torch_device)},
    }


def _sentence_transformer(
    folder: Path,
    row: ModelRow,
    torch_device: str,
    task: str,
) -> SentenceTransformer:
    modules: list[Any] = []
    if (folder / "modules.json").is_file() and not row.architecture:
        if (class_name := read_class(folder)) != "SentenceTransformer":
            raise DataError(
                f"the model folder {folder} is a {class_name}; use another kind of retriever"
            )
        modules = list(
            SentenceTransformer(
                str(folder),
                device="cpu",
                **_options(row, torch_device),
            )
        )
    if not modules or find_base_model(folder, row.base):
        modules[:1] = [_transformer(folder, row, torch_device)]
    else:
        tasks = {find_reader(modules, task): task for task in ("query", "document")}
        for module, its_task in tasks.items():
            if isinstance(module, Transformer):
                _require_weights(module.model, folder, row, _routed_folder(folder, its_task))
                _mend_tokenizer(module)
    first = modules[0]
    if task:
        first.model = loading.merge_adapter(first.model, folder / task)
    if row.eos and (ids := first.tokenizer("a").input_ids)[-1] != first.tokenizer.eos_token_id:
        # As it was: the next line writes both anew.
        first.tokenizer.add_bos_token = ids[0] == first.tokenizer.bos_token_id
        first.tokenizer.add_eos_token = True
    if row.bidirectional:
        _attend_both_ways(first.model, folder)
    if len(modules) == 1 and isinstance(first, Transformer):
        if row.pooling == "mean of unit tokens":
            modules.append(Normalize(module_input_name="token_embeddings"))
        if not row.pooling:
            print_stderr(
                f"{folder} has no modules.json: a vector is the mean of its tokens', as "
                f"sentence-transformers has it; like=NAME pools as a model of the table"
            )
        mode = {"cls": "cls", "last": "lasttoken"}.get(row.pooling, "mean")
        modules.append(
            Pooling(first.get_embedding_dimension(), mode, include_prompt=not row.pool_text_only)
        )
    if row.normalize and not isinstance(modules[-1], Normalize):
        modules.append(Normalize())
    model = SentenceTransformer(modules=modules, device=torch_device)
    model.prompts = {}  # they are in the row's formats
    return model


def _transformer(
    folder: Path,
    row: ModelRow,
    torch_device: str,
    task: Any = "feature-extraction",
) -> Transformer:
    """Load a transformer and its tokenizer, with an adapter merged; other tasks than the
    default give all logits.
    """
    if base := find_base_model(folder, row.base):
        module = _transformer(base, row._replace(base=""), torch_device, task)
        module.model = loading.merge_adapter(module.model, folder)
        module.processor = loading.load_tokenizer(folder, row)
    else:
        output = "last_hidden_state" if task == "feature-extraction" else "logits"
        module = Transformer(
            str(folder),
            transformer_task=task,
            model_kwargs={
                **loading.local_only_options(row),
                "dtype": loading.weights_dtype(row, torch_device),
            },
            processor_kwargs=dict(loading.local_only_options(row)),
            config_kwargs=dict(loading.local_only_options(row)),
            modality_config={
                "text": {"method": "forward", "method_output_name": output}
            },  # and no chat template
            module_output_name="token_embeddings",
            processing_kwargs={"text": {"logits_to_keep": 0}}
            if task == "text-generation"
            else {},  # 0 is all
        )
        _require_weights(module.model, folder, row)
        _mend_tokenizer(module)
    if task == "text-generation":
        module.processor.padding_side = (
            "left"  # which the library asks of decoders; nothing is padded here
        )
        _attend_both_ways(module.model, folder)
    return module


def _mend_tokenizer(module: Any) -> None:
    if isinstance(module, Transformer):
        module.processor = loading.mend_tokenizer(module.processor)


def _routed_folder(folder: Path, task: str) -> Path | None:
    """Return where a folder that begins with a router has the module that reads a task's texts."""
    router = read_router(folder)
    routes = router.get("structure", {})
    route = task if task in routes else router.get("parameters", {}).get("default_route")
    return folder / routes[route][0] if route in routes else None


def _require_weights(
    model: Any, folder: Path, row: ModelRow, weights_folder: Path | None = None
) -> None:
    """Raise DataError when weights of `model` are not in its folder: the library has drawn random
    weights.
    """
    _, report = type(
        model
    ).from_pretrained(  # on the device "meta", names are compared and no weights are read
        weights_folder or model.name_or_path,
        config=model.config,
        device_map="meta",
        output_loading_info=True,
        **loading.local_only_options(row),
    )
    # No pooler is used.
    if missing := [name for name in report["missing_keys"] if "pooler" not in name]:
        raise DataError(
            f"the weights in {folder} lack {min(missing)} and {len(missing) - 1} more; is it "
            "another model?"
        )


def _attend_both_ways(model: Any, folder: Path) -> None:
    """Let a decoder's tokens attend to later tokens, too. DataError when this has no effect."""
    model.config.is_causal = False  # what transformers makes its masks by
    for module in model.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = (
                False  # what holds where there is no mask, as in a batch without padding
            )
    with torch.inference_mode():
        ids = torch.tensor([[1, 2, 3], [1, 2, 4]], device=next(model.parameters()).device)
        first, second = model(input_ids=ids, attention_mask=torch.ones_like(ids))[0][:, 0]
    if torch.equal(first, second):
        raise DataError(
            f"the model in {folder} needs attention to both sides, which this transformers does "
            "not give it"
        )


class _ScaleLayer(torch.nn.Module):  # divides the logits, between a language model and the pooling
    def __init__(self, by: float) -> None:
        super().__init__()
        self._by = by

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        return {**features, "token_embeddings": features["token_embeddings"] / self._by}
