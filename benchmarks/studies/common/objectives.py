"""What a model is asked to predict: the next token, blocks, every token from both sides, or masked tokens.

Each is a collator of the training loop. Its batches hold ``labels`` where the prediction stands (-100 elsewhere, never
shifted), and with them ``targets``, which token of the text each position predicts, and ``index``, which sequence of
the split each row is. So losses of all four can be laid side by side, token by token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DataCollatorForLanguageModeling

from hf_attn_ext.integration.base_models.positions import position_table
from hf_attn_ext.training import BlockTwoStreamCollator, ButterflyCollator
from hf_attn_ext.training.data.encoding import Collator

IGNORED = -100
Batch = dict[str, Tensor]


class NextToken:
    """Every token but a sequence's first, from those before it."""

    def __init__(self, tokenizer: Any):
        self.plain = Collator(tokenizer, "language_modeling")

    def __call__(self, items: list[dict[str, Any]]) -> Batch:
        """Return the batch of some sequences."""
        batch = self.plain(items)
        following = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)[:, 1:]
        batch["labels"] = nn.functional.pad(following, (0, 1), value=IGNORED)
        places = torch.arange(1, batch["labels"].shape[1] + 1)
        return {**batch, "targets": places.expand_as(batch["labels"])}


class Blocks:
    """Every token but a sequence's first, a block at a time: the same tokens as :class:`NextToken`."""

    def __init__(self, tokenizer: Any, model: nn.Module):
        self.blocks = BlockTwoStreamCollator(tokenizer, model)

    def __call__(self, items: list[dict[str, Any]]) -> Batch:
        """Return the batch of some sequences."""
        batch = _with_targets(self.blocks(items), items, self.blocks.first_position)
        batch["labels"] = batch["labels"].masked_fill(batch["targets"] == 0, IGNORED)
        return batch


class BothSides:
    """Every token, from all the others (butterfly)."""

    def __init__(self, tokenizer: Any, model: nn.Module):
        self.butterfly = ButterflyCollator(tokenizer, model)

    def __call__(self, items: list[dict[str, Any]]) -> Batch:
        """Return the batch of some sequences."""
        return _with_targets(self.butterfly(items), items, self.butterfly.first_position)


class Masked:
    """Some tokens, from the others: BERT's masked language modelling, by the collator of Transformers.

    Args:
        tokenizer: has a mask token.
        model: says what its positions count from.
        share: of the tokens that are predicted.
        seed: the same masks for the same batches, again from the start after :meth:`restart`; None: torch's global
            generator, which the loop's checkpoints hold.
    """

    def __init__(self, tokenizer: Any, model: nn.Module, share: float, seed: int | None = None):
        self.plain, self.seed = Collator(tokenizer, "language_modeling"), seed
        self.first = (position_table(model) or (None, 0))[1]
        self.masker = DataCollatorForLanguageModeling(tokenizer, mlm=True, mlm_probability=share)
        self.restart()

    def restart(self) -> None:
        """Start the random masks again from the seed."""
        self.masker.generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)

    def __call__(self, items: list[dict[str, Any]]) -> Batch:
        """Return the batch of some sequences."""
        batch = self.plain(items)
        places = torch.arange(batch["input_ids"].shape[1]).expand_as(batch["input_ids"])
        unreal = batch["attention_mask"] == 0
        ids, labels = self.masker.torch_mask_tokens(batch["input_ids"].clone(), special_tokens_mask=unreal)
        while (labels == IGNORED).all():  # a batch without a prediction has no loss
            ids, labels = self.masker.torch_mask_tokens(batch["input_ids"].clone(), special_tokens_mask=unreal)
        # given, as a random word may be the padding token, which RoBERTa's own count leaves out
        positions = {"position_ids": places + self.first, "targets": places}
        return {**batch, "input_ids": ids, "labels": labels, **positions}


def _with_targets(batch: Batch, items: list[dict[str, Any]], first: int) -> Batch:
    batch.pop("shift_labels", None)
    index = torch.tensor([item["index"] for item in items])
    return {**batch, "targets": batch["position_ids"] - first, "index": index}
