"""The cache of a converted decoder: a recurrent state of constant size for linear layers, keys and values for others.

Transformers' attention modules call ``cache.update(keys, values, layer_idx, kwargs=kwargs)`` and then the attention
function with the same ``kwargs``. A :class:`KernelStateLayer` stores no keys but puts itself into ``kwargs``, where the
attention function finds it. Families that do not pass the dictionary on (GPT-NeoX) still pass the very tensor that
``update`` returned; then the tensor has the layer as an attribute.
"""

from __future__ import annotations

from typing import Any

from torch import LongTensor, Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, EncoderDecoderCache

from hf_attn_ext.attention import AttentionState, BoundMaps
from hf_attn_ext.config import AttnExtConfig
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.families import slides

CHANNEL = "attn_ext_cache_layer"


class KernelStateLayer(CacheLayerMixin):
    """The recurrent state of one linear layer.

    Attributes:
        state: the sums over all tokens so far, or None before the first.
        seen: number of tokens in the state, padding included.
        incoming: number of tokens of the present call.
        passing: number of tokens of the last call that read the state and are not in it; they count as seen until they
            are cropped.
        maps: the layer's feature map, folded once for a whole generation.
    """

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.state: AttentionState | None = None
        self.seen = self.incoming = self.passing = 0
        self.maps = BoundMaps()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Mark the layer as in use; there is nothing to allocate."""
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, kwargs: dict[str, Any] | None = None, **other: Any
    ) -> tuple[Tensor, Tensor]:
        """Return the new tokens alone; the attention function adds them to the state, see :meth:`commit`."""
        if self.passing:
            raise AttnExtError(f"the last {self.passing} tokens are not in the state; call crop(-{self.passing}) first")
        self.lazy_initialization(key_states, value_states)
        self.incoming = key_states.shape[-2]
        if kwargs is None:
            key_states = key_states.view_as(key_states)  # a new object, so that the caller's tensor stays as it is
            setattr(key_states, CHANNEL, self)
        else:
            kwargs[CHANNEL] = self
        return key_states, value_states

    def commit(self, state: AttentionState | None, passing: int = 0) -> None:
        """Store the state with the incoming tokens, of which the last ``passing`` only read it, after a call.

        A call that fails before this leaves the layer as it was.
        """
        self.state, self.seen, self.incoming, self.passing = state, self.seen + self.incoming, 0, passing

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys that a mask covers, with the queries, and their offset."""
        return self.seen + query_length, 0

    def get_seq_length(self) -> int:
        """Return how many tokens the layer has seen, padding included."""
        return self.seen

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1

    def offload(self) -> None:
        """Do nothing: a state is small."""

    def prefetch(self) -> None:
        """Do nothing: see :meth:`offload`."""

    def reset(self) -> None:
        """Forget all tokens."""
        self.state, self.is_initialized = None, False
        self.seen = self.incoming = self.passing = 0
        self.maps = BoundMaps()

    def reorder_cache(self, beam_idx: LongTensor) -> None:
        """Keep the texts ``beam_idx``, in that order."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the texts ``indices``, in that order."""
        if self.state is not None:
            self.state = self.state.select(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every text."""
        if self.state is not None:
            self.state = self.state.map(lambda x: x.repeat_interleave(repeats, dim=0))

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the passing tokens, which are not in the state."""
        if tokens_to_remove and tokens_to_remove == -self.passing:
            self.seen, self.passing = self.seen - self.passing, 0
        elif tokens_to_remove:
            raise AttnExtError(
                f"a linear layer's state cannot be cropped by {tokens_to_remove} tokens: it holds sums, not tokens. "
                "Decode without assisted decoding and prompt lookup, which need that"
            )


class LinearCache(Cache):
    """The cache of a converted decoder; the model makes one itself unless a call continues an earlier one.

    Args:
        config: the converted model's configuration.

    Raises:
        AttnExtError: the configuration is not a converted model's, or does not say how its softmax layers are cached.

    Example:
        >>> cache = hax.LinearCache(model.config)  # doctest: +SKIP
        >>> model(**first_part, cache=cache)  # doctest: +SKIP
        >>> model(**second_part, cache=cache)  # doctest: +SKIP
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        if not hasattr(config, "attn_ext"):
            raise AttnExtError(f"{type(config).__name__} is not converted; pass the config of the converted model")
        converted = linear_layers(config)
        kept: list[Any] = [*DynamicCache(config=config).layers] or [None] * config.num_hidden_layers
        if any(layer is None for i, layer in enumerate(kept) if i not in converted):
            raise AttnExtError(f"{type(config).__name__} does not say how its softmax layers are cached")
        super().__init__(layers=[KernelStateLayer() if i in converted else layer for i, layer in enumerate(kept)])

    @property
    def nbytes(self) -> int:
        """Bytes of all states, and of the keys and values of layers that keep softmax."""
        total = 0
        layers: list[Any] = self.layers
        for layer in layers:
            parts = [layer.state] if isinstance(layer, KernelStateLayer) else [layer.keys, layer.values]
            total += sum(part.nbytes for part in parts if part is not None)
        return total


def linear_layers(config: PreTrainedConfig) -> set[int]:
    """Return the numbers of the layers that are linear by a converted configuration."""
    settings = AttnExtConfig.from_dict(config.attn_ext, where="config.attn_ext")
    every = range(config.num_hidden_layers)
    return {i for i in every if not slides(config, i)} if settings.layers is None else set(settings.layers)


def state_layer(key: Tensor, kwargs: dict[str, Any]) -> KernelStateLayer | None:
    """Return the cache layer that returned ``key``, removed from ``kwargs``; None without a :class:`LinearCache`."""
    return kwargs.pop(CHANNEL, None) or getattr(key, CHANNEL, None)


def check_cache(cache: Any, config: PreTrainedConfig, name: str) -> None:
    """Raise :class:`AttnExtError` unless ``cache`` is a LinearCache with the layers of ``config``, all equally long."""
    inner = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    if not isinstance(inner, LinearCache):
        raise AttnExtError(
            f"{name} is converted and keeps a state instead of keys: it cannot use a {type(inner).__name__}; "
            "pass hf_attn_ext.LinearCache(model.config), or no cache"
        )
    kinds = [isinstance(layer, KernelStateLayer) for layer in inner.layers]
    converted = linear_layers(config)
    if kinds != [i in converted for i in range(config.num_hidden_layers)]:
        raise AttnExtError(
            f"this cache was made for another model: it has {len(kinds)} layers, {sum(kinds)} of them linear; {name} "
            f"has {config.num_hidden_layers} and {len(converted)}"
        )
    layers: list[Any] = inner.layers
    lengths = {layer.get_seq_length() for layer in layers}
    if len(lengths) > 1:
        raise AttnExtError(
            f"the layers of this cache hold {min(lengths)} to {max(lengths)} tokens: a call with it failed half-way. "
            "Call its reset() and give the whole prompt again"
        )
