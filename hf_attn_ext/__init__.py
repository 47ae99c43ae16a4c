"""Attention in Hugging Face models: swap it for a linear-time kernel, distil it, keep the quality.

    import hf_attn_ext as hax

    model = hax.convert(model, hax.AttnExtConfig(kernel="flexformer_p", num_features=64))  # and hax.revert(model)
    AutoModel.from_pretrained("roberta-base", attn_implementation="flexformer")           # attached on first use
    AutoModelForSequenceClassification.from_pretrained(converted_folder)                  # exact, in a fresh process
    accelerate launch -m hf_attn_ext.distill --config configs/distill/reviews.yaml

Importing the package registers the attention function and the model types ``attn_ext_<base>`` with transformers, once.
The parts: :mod:`.hasse` (masks and the orders behind them), :mod:`.attention` (kernels and forms), :mod:`.integration`
(transformers), :mod:`.training` (distillation, collators), :mod:`.inference` (whole blocks, scores from both sides),
:mod:`.probe` (context similarity), :mod:`.hub` (cards, uploads), :mod:`.cli` (``hf-attn-ext``).
"""

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .attention import build_native_op, list_kernels, register_kernel
from .config import AttnExtConfig
from .errors import AttnExtError
from .hasse import MaskSpec
from .hasse.masks import list_masks, register_mask
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

if TYPE_CHECKING:
    from .hub.push import push_to_hub
    from .probe.probe import ContextSimilarityProbe
    from .training.distill_kernels import distill_kernels

_LAZY = {
    "ContextSimilarityProbe": "hf_attn_ext.probe.probe",
    "distill_kernels": "hf_attn_ext.training.distill_kernels",
    "push_to_hub": "hf_attn_ext.hub.push",
}
_LAZY_MODULES = ("distill", "hub", "inference", "probe", "training")


def __getattr__(name: str) -> Any:
    """Import the parts that few programs need when they are first asked for."""
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    if name in _LAZY_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_LAZY_MODULES})


__all__ = [
    "AttnExtConfig",
    "AttnExtError",
    "ContextSimilarityProbe",
    "LinearCache",
    "MaskSpec",
    "__version__",
    "add_mask_token",
    "build_native_op",
    "calibrate",
    "convert",
    "converted_layers",
    "distill",
    "distill_kernels",
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
