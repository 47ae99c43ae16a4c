"""Tiny models of every supported family, and inputs for every head."""

from __future__ import annotations

import inspect

import torch
from transformers import AutoModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from hf_attn_ext.attention import linear_attention, make_feature_map
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import masks
from hf_attn_ext.integration.base_models.families import FAMILIES, head_classes

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "embedding_size": 12,
    "hidden_dim": 24,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "sliding_window": None,
}
KERNEL = {"kernel": "flexformer_p", "num_features": 4}


def tiny_config(model_type, **changes):
    """A small configuration of a model type of Transformers."""
    cls = CONFIG_MAPPING[model_type]
    known = set(inspect.signature(cls).parameters) | set(cls.attribute_map) | set(cls().to_dict())
    return cls(**{**{name: value for name, value in SIZES.items() if name in known}, **changes})


def tiny_model(cls, seed=0, **changes):
    """A small model of Transformers in evaluation mode; ``cls`` is a model class."""
    torch.manual_seed(seed)
    return cls(tiny_config(cls.config_class.model_type, **changes)).eval()


def family_model(model_type, seed=0, **changes):
    """A small model of a type, without a head, in evaluation mode."""
    torch.manual_seed(seed)
    return AutoModel.from_config(tiny_config(model_type, **changes)).eval()


def head_class_pairs():
    """Every head class of every family, once: ``(model_type, class)``."""
    pairs = {}
    for model_type in FAMILIES:
        for classes in head_classes(model_type).values():
            for cls in classes:
                pairs[cls.__name__] = (model_type, cls)
    return list(pairs.values())


def inputs(model=None, batch=3, length=7, seed=0, padded=True):
    """Token ids and a padding mask, in the shape that the head asks for."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, SIZES["vocab_size"], (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        for row in range(1, batch):
            mask[row, length - row :] = 0
            ids[row, length - row :] = 0
    if model is not None and type(model).__name__.endswith("MultipleChoice"):
        ids, mask = ids[:, None].repeat(1, 2, 1), mask[:, None].repeat(1, 2, 1)
    return {"input_ids": ids, "attention_mask": mask}


def logits_of(output):
    """All output tensors of a model, in order, as one flat list."""
    flat = []
    for value in output.to_tuple():
        if torch.is_tensor(value):
            flat.append(value)
    return flat


def linear_attention_knows_orders():
    """Whether ``linear_attention(order=...)`` computes; until then tests put a dense computation in its place."""
    x = torch.randn(1, 1, 4, 2)
    try:
        linear_attention(x, x, x, make_feature_map("elu", 1, 2, 2), order=masks.butterfly(2))
    except AttnExtError:
        return False
    return True
