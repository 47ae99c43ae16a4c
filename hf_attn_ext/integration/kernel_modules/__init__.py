"""Feature maps as submodules of a model: attach them at once or on first use, find them, detach them.

A module belongs here if it changes which feature maps a model holds; it imports ``integration.base_models`` and
:mod:`hf_attn_ext.attention`.
"""
