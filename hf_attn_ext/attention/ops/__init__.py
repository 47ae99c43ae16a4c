"""The operations of kernel attention: dense, bidirectional, causal, recurrent, over an order.

All compute the same result. They import the feature maps' base class and the native op, no single kernel.
"""

from .bound_maps import BoundMaps
from .causal import causal_attention
from .linear import linear_attention
from .naive import attention_weights, naive_attention
from .state import AttentionState
from .two_stream import two_stream_attention

__all__ = [
    "AttentionState",
    "BoundMaps",
    "attention_weights",
    "causal_attention",
    "linear_attention",
    "naive_attention",
    "two_stream_attention",
]
