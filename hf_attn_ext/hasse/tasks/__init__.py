"""Tasks, their minimal joint task, and the derivation of masks from task families.

Imports ``hasse.order`` and :mod:`hf_attn_ext.hasse.spec`; concrete masks do not belong here.
"""
