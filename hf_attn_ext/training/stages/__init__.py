"""The stages of a distillation: the teacher, attention transfer, fine-tuning, and their losses.

Imports ``training.data`` and :mod:`hf_attn_ext.integration`.
"""
