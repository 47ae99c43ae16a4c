"""One forward pass of block generation: the tokens added since the last pass, then a block of mask tokens.

Each position attends to the same positions as in training (:func:`hf_attn_ext.hasse.masks.block_two_stream`), so the
logits are those of training. Clean tokens stay in the cache, as keys and values or in the state of a linear layer. Mask
tokens are removed from the cache after the pass, or never enter it.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec
from hf_attn_ext.integration import LinearCache, converted_layers, is_converted
from hf_attn_ext.integration.base_models.families import attention_modules, cache_argument, is_causal
from hf_attn_ext.integration.base_models.positions import position_table
from hf_attn_ext.integration.masking.call import Streams, given_mask
from hf_attn_ext.integration.masking.set_mask import active_mask, maps_on_first_use


class BlockPasses:
    """The passes of one generation.

    Args:
        model: a model in which every layer has the same ``block_two_stream`` mask.
        mask_id: the id of the mask token.
        use_cache: cache keys and values, or states, of clean tokens; None: if every layer is a decoder's.

    Raises:
        AttnExtError: the model has another mask, or a cache is requested and the model has none.
    """

    def __init__(self, model: Any, mask_id: int, use_cache: bool | None = None) -> None:
        self.model, self.mask_id = model, mask_id
        options = block_options(model)
        self.size = options["block_size"]
        self.whole_blocks = options.get("context") == "block"
        self.every = options.get("starts") == "every"
        table = position_table(model)
        self.limit: int | None = None if table is None else table[0]
        self.first = 0 if table is None else table[1]
        parameters = inspect.signature(model.forward).parameters
        name = cache_argument(parameters)
        modules, linear, self.converted = attention_modules(model), converted_layers(model), is_converted(model)
        able = name is not None and all(is_causal(module) for _, module in modules)
        able = able and not maps_on_first_use(model)  # feature maps attached on first use have no cache
        if use_cache and not able:
            raise AttnExtError(f"{type(model).__name__} does not cache in every layer; omit use_cache")
        self.keeps_keys = len(linear) < len(modules)
        self.cache_name = name if able and use_cache is not False else None
        self.keeps_logits = "logits_to_keep" in parameters
        self.cache: Any = None
        self.known: tuple[Tensor, Tensor] | None = None  # positions and truth of the keys in the cache

    def begin(self, lengths: Tensor) -> Tensor:
        """Return the position at which the first predicted block of each text starts, (B,).

        It is the text's end for ``starts="every"``, otherwise the last multiple of the block size up to it.
        """
        return lengths.clone() if self.every else lengths // self.size * self.size

    def predict(self, text: Tensor, start: Tensor) -> Tensor:
        """Predict the block that starts at ``start``.

        Args:
            text: int64 (B, M); the tokens before ``start`` are used, or with a cache, the new ones among them.
            start: int64 (B,); with a cache, one block after the start of the previous pass.

        Returns:
            Logits (B, block_size, V).
        """
        batch, device = len(text), text.device
        done = None if self.cache is None else start - self.size
        width = int(start.max()) if done is None else self.size
        clean_at = torch.arange(width, device=device).expand(batch, -1) + (0 if done is None else done[:, None])
        # a text that has ended continues together with the others
        clean_real = clean_at < (start if self.limit is None else start.clamp_max(self.limit))[:, None]
        masks_at = start[:, None] + torch.arange(self.size, device=device)
        masks_real = torch.ones_like(masks_at, dtype=torch.bool) if self.limit is None else masks_at < self.limit
        old_at, old_real = self.known or (clean_at[:, :0], clean_real[:, :0])
        keys_at = torch.cat([old_at, clean_at], 1)
        keys_real = torch.cat([old_real, clean_real], 1)
        clean = text.gather(1, clean_at.clamp_max(text.shape[1] - 1)) if width else text[:, :0]
        ids = torch.cat([clean, clean.new_full((batch, self.size), self.mask_id)], 1)
        positions = torch.cat([clean_at, masks_at], 1)
        if self.limit is not None:
            positions = positions.clamp_max(self.limit - 1)
        inputs: dict[str, Any] = {"input_ids": ids, "position_ids": positions + self.first}
        streams, seen = None, 0
        if self.keeps_logits:
            inputs["logits_to_keep"] = self.size
        if self.cache_name is not None:
            if self.cache is None:
                self.cache = (LinearCache if self.converted else DynamicCache)(config=self.model.config)
            seen = self.cache.get_seq_length()
            streams = Streams(clean_real, masks_real, self.size if self.whole_blocks else 1)
            inputs |= {self.cache_name: self.cache, "use_cache": True}
        elif any(is_causal(module) for _, module in attention_modules(self.model)):
            inputs["use_cache"] = False
        # all ones: padding is in the mask, but without them Transformers would read the positions as packed texts
        inputs["attention_mask"] = torch.ones(batch, seen + ids.shape[1], dtype=torch.int64, device=device)
        mask = functools.partial(self._mask, clean_at, keys_at, keys_real, start, masks_real)
        with given_mask(self.model.config, mask, positions, streams):
            logits: Tensor = self.model(**inputs).logits[:, -self.size :]
        if self.cache_name is not None:
            if self.cache.get_seq_length() != seen + ids.shape[1]:
                raise AttnExtError(
                    f"{type(self.model).__name__} did not use the cache, as with gradient checkpointing; call "
                    "model.eval(), or pass use_cache=False"
                )
            self.cache.crop(-self.size)
            if self.keeps_keys:
                self.known = keys_at, keys_real
        return logits

    def _mask(self, clean_at: Tensor, keys_at: Tensor, keys_real: Tensor, start: Tensor, masks_real: Tensor) -> Tensor:
        """Return what the clean tokens and then the mask tokens attend to, bool (B, Nq, Nk)."""
        if self.whole_blocks:
            past = keys_at[:, None] // self.size <= clean_at[:, :, None] // self.size
        else:
            past = keys_at[:, None] <= clean_at[:, :, None]
        size = self.size
        of_clean = torch.nn.functional.pad(past & keys_real[:, None], (0, size))
        before = (keys_real & (keys_at < start[:, None]))[:, None].expand(-1, size, -1)
        of_masks = torch.cat([before, masks_real[:, None].expand(-1, size, -1)], 2)
        return torch.cat([of_clean, of_masks], 1)


def block_options(model: Any) -> dict[str, Any]:
    """Return the options of the ``block_two_stream`` mask that every layer of a model has.

    Raises:
        AttnExtError: the model has another mask, none, or one that is not active.
    """
    name = type(model).__name__
    masks = active_mask(model) or [None]
    kinds = [(mask.name, dict(mask.options)) if isinstance(mask, MaskSpec) else mask for mask in masks]
    if not all(isinstance(kind, tuple) and kind[0] == "block_two_stream" and kind == kinds[0] for kind in kinds):
        raise AttnExtError(
            f"block_generate needs the same mask 'block_two_stream' in every layer of {name}, as in its training; "
            "call hf_attn_ext.set_mask(model, 'block_two_stream', block_size=...)"
        )
    return kinds[0][1]
