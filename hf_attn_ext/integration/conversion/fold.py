"""``fold`` the affine maps of queries and keys into the model's own projections, for inference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from hf_attn_ext.attention import FeatureMap
from hf_attn_ext.attention.affine import AffineMap
from hf_attn_ext.attention.ops.inputs import score_factor
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.families import QUERY_KEY_PROJECTIONS, stock_type
from hf_attn_ext.integration.kernel_modules.layers import ConvertedLayer, converted_layers
from hf_attn_ext.integration.names import FOLDED

from .convert import check_bare, is_converted


@torch.no_grad()
def fold(model: PreTrainedModel) -> PreTrainedModel:
    """Put the learned affine maps of queries and keys into the model's query and key projections, in place.

    The outputs stay the same up to rounding, without the cost of the affine maps. It changes the base weights and
    cannot be undone: :func:`revert` raises an error afterwards. Layers that keep softmax do not change. The model
    saves, opens and trains as before.

    Args:
        model: a converted model whose kernel has affine maps (flexformer_p, flexformer_c, flexformer_sq).

    Returns:
        The same object.

    Raises:
        AttnExtError: not converted, wrapped or with an adapter; a kernel without affine maps (or folded already);
            a model type other than bert, roberta, xlm-roberta, distilbert, electra and gpt2: others may turn (rotary
            positions) or scale queries and keys between the projection and the affine map. The model is then unchanged.

    Source: ours.

    Example:
        >>> hax.fold(model).save_pretrained("for-inference")  # doctest: +SKIP
    """
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel) or not is_converted(model):
        raise AttnExtError(f"fold needs a converted model that is not wrapped, got {name}")
    check_bare(model)
    if getattr(model.config, FOLDED, False):
        raise AttnExtError(f"{name} is folded already")
    layers = converted_layers(model)
    if not all(_affine_maps(layer.feature_map) for layer in layers):
        raise AttnExtError(f"kernel {model.config.attn_ext['kernel']!r} of {name} has no affine maps to fold")
    model_type = stock_type(model.config.model_type)
    if model_type not in QUERY_KEY_PROJECTIONS:
        raise AttnExtError(
            f"{name} of model type {model_type!r} cannot be folded: between projection and map queries and keys may be "
            f"turned (rotary positions) or scaled; fold knows {', '.join(QUERY_KEY_PROJECTIONS)}"
        )
    plan = [part for layer in layers for part in _folded(layer, QUERY_KEY_PROJECTIONS[model_type])]
    for parameter, value in plan:
        parameter.copy_(value)
    for layer in layers:
        for submodule in layer.feature_map.affine_maps or ():
            setattr(layer.feature_map, submodule, None)
    settings = model.config.attn_ext
    options = {**settings["kernel_options"], **layers[0].feature_map.folded_options}
    model.config.attn_ext = {**settings, "kernel_options": options}
    setattr(model.config, FOLDED, True)
    return model


def _affine_maps(feature_map: FeatureMap) -> list[AffineMap]:
    """The affine maps of queries and of keys; empty if the kernel has none."""
    maps = [getattr(feature_map, name) for name in feature_map.affine_maps or ()]
    return maps if all(isinstance(affine, AffineMap) for affine in maps) else []


def _folded(layer: ConvertedLayer, names: tuple[str, ...]) -> list[tuple[nn.Parameter, Tensor]]:
    """The parameters of a layer's query and key projections, and their new values."""
    module: Any = layer.module
    feature_map = layer.feature_map
    factor = score_factor(feature_map, module.scaling) or 1.0
    kind = Conv1D if len(names) == 1 else nn.Linear
    for name in names:
        projection = module._modules.get(name)
        if type(projection) is not kind or projection.bias is None:
            raise AttnExtError(
                f"{layer.name}.{name} ({type(projection).__name__}) cannot be folded: it must be a plain "
                f"{kind.__name__} with a bias"
            )
    if len(names) == 1:
        fused = module._modules[names[0]]
        weight, bias = fused.weight.double().clone(), fused.bias.double().clone()  # (in, 3 x width), queries first
        width = feature_map.num_heads * feature_map.head_dim
        for i, affine in enumerate(_affine_maps(feature_map)):
            part = slice(i * width, (i + 1) * width)
            weight[:, part], bias[part] = _apply(affine, weight[:, part], bias[part], factor)
        return [(fused.weight, weight), (fused.bias, bias)]
    plan = []
    for name, affine in zip(names, _affine_maps(feature_map), strict=True):
        linear = getattr(module, name)
        weight, bias = _apply(affine, linear.weight.double().T, linear.bias.double(), factor)
        plan += [(linear.weight, weight.T), (linear.bias, bias)]
    return plan


def _apply(affine: AffineMap, weight: Tensor, bias: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """A projection (in, H d) and its bias, followed by the map: ``(factor x - shift) A / factor``, per head."""
    linear, shift = (part.to(weight) for part in affine())  # (H, d, d), (H, 1, d)
    heads, dim, _ = linear.shape
    new = torch.einsum("ihd,hde->ihe", weight.unflatten(1, (heads, dim)), linear)
    moved = torch.einsum("hd,hde->he", bias.unflatten(0, (heads, dim)), linear) + shift[:, 0] / factor
    return new.flatten(1), moved.flatten()
