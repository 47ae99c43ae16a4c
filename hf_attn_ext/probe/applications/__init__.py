"""Applications of context similarity: segmentation, head pruning, choice of layers, comparison of two models.

May import everything else in :mod:`hf_attn_ext.probe`.
"""
