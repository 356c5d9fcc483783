"""A loaded model that weighs terms.

What sentence-transformers saved as a SparseEncoder is loaded as it is. A masked language model gets SPLADE's pooling,
as the first SPLADE models were published; and so does a decoder whose row of models.toml says that its tokens attend to
both sides (Lion, Zeng et al. 2025), whose logits are first divided by the fourth root of the model's width, as its
authors' code does.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sparse_encoder.modules import SpladePooling
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from tools.retrievers.neural.library_encoder import LibraryEncoder, options
from tools.retrievers.neural.models import LocalModel, Row, find_base
from tools.retrievers.neural.transformer import keep_loaded, loading, merge_adapter, require_weights

_BATCH_TOKENS = 1024  # that the model takes at a time: their logits are 125 MB with BERT's vocabulary


class Weighed(NamedTuple):
    """A text's terms that weigh anything, ascending, and what each weighs: both of shape (terms,)."""

    terms: NDArray[np.int32]
    weights: NDArray[np.float32]


class SparseModel:
    """Texts to the weights of terms. Threads share it."""

    def __init__(self, model: Any, row: Row) -> None:
        model.prompts = {}  # the folder's own are in the row's formats, and go in once
        self._library = LibraryEncoder(model, row)
        self.left_out = self._library.left_out

    def encode(self, texts: Sequence[str], task: str) -> list[Weighed]:
        """Each text's weights, in order; the same to the last bit in any batch."""
        weighed = dict[int, Weighed]()
        for places, made in self._library.encode(texts, task, _BATCH_TOKENS, convert_to_sparse_tensor=False):
            for place, vector in zip(places, made.float().cpu().numpy(), strict=True):
                terms = np.flatnonzero(vector)
                weighed[place] = Weighed(terms.astype(np.int32), vector[terms])
        return [weighed[place] for place in range(len(texts))]


@keep_loaded
def load(model: LocalModel, form: str) -> SparseModel:
    """The model, ready to compute; `form` is what its folder holds."""
    folder, row = model.folder, model.row
    with loading("model", folder, row):
        if form == "saved":
            return SparseModel(SparseEncoder(str(folder), **options(row)), row)
        return SparseModel(_load_language_model(folder, row, form), row)


def _load_language_model(folder: Path, row: Row, form: str) -> Any:
    """A language model with its head, and SPLADE's pooling over the logits of all tokens."""
    how = options(row)
    where, dtype = how.pop("device"), how.pop("model_kwargs")
    base = find_base(folder, row.base)
    _require_head(base or folder, form, how)
    model = Transformer(
        str(base or folder),
        transformer_task="fill-mask" if form == "masked" else "text-generation",
        model_kwargs={**how, **dtype},
        processor_kwargs=how,
        config_kwargs={**how, "is_causal": False} if form == "causal" else how,
        modality_config={"text": {"method": "forward", "method_output_name": "logits"}},  # and no chat template
        module_output_name="token_embeddings",
        processing_kwargs={"text": {"logits_to_keep": 0}} if form == "causal" else {},  # 0 is all
    )
    if base:
        model.model = merge_adapter(model.model, folder)
    modules = [model, SpladePooling("max")]
    if form == "causal":
        for module in model.modules():  # what holds where there is no mask, as in a batch without padding
            if hasattr(module, "is_causal"):
                module.is_causal = False
        model.tokenizer.padding_side = "left"  # which sentence-transformers asks of decoders; nothing is padded here
        modules.insert(1, _Divided(float(model.model.config.hidden_size) ** 0.25))
    return SparseEncoder(modules=modules, device=where)


class _Divided(torch.nn.Module):
    """Divides the logits, between a language model and the pooling."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self._by = by

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        return {**features, "token_embeddings": features["token_embeddings"] / self._by}


def _require_head(folder: Path, form: str, how: Mapping[str, Any]) -> None:
    """DataError when weights of the head are not in the model's files."""
    kind: Any = AutoModelForMaskedLM if form == "masked" else AutoModelForCausalLM
    # On the device "meta", names are compared and no weights are read.
    _, report = kind.from_pretrained(folder, device_map="meta", output_loading_info=True, **how)
    require_weights(folder, report["missing_keys"])
