"""Two models of the papers whose classes transformers does not have, after their published code.

EncT5 (TART; Asai et al. 2022, facebookresearch/tart): the encoder of T5, and a classifier with two
labels over the first token, which is "<s>". NV-Embed (Lee et al. 2024): a Mistral whose tokens
attend to both sides, then a layer in which each token attends to 512 trained vectors. The weights
have the names of the classes that they were saved from. Neither was compared with the real weights,
which are not here.
"""

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, MistralConfig, MistralModel, T5EncoderModel
from transformers.configuration_utils import PretrainedConfig
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput
from transformers.modeling_utils import PreTrainedModel

# Widening of a feed-forward layer
_WIDER = 4


class EncT5ForSequenceClassification(T5EncoderModel):  # type: ignore[no-untyped-call]
    """T5's encoder with a classifier over its first token; the second label means "relevant"."""

    def __init__(self, config: Any) -> None:
        config.is_encoder_decoder = False
        config.use_cache = False
        super().__init__(config)
        self.classifier = nn.Linear(config.d_model, config.num_labels)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Return logits, shape (texts, labels)."""
        output = self.encoder(
            input_ids=input_ids,
            attention_mask=attention_mask,
        )
        first_token = output.last_hidden_state[:, 0]
        return SequenceClassifierOutput(logits=self.classifier(first_token))


class _NormalizedLayer(nn.Module):
    """A layer behind a normalisation of its input, and of its context, if it has one."""

    def __init__(
        self,
        layer: nn.Module,
        width: int,
        context_width: int = 0,
    ) -> None:
        super().__init__()
        self.fn = layer
        self.norm = nn.LayerNorm(width)
        if context_width:
            self.norm_context = nn.LayerNorm(context_width)

    def forward(
        self,
        tokens: torch.Tensor,
        context: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the layer's output for tokens, shape (texts, tokens, width)."""
        normal = self.norm(tokens)
        if context is None:
            output: torch.Tensor = self.fn(normal)
        else:
            output = self.fn(normal, self.norm_context(context))
        return output


class _CrossAttention(nn.Module):
    """Attention of tokens to a context."""

    def __init__(
        self,
        width: int,
        context_width: int,
        heads: int,
        head_width: int,
    ) -> None:
        super().__init__()
        inner = heads * head_width
        self.heads = heads
        self.to_q = nn.Linear(width, inner, bias=False)
        self.to_kv = nn.Linear(context_width, 2 * inner, bias=False)
        self.to_out = nn.Linear(inner, width, bias=False)

    def forward(
        self,
        tokens: torch.Tensor,
        context: torch.Tensor,
    ) -> torch.Tensor:
        """Return a mixture of the context for each token, shape (texts, tokens, width)."""
        keys, values = self.to_kv(context).chunk(2, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(
            self._split(self.to_q(tokens)),
            self._split(keys),
            self._split(values),
        )
        joined = mixed.transpose(1, 2).flatten(2)
        output: torch.Tensor = self.to_out(joined)
        return output

    def _split(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return shape (texts, heads, tokens, head's width)."""
        texts, tokens, _ = vectors.shape
        return vectors.view(texts, tokens, self.heads, -1).transpose(1, 2)


class _GatedHalf(nn.Module):
    """The first half of each vector, times GELU of the second."""

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return vectors of half the width."""
        values, gates = vectors.chunk(2, dim=-1)
        return values * nn.functional.gelu(gates)


class _FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(width, 2 * _WIDER * width),
            _GatedHalf(),
            nn.Linear(_WIDER * width, width),
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.net(tokens)
        return output


class _LatentAttention(nn.Module):
    """A layer in which tokens attend to trained vectors."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        width = settings["hidden_dim"]
        latent_width = settings["latent_dim"]
        attention = _CrossAttention(
            latent_width,
            width,
            settings["num_cross_heads"],
            settings["cross_dim_head"],
        )
        self.cross_attend_blocks = nn.ModuleList(
            [
                _NormalizedLayer(attention, latent_width, width),
                _NormalizedLayer(_FeedForward(latent_width), latent_width),
            ]
        )
        latents = torch.randn(settings["num_latents_value"], latent_width)
        self.latents = nn.Parameter(latents)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the tokens' vectors, shape (texts, tokens, width)."""
        attend, feed = self.cross_attend_blocks
        context = self.latents.expand(len(tokens), -1, -1)
        attended = attend(tokens, context) + tokens
        output: torch.Tensor = feed(attended) + attended
        return output


class NvEmbedConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """config.json of NV-Embed."""

    model_type = "nvembed"

    def __init__(
        self,
        text_config: dict[str, Any] | None = None,
        latent_attention_config: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        text_settings = dict(text_config or {})
        # "bidir_mistral", a class of the model's own code
        text_settings.pop("model_type", None)
        self.mistral = text_settings
        self.latent_attention_config = dict(latent_attention_config or {})
        self.hidden_size = text_settings.get("hidden_size")
        self.max_position_embeddings = text_settings.get("max_position_embeddings")


class NvEmbedModel(PreTrainedModel):  # type: ignore[no-untyped-call]
    """NV-Embed without its pooling, which is the mean over the tokens behind the instruction."""

    config_class = NvEmbedConfig

    def __init__(self, config: NvEmbedConfig) -> None:
        super().__init__(config)
        mistral = MistralConfig(**config.mistral)
        mistral.is_causal = False
        mistral.use_cache = False
        self.embedding_model = MistralModel(mistral)
        self.latent_attention_model = _LatentAttention(config.latent_attention_config)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        """Return the table of tokens."""
        embeddings: nn.Module = self.embedding_model.get_input_embeddings()
        return embeddings

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **_: Any,
    ) -> BaseModelOutput:
        """Return a vector for each token, shape (texts, tokens, width)."""
        output = self.embedding_model(
            input_ids=input_ids,
            attention_mask=attention_mask,
        )
        vectors = self.latent_attention_model(output.last_hidden_state)
        return BaseModelOutput(last_hidden_state=vectors)


AutoConfig.register("nvembed", NvEmbedConfig)
AutoModel.register(NvEmbedConfig, NvEmbedModel)
