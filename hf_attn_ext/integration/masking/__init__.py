"""``set_mask``: the masks in a model's configuration, the masks of one forward pass, and softmax attention under them.

A module belongs here if it turns a mask of :mod:`hf_attn_ext.hasse` into what an attention backend or a text needs; it
imports ``integration.base_models`` and ``integration.kernel_modules``.
"""
