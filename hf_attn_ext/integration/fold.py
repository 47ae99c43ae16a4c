"""``fold`` the affine maps of queries and keys into the model's own projections, for inference. Source: ours."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..attention.feature_maps.affine import AffineMap
from ..attention.forms.inputs import score_factor
from ..errors import AttnExtError
from .convert import FOLDED, check_bare, is_converted
from .layers import ConvertedLayer, converted_layers

_MAPS = ("query_map", "key_map")
# What the host's attention modules without rotary positions call their query and key projections.
_PROJECTIONS = (("query", "key"), ("q_lin", "k_lin"))
_FUSED = "c_attn"


@torch.no_grad()
def fold(model: PreTrainedModel) -> PreTrainedModel:
    """Put the learned affine maps of queries and keys into the model's query and key projections, in place.

    The outputs stay, up to rounding; the maps and their cost are gone. It cannot be undone: the base weights are other
    ones afterwards, so :func:`revert` refuses. Layers that keep softmax are not touched. The model saves, opens and
    trains as before; do it last.

    Args:
        model: a converted model whose kernel has affine maps (flexformer_c, flexformer_sq).

    Returns:
        The same object.

    Raises:
        AttnExtError: not converted, wrapped or with an adapter; a kernel without affine maps (or folded already);
            rotary positions, which turn queries and keys between the projection and the map, or another
            attention module whose projections are not known. The model is then unchanged.

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
    if not all(isinstance(getattr(layer.feature_map, side, None), AffineMap) for layer in layers for side in _MAPS):
        raise AttnExtError(f"kernel {model.config.attn_ext['kernel']!r} of {name} has no affine maps to fold")
    plan = [part for layer in layers for part in _folded(layer)]
    for parameter, value in plan:
        parameter.copy_(value)
    for layer in layers:
        for side in _MAPS:
            setattr(layer.feature_map, side, None)
    settings = model.config.attn_ext
    options = {**settings["kernel_options"], "affine": False}
    model.config.attn_ext = {**settings, "kernel_options": options}
    setattr(model.config, FOLDED, True)
    return model


def _folded(layer: ConvertedLayer) -> list[tuple[nn.Parameter, Tensor]]:
    """The parameters of a layer's query and key projections, and what they become."""
    module, feature_map = layer.module, layer.feature_map
    factor = score_factor(feature_map, module.scaling) or 1.0
    if isinstance(module._modules.get(_FUSED), Conv1D):
        fused = module._modules[_FUSED]
        weight, bias = fused.weight.double().clone(), fused.bias.double().clone()  # (in, 3 x width), queries first
        width = feature_map.num_heads * feature_map.head_dim
        for i, side in enumerate(_MAPS):
            part = slice(i * width, (i + 1) * width)
            weight[:, part], bias[part] = _apply(getattr(feature_map, side), weight[:, part], bias[part], factor)
        return [(fused.weight, weight), (fused.bias, bias)]
    names = next((pair for pair in _PROJECTIONS if all(_has_bias(module, name) for name in pair)), None)
    if names is None:
        raise AttnExtError(
            f"{layer.name} ({type(module).__name__}) cannot be folded: its queries and keys do not come straight from "
            "linear projections with a bias (rotary positions turn them first)"
        )
    plan = []
    for name, side in zip(names, _MAPS, strict=True):
        linear = getattr(module, name)
        weight, bias = _apply(getattr(feature_map, side), linear.weight.double().T, linear.bias.double(), factor)
        plan += [(linear.weight, weight.T), (linear.bias, bias)]
    return plan


def _has_bias(module: nn.Module, name: str) -> bool:
    linear = module._modules.get(name)
    return isinstance(linear, nn.Linear) and linear.bias is not None


def _apply(affine: AffineMap, weight: Tensor, bias: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """A projection (in, H d) and its bias, followed by the map: ``(factor x - shift) A / factor``, per head."""
    linear, shift = (part.to(weight) for part in affine())  # (H, d, d), (H, 1, d)
    heads, dim, _ = linear.shape
    new = torch.einsum("ihd,hde->ihe", weight.unflatten(1, (heads, dim)), linear)
    moved = torch.einsum("hd,hde->he", bias.unflatten(0, (heads, dim)), linear) + shift[:, 0] / factor
    return new.flatten(1), moved.flatten()
