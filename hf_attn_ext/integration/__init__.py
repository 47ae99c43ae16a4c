"""Integration floor, the only one that knows transformers' internals. Importing it registers everything, once."""

from .cache import LinearCache
from .convert import convert, is_converted, revert
from .families import supported_model_types
from .fold import fold
from .layers import ConvertedLayer, converted_layers, freeze_all_but_feature_maps
from .layouts import accept_neighbour_ids, butterfly_embeddings
from .mask_token import add_mask_token
from .masks import get_mask, set_mask
from .models import register_families, register_model_type
from .observe import AttentionCall, calibrate, collect_statistics, softmax_stream
from .peft_support import peft_modules_to_save
from .positions import extend_positions
from .registry import register

register()
register_families()

__all__ = [
    "AttentionCall",
    "ConvertedLayer",
    "LinearCache",
    "accept_neighbour_ids",
    "add_mask_token",
    "butterfly_embeddings",
    "calibrate",
    "collect_statistics",
    "convert",
    "converted_layers",
    "extend_positions",
    "fold",
    "freeze_all_but_feature_maps",
    "get_mask",
    "is_converted",
    "peft_modules_to_save",
    "register_model_type",
    "revert",
    "set_mask",
    "softmax_stream",
    "supported_model_types",
]
