"""Statistics over a stream of forward passes, in constant memory.

Imports :mod:`hf_attn_ext.integration` and ``probe.corpus``; a report may not come in here.
"""
