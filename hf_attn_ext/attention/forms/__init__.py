"""The forms of kernel attention: one result, several ways to compute it."""

from .bidirectional import linear_attention
from .naive import attention_weights, naive_attention

__all__ = ["attention_weights", "linear_attention", "naive_attention"]
