"""``fold`` the affine maps of queries and keys into the model's own projections, for inference. Source: ours."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from hf_attn_ext.attention import FeatureMap
from hf_attn_ext.attention.affine import AffineMap
from hf_attn_ext.attention.ops.inputs import score_factor
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.families import stock_type
from hf_attn_ext.integration.kernel_modules.layers import ConvertedLayer, converted_layers
from hf_attn_ext.integration.names import FOLDED

from .convert import check_bare, is_converted

# The query and key projections of the families whose queries and keys come straight from them: no rotary positions, no
# scale of their own in between. One name: both in one matrix, queries first.
_PROJECTIONS = {
    "bert": ("query", "key"),
    "roberta": ("query", "key"),
    "xlm-roberta": ("query", "key"),
    "distilbert": ("q_lin", "k_lin"),
    "electra": ("query", "key"),
    "gpt2": ("c_attn",),
}


@torch.no_grad()
def fold(model: PreTrainedModel) -> PreTrainedModel:
    """Put the learned affine maps of queries and keys into the model's query and key projections, in place.

    The outputs stay, up to rounding; the maps and their cost are gone. It cannot be undone: the base weights are other
    ones afterwards, so :func:`revert` refuses. Layers that keep softmax are not touched. The model saves, opens and
    trains as before; do it last.

    Args:
        model: a converted model whose kernel has affine maps (flexformer_p, flexformer_c, flexformer_sq).

    Returns:
        The same object.

    Raises:
        AttnExtError: not converted, wrapped or with an adapter; a kernel without affine maps (or folded already);
            a model type other than bert, roberta, xlm-roberta, distilbert, electra and gpt2: rotary positions turn
            queries and keys between the projection and the map, and others may scale them there. The model is then
            unchanged.

    Example:
        >>> hax.fold(model).save_pretrained("for-inference")  # doctest: +SKIP
    """
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel) or not is_converted(model):
        raise AttnExtError(f"fold needs a converted model itself, not wrapped or stock; got {name}")
    check_bare(model)
    if getattr(model.config, FOLDED, False):
        raise AttnExtError(f"{name} is folded already")
    layers = converted_layers(model)
    if not all(_affine_maps(layer.feature_map) for layer in layers):
        raise AttnExtError(f"kernel {model.config.attn_ext['kernel']!r} of {name} has no affine maps to fold")
    model_type = stock_type(model.config.model_type)
    if model_type not in _PROJECTIONS:
        raise AttnExtError(
            f"{name} of model type {model_type!r} cannot be folded: between projection and map queries and keys may be "
            f"turned (rotary positions) or scaled; fold knows {', '.join(_PROJECTIONS)}"
        )
    plan = [part for layer in layers for part in _folded(layer, _PROJECTIONS[model_type])]
    for parameter, value in plan:
        parameter.copy_(value)
    for layer in layers:
        for submodule in layer.feature_map.affine_maps:
            setattr(layer.feature_map, submodule, None)
    settings = model.config.attn_ext
    options = {**settings["kernel_options"], **layers[0].feature_map.folded_options}
    model.config.attn_ext = {**settings, "kernel_options": options}
    setattr(model.config, FOLDED, True)
    return model


def _affine_maps(feature_map: FeatureMap) -> list[AffineMap]:
    """The affine maps of queries and of keys; empty if the map has none."""
    maps = [getattr(feature_map, name) for name in feature_map.affine_maps or ()]
    return maps if all(isinstance(affine, AffineMap) for affine in maps) else []


def _folded(layer: ConvertedLayer, names: tuple[str, ...]) -> list[tuple[nn.Parameter, Tensor]]:
    """The parameters of a layer's query and key projections, and what they become."""
    module, feature_map = layer.module, layer.feature_map
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
