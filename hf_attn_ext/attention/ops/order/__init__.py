"""Linear attention over a partial order: the operation, its plan and its two products.

It imports :mod:`hf_attn_ext.hasse` and the other operations of :mod:`hf_attn_ext.attention.ops`.
"""
