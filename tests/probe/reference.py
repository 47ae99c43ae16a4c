"""Every head's outputs from the weights and the layers' inputs alone, family by family: the independent twin."""

from __future__ import annotations

import torch


def head_outputs(model, hidden, index, mask):
    """(B, H, N, d) of layer ``index`` from its input ``hidden`` (B, N, D) and the padding mask (B, N)."""
    family = model.config.model_type
    query, key, value, scaling = _FAMILIES[family](model, hidden, index)
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = torch.einsum("bhid,bhjd->bhij", query, key) * scaling
    allowed = mask[:, None, None, :].bool().expand(scores.shape).clone()
    if family in ("gpt2", "gpt_neox", "llama", "qwen2", "qwen3", "mistral"):
        allowed &= torch.ones(scores.shape[-2:]).tril().bool()
    weights = torch.where(allowed, scores, -torch.inf).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, value)


def _split(x, heads):
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(1, 2)


def _linear(x, layer):
    y = torch.einsum("bni,oi->bno", x, layer.weight)
    return y if layer.bias is None else y + layer.bias


def _bert(model, hidden, index):
    its = model.encoder.layer[index].attention.self
    heads = model.config.num_attention_heads
    parts = [_split(_linear(hidden, layer), heads) for layer in (its.query, its.key, its.value)]
    return *parts, parts[0].shape[-1] ** -0.5


def _distilbert(model, hidden, index):
    its = model.transformer.layer[index].attention
    parts = [_split(_linear(hidden, layer), model.config.n_heads) for layer in (its.q_lin, its.k_lin, its.v_lin)]
    return *parts, parts[0].shape[-1] ** -0.5


def _gpt2(model, hidden, index):
    block = model.h[index]
    mixed = block.ln_1(hidden) @ block.attn.c_attn.weight + block.attn.c_attn.bias
    parts = [_split(part, model.config.n_head) for part in mixed.chunk(3, dim=-1)]
    return *parts, parts[0].shape[-1] ** -0.5


def _rotated(x, theta, size):
    """Rotary positions on the first ``size`` entries of each head."""
    length = x.shape[2]
    angles = torch.arange(length)[:, None] * theta ** (-torch.arange(0, size, 2).double() / size)
    cos, sin = angles.cos(), angles.sin()
    a, b, rest = x[..., : size // 2], x[..., size // 2 : size], x[..., size:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def _theta(config):
    return float(config.rope_parameters["rope_theta"])


def _gpt_neox(model, hidden, index):
    layer = model.layers[index]
    heads = model.config.num_attention_heads
    mixed = _split(_linear(layer.input_layernorm(hidden), layer.attention.query_key_value), heads)
    query, key, value = mixed.chunk(3, dim=-1)
    size = int(query.shape[-1] * model.config.rope_parameters["partial_rotary_factor"])
    theta = _theta(model.config)
    return _rotated(query, theta, size), _rotated(key, theta, size), value, query.shape[-1] ** -0.5


def _llama(model, hidden, index):
    layer, config = model.layers[index], model.config
    its, x = layer.self_attn, layer.input_layernorm(hidden)
    query = _split(_linear(x, its.q_proj), config.num_attention_heads)
    key, value = (_split(_linear(x, each), config.num_key_value_heads) for each in (its.k_proj, its.v_proj))
    if config.model_type == "qwen3":
        query, key = its.q_norm(query), its.k_norm(key)
    size = query.shape[-1]
    return _rotated(query, _theta(config), size), _rotated(key, _theta(config), size), value, size**-0.5


_FAMILIES = {
    **dict.fromkeys(["bert", "roberta", "electra"], _bert),
    "distilbert": _distilbert,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    **dict.fromkeys(["llama", "qwen2", "qwen3", "mistral"], _llama),
}
