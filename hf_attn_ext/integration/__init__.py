"""Linear attention and masks in Transformers' models; no other folder uses Transformers' internals.

Importing it registers the attention functions, the mask functions and the model types ``attn_ext_<base>`` with
Transformers, once.
"""

from .base_models.families import supported_model_types
from .base_models.mask_token import add_mask_token
from .base_models.positions import extend_positions

# Saved folders open with a file that imports their classes as `hf_attn_ext.integration.models`.
from .conversion import model_classes as models
from .conversion.convert import convert, is_converted, revert
from .conversion.fold import fold
from .conversion.model_classes import register_families, register_model_type
from .conversion.peft_support import peft_modules_to_save
from .kernel_modules.layers import ConvertedLayer, converted_layers, freeze_all_but_feature_maps
from .linear.attention_function import register
from .linear.cache import LinearCache
from .linear.softmax_stream import AttentionCall, calibrate, collect_statistics, softmax_stream
from .masking.layouts import accept_neighbour_ids, butterfly_embeddings
from .masking.set_mask import get_mask, set_mask

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
    "models",
    "peft_modules_to_save",
    "register_model_type",
    "revert",
    "set_mask",
    "softmax_stream",
    "supported_model_types",
]
