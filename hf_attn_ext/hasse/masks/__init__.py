"""Masks, one per file: closed forms with position ids, roles, labels, and the task family behind each.

from hf_attn_ext.hasse import masks

spec = masks.butterfly(8)
spec.dense(), spec.position_ids, spec.labels          # what a training loop needs
spec.to_block_mask("cuda")                            # for flex_attention
spec.check(num_layers=12)                             # leaks, empty rows, depth, ...
masks.list_masks(), masks.make_mask("causal", n=8)    # by name
"""

from hf_attn_ext.hasse.registry import list_masks, make_mask, mask_entry, register_mask

from .bidirectional import bidirectional
from .block_diffusion import block_diffusion
from .block_two_stream import block_two_stream
from .butterfly import butterfly
from .causal import causal
from .document import document
from .masked_autoencoder import masked_autoencoder
from .prefix_lm import prefix_lm
from .sliding_window import sliding_window
from .xlnet_two_stream import xlnet_two_stream

__all__ = [
    "bidirectional",
    "block_diffusion",
    "block_two_stream",
    "butterfly",
    "causal",
    "document",
    "list_masks",
    "make_mask",
    "mask_entry",
    "masked_autoencoder",
    "prefix_lm",
    "register_mask",
    "sliding_window",
    "xlnet_two_stream",
]
