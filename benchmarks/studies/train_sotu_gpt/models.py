"""The untrained models: the softmax model, the control, and one per kernel, all of the same number of parameters."""

from __future__ import annotations

import argparse
import bisect
import math
import warnings
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, Qwen2Config

import hf_attn_ext as hax
from hf_attn_ext.attention import make_feature_map
from hf_attn_ext.errors import AttnExtError

from .control import WINDOWED, control_name, local_layers, register_windows, windows


def mlp_width(options: argparse.Namespace) -> int:
    """MLP width of the softmax models; it gives both kinds of MLP about as many parameters."""
    return 4 * options.hidden if options.positions == "learned" else 8 * options.hidden // 3


def stock_model(options: argparse.Namespace, vocabulary: int, end: int, seed: int, inner: int | None = None) -> Any:
    """An untrained GPT-2; with rotary positions a Llama, or a Qwen2 where every other layer has a window.

    No dropout: the text is passed over only once or so.
    """
    torch.manual_seed(seed)  # the same initial weights for all, as far as the MLPs' widths are the same
    tokens = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "vocab_size": vocabulary}
    inner = inner or mlp_width(options)
    if options.positions == "learned":
        sizes = {"n_embd": options.hidden, "n_layer": options.layers, "n_head": options.heads, "n_inner": inner}
        off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        # GPT-2's activation, in one pass
        config = GPT2Config(
            **tokens, **sizes, **off, n_positions=options.context, activation_function="gelu_pytorch_tanh"
        )
        return GPT2LMHeadModel(config)
    common = {
        **tokens,
        "hidden_size": options.hidden,
        "intermediate_size": inner,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.heads,
        "num_key_value_heads": options.heads,
        "max_position_embeddings": options.context,
        "tie_word_embeddings": True,
        "initializer_range": options.initializer_range,
    }
    if not options.local_window:
        return AutoModelForCausalLM.from_config(LlamaConfig(**common))
    kinds = ["sliding_attention" if local else "full_attention" for local in local_layers(options)]
    window = {"use_sliding_window": True, "sliding_window": options.local_window, "layer_types": kinds}
    return AutoModelForCausalLM.from_config(Qwen2Config(**common, **window))


def kernel_options(kernel: str, options: argparse.Namespace) -> dict[str, Any]:
    """No affine maps: what they do to queries and keys the projections before them learn here as well."""
    if kernel in ("flexformer_p", "flexformer_sq"):
        return {"affine": False}
    return {"max_length": options.context} if kernel == "cosformer" else {}


def num_features_for(kernel: str, head_dim: int, feature_dim: int) -> int:
    """The most features whose ``feature_dim`` is not above the wanted one (kernels of one width have that)."""

    def too_wide(n: int) -> bool:
        return make_feature_map(kernel, 1, head_dim, n).feature_dim > feature_dim

    return max(1, bisect.bisect_left(range(1, feature_dim + 1), True, key=too_wide))


def build_model(name: str, options: argparse.Namespace, vocabulary: int, end: int, seed: int) -> nn.Module:
    """The model of one run: ``softmax``, ``last-8`` or a kernel's, all of the same number of parameters."""

    def stock(inner: int | None = None) -> nn.Module:
        return stock_model(options, vocabulary, end, seed, inner)

    if name == "softmax":
        return stock()
    if name == control_name(options):
        model = stock()
        register_windows()
        model.config.attention_windows = windows(options)
        model.set_attn_implementation(WINDOWED)
        return model

    def convert(model: nn.Module, kernel: dict[str, Any]) -> nn.Module:
        with warnings.catch_warnings():  # that layers with a window keep softmax is what is wanted here
            warnings.filterwarnings("ignore", message=".*sliding window.*")
            return hax.convert(model, kernel)

    head_dim = options.hidden // options.heads
    kernel = {"kernel": name, "num_features": num_features_for(name, head_dim, options.feature_dim), "seed": seed}
    kernel["kernel_options"] = kernel_options(name, options)
    model = convert(stock(), kernel)
    maps = sum(p.numel() for layer in hax.converted_layers(model) for p in layer.feature_map.parameters())
    unit = 2 * options.hidden + 1 if options.positions == "learned" else 3 * options.hidden  # of an MLP's width
    narrower, width = math.ceil(maps / (options.layers * unit)), mlp_width(options)
    if narrower >= width:
        raise AttnExtError(f"kernel {name!r} has {maps} parameters, more than the MLPs: take a smaller --feature-dim")
    return convert(stock(width - narrower), kernel) if narrower else model
