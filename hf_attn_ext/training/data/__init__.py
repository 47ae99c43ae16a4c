"""Texts and labels: loading, encoding into token ids, and the inputs of a run.

Imports :mod:`hf_attn_ext.training.config` only; a model may not come in here.
"""
