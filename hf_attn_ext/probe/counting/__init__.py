"""The tools with which statistics are counted: one text and its pairs, which pairs are high, sums with a bootstrap.

Imports nothing of :mod:`hf_attn_ext.probe`; one text's numbers come in, sums come out.
"""
