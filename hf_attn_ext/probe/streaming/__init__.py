"""From texts and forward passes to results: feeding, counting layer by layer in constant memory, summarising.

Imports :mod:`hf_attn_ext.probe.counting`, :mod:`hf_attn_ext.probe.statistics` and their results.
"""
