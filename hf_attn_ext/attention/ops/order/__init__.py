"""Linear attention over a partial order: its plan, its two products, and the operation itself.

Imports ``hasse`` and the other operations of :mod:`hf_attn_ext.attention.ops`.
"""
