"""Inference with models trained under a mask: block generation, and scores of every token from both sides.

Imports :mod:`hf_attn_ext.integration` and the packages below it; training may not come in here.
"""

from .block_generate import BlockOutput, block_generate
from .butterfly_score import butterfly_score

__all__ = ["BlockOutput", "block_generate", "butterfly_score"]
