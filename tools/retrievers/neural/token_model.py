"""A loaded model that makes one vector of each token.

sentence-transformers makes the vectors: the markers of queries and documents, their lengths, the expansion of queries
and the tokens that are skipped are what the model's folder says. A plain bi-encoder is taken as it is, with the vectors
of its tokens: it was not trained for this.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

from tools.retrievers.neural.library_encoder import LibraryEncoder, options
from tools.retrievers.neural.models import LocalModel
from tools.retrievers.neural.token_vectors import Vectors
from tools.retrievers.neural.transformer import keep_loaded, loading

_BATCH_TOKENS = 4096  # that the model takes at a time


class TokenModel:
    """Texts to one vector a token. Threads share it."""

    def __init__(self, library: LibraryEncoder) -> None:
        self._library = library
        self.left_out = library.left_out
        self.dimension = int(library.model.get_embedding_dimension())  # numbers in a token's vector

    def encode(self, texts: Sequence[str], task: str) -> Iterator[list[tuple[int, Vectors]]]:
        """Batch by batch, texts' positions and vectors, shape (tokens, dimension): the same bits in any batch."""
        for places, made in self._library.encode(texts, task, _BATCH_TOKENS):
            yield list(zip(places, (vectors.float().cpu().numpy() for vectors in made), strict=True))


@keep_loaded
def load(model: LocalModel, trained: bool) -> TokenModel:
    """The model, ready to compute; `trained` says whether it was for late interaction."""
    folder, how = model.folder, options(model.row)
    with loading("model", folder, model.row):
        made = MultiVectorEncoder(str(folder), **how) if trained else _load_plain(folder, how)
    return TokenModel(LibraryEncoder(made, model.row))


def _load_plain(folder: Path, how: Mapping[str, Any]) -> Any:
    """The token vectors of a plain encoder, through its own projection if it has one, each made as long as 1.

    MultiVectorEncoder by itself would append a projection to 128 dimensions, with new random numbers at every load.
    """
    kept = [module for module in SentenceTransformer(str(folder), **how) if isinstance(module, Transformer | Dense)]
    for module in kept[1:]:
        module.module_input_name = module.module_output_name = "token_embeddings"
    modules = [*kept, MultiVectorMask(), Normalize(module_input_name="token_embeddings")]
    return MultiVectorEncoder(modules=modules, device=how["device"])
