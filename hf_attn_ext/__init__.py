"""Attention in Hugging Face models: swap it for a linear-time kernel, distil it, keep the quality.

    import hf_attn_ext as hax

    model = hax.convert(model, hax.AttnExtConfig(kernel="flexformer_p", num_features=64))  # and hax.revert(model)
    AutoModel.from_pretrained("roberta-base", attn_implementation="flexformer")           # attached on first use
    AutoModelForSequenceClassification.from_pretrained(converted_folder)                  # exact, in a fresh process
    accelerate launch -m hf_attn_ext.distill --config configs/distill/reviews.yaml

Importing the package registers the attention function and the model types ``attn_ext_<base>`` with transformers, once.
The parts: :mod:`.hasse` (masks and the orders behind them), :mod:`.attention` (kernels and forms), :mod:`.integration`
(transformers), :mod:`.training` (distillation, collators), :mod:`.inference` (whole blocks, scores from both sides),
:mod:`.probe` (what heads compare), :mod:`.hub` (cards, uploads), :mod:`.cli` (``hf-attn-ext``).
"""

from .attention import build_native_op, list_kernels, register_kernel
from .config import AttnExtConfig
from .errors import AttnExtError
from .hasse import MaskSpec
from .hasse.masks import list_masks, register_mask
from .hub.push import push_to_hub
from .integration import (
    LinearCache,
    add_mask_token,
    calibrate,
    convert,
    converted_layers,
    extend_positions,
    fold,
    get_mask,
    is_converted,
    peft_modules_to_save,
    revert,
    set_mask,
    softmax_stream,
    supported_model_types,
)

__version__ = "0.1.0"

__all__ = [
    "AttnExtConfig",
    "AttnExtError",
    "LinearCache",
    "MaskSpec",
    "add_mask_token",
    "build_native_op",
    "calibrate",
    "convert",
    "converted_layers",
    "extend_positions",
    "fold",
    "get_mask",
    "is_converted",
    "list_kernels",
    "list_masks",
    "peft_modules_to_save",
    "push_to_hub",
    "register_kernel",
    "register_mask",
    "revert",
    "set_mask",
    "softmax_stream",
    "supported_model_types",
]
