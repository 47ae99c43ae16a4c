"""The cache of a converted decoder: a state whose size no context changes for each linear layer, keys and values for
each layer that keeps softmax.

The host's attention modules call ``cache.update(keys, values, layer_idx, kwargs=kwargs)`` and then the attention
function with the same ``kwargs``: a layer of ours stores no keys but puts itself there, and the attention function
finds it. Families that don't pass the dictionary on (GPT-NeoX) still pass the very tensor that ``update`` returned; it
carries the layer then.
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
    """What one linear layer remembers.

    Attributes:
        state: the sums over all tokens so far, or None before the first.
        seen: tokens that are in the state, padding included.
        incoming: tokens of the call that is going on.
        passing: tokens of the last call that read the state and are not in it; they count as seen until they are
            cropped.
        maps: the layer's feature map, folded once for a whole generation.
    """

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.state: AttentionState | None = None
        self.seen = self.incoming = self.passing = 0
        self.maps = BoundMaps()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
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
            key_states = key_states.view_as(key_states)  # an object of its own, so that nothing is left on the caller's
            setattr(key_states, CHANNEL, self)
        else:
            kwargs[CHANNEL] = self
        return key_states, value_states

    def commit(self, state: AttentionState | None, passing: int = 0) -> None:
        """Take the state with the incoming tokens, but for the last ``passing``, which only read it. A call that fails
        before leaves all as it was.
        """
        self.state, self.seen, self.incoming, self.passing = state, self.seen + self.incoming, 0, passing

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen + query_length, 0

    def get_seq_length(self) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return -1

    def offload(self) -> None:
        """Nothing: a state is small."""

    def prefetch(self) -> None:
        """Nothing: see :meth:`offload`."""

    def reset(self) -> None:
        self.state, self.is_initialized = None, False
        self.seen = self.incoming = self.passing = 0
        self.maps = BoundMaps()

    def reorder_cache(self, beam_idx: LongTensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.state is not None:
            self.state = self.state.select(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            self.state = self.state.map(lambda x: x.repeat_interleave(repeats, dim=0))

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the tokens that only passed; there is no other way back."""
        if tokens_to_remove and tokens_to_remove == -self.passing:
            self.seen, self.passing = self.seen - self.passing, 0
        elif tokens_to_remove:
            raise AttnExtError(
                f"a linear layer's state cannot be cropped by {tokens_to_remove} tokens: it holds sums, not tokens. "
                "Assisted decoding and prompt lookup need that; decode without them"
            )


class LinearCache(Cache):
    """The cache of a converted decoder; made by the model itself unless one is passed to continue from.

    Args:
        config: the converted model's configuration.

    Example:
        >>> cache = hax.LinearCache(model.config)  # doctest: +SKIP
        >>> model(**first_part, cache=cache)  # doctest: +SKIP
        >>> model(**second_part, cache=cache)  # doctest: +SKIP
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        converted = linear_layers(config)
        kept = DynamicCache(config=config).layers or [None] * config.num_hidden_layers
        if any(layer is None for i, layer in enumerate(kept) if i not in converted):
            raise AttnExtError(f"{type(config).__name__} does not say how its softmax layers are cached")
        super().__init__(layers=[KernelStateLayer() if i in converted else layer for i, layer in enumerate(kept)])

    @property
    def nbytes(self) -> int:
        """Bytes of all states, and of the keys and values of layers that keep softmax."""
        total = 0
        for layer in self.layers:
            if isinstance(layer, KernelStateLayer):
                total += 0 if layer.state is None else layer.state.nbytes
            else:
                total += sum(x.nbytes for x in (layer.keys, layer.values) if x is not None)
        return total


def linear_layers(config: PreTrainedConfig) -> set[int]:
    """The numbers of the layers that a converted configuration gives a kernel."""
    settings = AttnExtConfig.from_dict(config.attn_ext, where="config.attn_ext")
    every = range(config.num_hidden_layers)
    return {i for i in every if not slides(config, i)} if settings.layers is None else set(settings.layers)


def state_layer(key: Tensor, kwargs: dict[str, Any]) -> KernelStateLayer | None:
    """The cache layer that handed out ``key``, taken out of ``kwargs``; None where there is no cache of ours."""
    return kwargs.pop(CHANNEL, None) or getattr(key, CHANNEL, None)


def check_cache(cache: Any, config: PreTrainedConfig, name: str) -> None:
    """Raise :class:`AttnExtError` unless ``cache`` is one of ours with the layers of ``config``, all equally long."""
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
    lengths = {layer.get_seq_length() for layer in inner.layers}
    if len(lengths) > 1:
        raise AttnExtError(
            f"the layers of this cache hold {min(lengths)} to {max(lengths)} tokens: a call with it failed half-way. "
            "Call its reset() and give the whole prompt again"
        )
