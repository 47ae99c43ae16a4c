"""What models trained under a mask are for: whole blocks at once, and every token's probability from both sides."""

from .block_generate import BlockOutput, block_generate
from .butterfly_score import butterfly_score

__all__ = ["BlockOutput", "block_generate", "butterfly_score"]
