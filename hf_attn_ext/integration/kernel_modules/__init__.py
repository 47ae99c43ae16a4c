"""Feature maps as submodules of a model: attach, find and detach them.

Imports ``integration.base_models`` and :mod:`hf_attn_ext.attention`.
"""
