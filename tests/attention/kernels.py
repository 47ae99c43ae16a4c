"""What the tests of the kernels share. One table drives them all: every registered kernel, under the options that its
class declares.
"""

import torch

from hf_attn_ext.attention import list_kernels, make_feature_map
from hf_attn_ext.attention.registry import kernel_class

N, D = 5, 7
TABLE = {
    f"{kernel}{suffix}": (kernel, options)
    for kernel in list_kernels()
    for suffix, options in kernel_class(kernel).test_options.items()
}
KERNELS = list(TABLE)


def build(label, heads, head_dim, num_features=N, seed=0):
    """The float64 feature map of a row, with every parameter moved off its initial value."""
    kernel, options = TABLE[label]
    feature_map = make_feature_map(kernel, heads, head_dim, num_features, seed, **options).double()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in feature_map.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return feature_map


def tokens(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def features(feature_map, x, side="key"):
    """The features multiplied out, without stabilisation; positions count from 0."""
    positions = torch.arange(x.shape[2]).expand(x.shape[0], -1)
    part = feature_map(x, side, positions) if feature_map.uses_positions else feature_map(x, side)
    if part.log_scale is None:
        return part.values
    scale = part.log_scale.exp()
    if part.values is None:
        return scale
    return (part.values.unflatten(-1, (-1, scale.shape[-1])) * scale[..., None, :]).flatten(-2)
