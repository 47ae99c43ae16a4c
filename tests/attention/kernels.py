"""What the tests of the kernels share. One table drives those of all: name, options, feature_dim for n features and
head_dim D.
"""

import torch

from hf_attn_ext.attention import make_feature_map

N, D = 5, 7
TABLE = {
    "flexformer_s": ("flexformer_s", {}, 2 * N),
    "flexformer_n": ("flexformer_n", {"difference_std": 0.3}, 2 * N),
    "flexformer_p": ("flexformer_p", {}, 2 * N),
    "flexformer_c": ("flexformer_c", {}, 2 * N),
    "flexformer_c-complex": ("flexformer_c", {"complex_share": 1.0, "imaginary_std": 0.6}, 2 * N),
    "flexformer_sq": ("flexformer_sq", {}, N * (2 * N + 1)),
    "cosformer": ("cosformer", {"max_length": 2**14}, 2 * D),
    "elu": ("elu", {}, D),
    "hedgehog": ("hedgehog", {}, 2 * N),
    "performer": ("performer", {}, N),
    "polaformer": ("polaformer", {}, 2 * D),
    "rfa": ("rfa", {}, 2 * N),
    "uniform": ("uniform", {}, 1),
}
KERNELS = list(TABLE)


def build(label, heads, head_dim, num_features=N, seed=0):
    """The float64 feature map of a row, with every parameter moved off its initial value."""
    kernel, options, _ = TABLE[label]
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
