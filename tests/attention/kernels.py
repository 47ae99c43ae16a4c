"""One table drives the tests of every kernel: name, options, feature_dim for n features and head_dim D."""

import torch

from hf_attn_ext.attention import make_feature_map

N, D = 5, 7
TABLE = {
    "flexformer_s": ("flexformer_s", {}, 2 * N),
    "flexformer_n": ("flexformer_n", {"difference_std": 0.3}, 2 * N),
    "flexformer_c": ("flexformer_c", {}, 2 * N),
    "flexformer_c-half": ("flexformer_c", {"complex_share": 0.5}, 2 * N),
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
