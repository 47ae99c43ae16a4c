"""Attention floor: feature maps (kernels) and the forms that apply them. Knows torch, nothing of transformers."""

from .feature_maps import FeatureMap, Features, Side
from .native import build_kernels, describe_kernels, kernels_loaded, plain_forms
from .ops import (
    AttentionState,
    BoundMaps,
    attention_weights,
    causal_attention,
    linear_attention,
    naive_attention,
    two_stream_attention,
)
from .registry import list_kernels, make_feature_map, register_kernel
from .statistics import QKStatistics

__all__ = [
    "AttentionState",
    "BoundMaps",
    "FeatureMap",
    "Features",
    "QKStatistics",
    "Side",
    "attention_weights",
    "build_kernels",
    "causal_attention",
    "describe_kernels",
    "kernels_loaded",
    "linear_attention",
    "list_kernels",
    "make_feature_map",
    "naive_attention",
    "plain_forms",
    "register_kernel",
    "two_stream_attention",
]
