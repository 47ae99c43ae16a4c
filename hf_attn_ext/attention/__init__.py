"""Attention kernels and the operations that apply them, on torch tensors.

It imports torch and :mod:`hf_attn_ext.hasse`, and nothing of transformers.
"""

from .feature_maps import FeatureMap, Features, Side
from .native import build_native_op, describe_native_op, native_op_loaded, plain_forms
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
    "build_native_op",
    "causal_attention",
    "describe_native_op",
    "linear_attention",
    "list_kernels",
    "make_feature_map",
    "naive_attention",
    "native_op_loaded",
    "plain_forms",
    "register_kernel",
    "two_stream_attention",
]
