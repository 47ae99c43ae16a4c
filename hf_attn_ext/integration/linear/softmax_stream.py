"""Listen to the attention calls of a converted model while its layers compute exact softmax.

Stage 1 of the distillation and the data-aware initialisation both need each layer's queries, keys, values and softmax
output. Inside the attention call they are available without a second model.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hf_attn_ext.attention import FeatureMap, QKStatistics
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.evaluation import evaluating
from hf_attn_ext.integration.base_models.families import is_causal
from hf_attn_ext.integration.kernel_modules.layers import ConvertedLayer, converted_layers
from hf_attn_ext.integration.names import STREAM


@dataclasses.dataclass
class AttentionCall:
    """One attention call of one converted layer; its tensors carry their graph.

    Attributes:
        name, layer_idx, feature_map: as in :class:`ConvertedLayer`.
        query, key, value: (B, H, N, d), in the model's dtype; key and value repeated to H heads.
        key_padding_mask: bool (B, N), True = real token, or None.
        scaling: what multiplies ``q . k`` in the softmax.
        output: (B, H, N, d_v), the exact softmax output, without attention dropout.
        causal: query i sees the keys 0..i only.
    """

    name: str
    layer_idx: int
    feature_map: FeatureMap
    query: Tensor
    key: Tensor
    value: Tensor
    key_padding_mask: Tensor | None
    scaling: float
    output: Tensor
    causal: bool = False


@contextlib.contextmanager
def softmax_stream(model: nn.Module, on_layer: Callable[[AttentionCall], Any]) -> Iterator[None]:
    """Run exact softmax in every converted layer of ``model``, and call ``on_layer`` inside its attention call.

    The model's outputs are those of the softmax model, without attention dropout in training mode too. ``on_layer`` may
    compute losses and run their backward pass at once.

    Args:
        model: a converted model.
        on_layer: receives an :class:`AttentionCall` per layer and forward pass.

    Raises:
        AttnExtError: the model has no feature maps, or is in a softmax stream already.

    Example:
        >>> with hax.softmax_stream(model, lambda call: print(call.name)):  # doctest: +SKIP
        ...     model(**batch)
    """
    layers = _layers(model)
    if any(hasattr(layer.module, STREAM) for layer in layers):
        raise AttnExtError("this model is in a softmax_stream already; leave that one first")
    try:
        for layer in layers:
            setattr(layer.module, STREAM, _listener(layer, on_layer))
        yield
    finally:
        for layer in layers:
            layer.module.__dict__.pop(STREAM, None)


def calibrate(
    model: nn.Module,
    batches: Iterable[Mapping[str, Any]] | Mapping[str, Any],
    *,
    device: torch.device | str | None = None,
) -> dict[str, QKStatistics]:
    """Initialise every feature map from the queries and keys of a few batches, in place.

    The batches run through the softmax stream in evaluation mode, without gradients; then each feature map's
    ``calibrate`` is called. Kernels without such an initialisation do not change.

    Args:
        model: a converted model.
        batches: dictionaries of the model's inputs, or a single one; ``labels`` and entries other than tensors are
            ignored.
        device: where to put the batches; None is the model's device.

    Returns:
        The statistics by layer name.

    Raises:
        AttnExtError: the model has no feature maps, a batch is no dictionary, or the batches hold no real token.

    Example:
        >>> hax.calibrate(model, [tokenizer(texts, padding=True, return_tensors="pt")])  # doctest: +SKIP
    """
    statistics = collect_statistics(model, batches, device=device)
    for layer in _layers(model):
        layer.feature_map.calibrate(statistics[layer.name])
    return statistics


@torch.no_grad()
def collect_statistics(
    model: nn.Module,
    batches: Iterable[Mapping[str, Any]] | Mapping[str, Any],
    *,
    device: torch.device | str | None = None,
) -> dict[str, QKStatistics]:
    """Return the moments of queries and keys by layer name, additive over batches and processes.

    The first half of :func:`calibrate`, with the same arguments. Queries and keys are scaled as for the feature maps,
    so that the softmax is ``exp(q . k / sqrt(head_dim))``.
    """
    layers = _layers(model)
    statistics = {layer.name: QKStatistics(layer.feature_map.num_heads, layer.feature_map.head_dim) for layer in layers}

    def update(call: AttentionCall) -> None:
        scale = (call.scaling * call.query.shape[-1] ** 0.5) ** 0.5
        statistics[call.name].update(call.query * scale, call.key * scale, call.key_padding_mask)

    device = next(model.parameters()).device if device is None else device
    causal = any(is_causal(layer.module) for layer in layers)
    with evaluating(model), softmax_stream(model, update):
        for batch in [batches] if isinstance(batches, Mapping) else batches:
            if not isinstance(batch, Mapping):
                raise AttnExtError(
                    f"batches must be dictionaries of the model's inputs, got {type(batch).__name__}; "
                    "tokenizer(texts, padding=True, return_tensors='pt') makes one"
                )
            inputs = {name: x.to(device) for name, x in batch.items() if torch.is_tensor(x) and name != "labels"}
            # a decoder's cache would hold every batch's keys for nothing
            model(**inputs, **({"use_cache": False} if causal else {}))
    return statistics


def _layers(model: nn.Module) -> list[ConvertedLayer]:
    layers = converted_layers(model)
    if not layers:
        raise AttnExtError(f"{type(model).__name__} has no feature maps; call hf_attn_ext.convert(model) first")
    return layers


def _listener(layer: ConvertedLayer, on_layer: Callable[[AttentionCall], Any]) -> Callable[..., None]:
    def listen(*call: Any) -> None:
        on_layer(AttentionCall(layer.name, layer.layer_idx, layer.feature_map, *call))

    return listen
