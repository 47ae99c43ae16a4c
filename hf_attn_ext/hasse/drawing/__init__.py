"""Pictures of masks and Hasse diagrams.

May import ``hasse.order`` and :mod:`hf_attn_ext.hasse.spec`; matplotlib is imported only here.
"""
