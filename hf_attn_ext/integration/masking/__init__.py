"""``set_mask``: the settings of a model's masks, the masks of one call, and one builder per backend.

Imports ``integration.base_models``, ``integration.kernel_modules`` and :mod:`hf_attn_ext.hasse`.
"""
