"""Batches for masks that predict from more than what came before: block two-stream and butterfly.

Both take ordinary tokenised texts, dictionaries with ``input_ids`` of any lengths, and work wherever a collator does:
``Trainer(data_collator=...)``, ``DataLoader(collate_fn=...)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.hasse import MaskSpec
from hf_attn_ext.hasse.masks import block_two_stream, butterfly
from hf_attn_ext.hasse.order.reading import is_whole, read_list
from hf_attn_ext.integration.base_models.families import shifts_labels
from hf_attn_ext.integration.base_models.positions import position_table
from hf_attn_ext.integration.base_models.wrapping import unwrap
from hf_attn_ext.integration.conversion.peft_support import refuse_prompts
from hf_attn_ext.integration.masking.layouts import IGNORED, lay_out
from hf_attn_ext.integration.masking.set_mask import active_mask


class MaskCollator:
    """Base class of both collators: read texts, truncate them, pad them to a common length, and lay them out.

    ``Trainer(label_smoothing_factor=e)`` shifts the labels of a causal language model, whatever the batch says: every
    position would learn its neighbour's target. Pass ``compute_loss_func=LabelLoss(e)`` (:class:`.LabelLoss`) instead.

    Padding is on the right, whatever side the tokenizer pads on, so that positions count from the first token.

    Args:
        tokenizer: says the padding token, and the mask token where the mask needs one.
        model: says how many positions there are, what they count from, whether its loss shifts labels, and by
            :func:`hf_attn_ext.set_mask` which mask it has; None: positions from 0, without limit.
        max_length: tokens of a text at most; the rest is cut off. None: the model's positions.
        pad_to_max_length: give every batch that length, for a mask of one length.
        unlabelled: ids of tokens that nobody need predict, such as those that every text begins with.
    """

    mask_name: str
    uses_mask_token = False
    fewest_tokens = 1

    def __init__(
        self,
        tokenizer: Any,
        model: Any = None,
        max_length: int | None = None,
        pad_to_max_length: bool = False,
        unlabelled: Iterable[int] = (),
        **options: Any,
    ) -> None:
        refuse_prompts(model, type(self).__name__)
        base = None if model is None else unwrap(model)
        self.options = self._checked_options(base, options)
        table = None if base is None else position_table(base)
        limit, self.first_position = (None, 0) if table is None else table
        if max_length is not None:
            if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < self.fewest_tokens:
                raise AttnExtError(f"max_length must be a whole number from {self.fewest_tokens}, got {max_length!r}")
            if limit is not None and max_length > limit:
                raise AttnExtError(
                    f"max_length is {max_length}, but {type(base).__name__} has {limit} positions; call "
                    f"hf_attn_ext.extend_positions(model, {max_length}) first, or choose a smaller max_length"
                )
        self.max_length = limit if max_length is None else max_length
        if self._only_length is not None:  # the model's mask has one length
            if max_length not in (None, self._only_length):
                raise AttnExtError(
                    f"max_length is {max_length}, but the model's mask is for {self._only_length} tokens; leave it out"
                )
            self.max_length, pad_to_max_length = self._only_length, True
        if pad_to_max_length and self.max_length is None:
            raise AttnExtError("pad_to_max_length needs max_length, as the model has positions without limit")
        self.pad_to_max_length = pad_to_max_length
        hidden = read_list(unlabelled, "unlabelled")
        if not all(map(is_whole, hidden)):
            raise AttnExtError(f"unlabelled must be ids of tokens, got {short(hidden)}")
        self.unlabelled = sorted(set(map(int, hidden)))
        self.shifts = base is None or shifts_labels(base)
        if not all(hasattr(tokenizer, name) for name in ("pad_token_id", "mask_token_id")):
            raise AttnExtError(f"tokenizer must be one of transformers, got {short(tokenizer)}")
        self.pad_id = tokenizer.pad_token_id or 0
        self.mask_id = tokenizer.mask_token_id
        if self.uses_mask_token:
            _check_mask_token(self.mask_id, base)

    def spec(self, tokens: int) -> MaskSpec:
        """The mask over texts of ``tokens`` tokens."""
        raise NotImplementedError

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Make a batch: ``input_ids``, ``position_ids``, ``attention_mask``, ``labels``, int64 (B, N).

        Labels stand where the prediction is made. Where the model's loss would shift them, ``shift_labels`` are given
        too, the same ones, which Transformers' loss then takes as they are.

        Raises:
            AttnExtError: an item without ``input_ids`` or without a token, with ids that are no whole numbers, or with
                several texts.
        """
        texts = [_read(item, i)[: self.max_length] for i, item in enumerate(items)]
        if not texts:
            raise AttnExtError("a batch needs at least one text, got none")
        width = max(self.fewest_tokens, self._least(), *map(len, texts))
        if self.pad_to_max_length:
            assert self.max_length is not None  # the constructor has checked it
            width = self.max_length
        ids = torch.full((len(texts), width), self.pad_id, dtype=torch.int64)
        real = torch.zeros(len(texts), width, dtype=torch.bool)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
            real[row, : len(text)] = True
        batch = self._laid_out(ids, real)
        if self.unlabelled:
            hidden = torch.isin(batch["labels"], torch.tensor(self.unlabelled))
            batch["labels"] = batch["labels"].masked_fill(hidden, IGNORED)
        if self.shifts:
            batch["shift_labels"] = batch["labels"].clone()
        return batch

    def _laid_out(self, ids: Tensor, real: Tensor) -> dict[str, Tensor]:
        return lay_out(self.spec(ids.shape[1]), ids, real, self.mask_id, self.first_position)

    def _least(self) -> int:
        """The fewest tokens that the mask's options allow."""
        return 1

    def _checked_options(self, model: Any, options: dict[str, Any]) -> dict[str, Any]:
        """The mask's options, those of the model's mask where none are given."""
        given = {name: value for name, value in options.items() if value is not None}
        self._only_length: int | None = None
        if model is None:
            return given
        call = ", ".join([f"model, {self.mask_name!r}", *(f"{name}={value!r}" for name, value in given.items())])
        masks = active_mask(model)
        if masks is None:
            raise AttnExtError(
                f"{type(model).__name__} has no mask: call hf_attn_ext.set_mask({call}) first, or every prediction "
                "sees its own target"
            )
        found = [one for layer in masks for one in (layer if isinstance(layer, list) else [layer])]
        kinds = [(one.name, dict(one.options)) if isinstance(one, MaskSpec) else one for one in found]
        same = [dict(kind[1]) for kind in kinds if kind is not None and kind[0] == self.mask_name]
        if not same:
            raise AttnExtError(
                f"{type(model).__name__} has another mask than {self.mask_name!r}; call hf_attn_ext.set_mask({call})"
            )
        options = same[0]
        self._only_length = options.pop("n", None)
        for name, value in given.items():
            if options.get(name, self._defaults().get(name)) != value:
                raise AttnExtError(
                    f"{name} is {value!r} here, but {options.get(name)!r} in the model's mask; leave it out, or call "
                    f"hf_attn_ext.set_mask({call})"
                )
        return {**options, **given}

    def _defaults(self) -> dict[str, Any]:
        return {}


class BlockTwoStreamCollator(MaskCollator):
    """Batches for :func:`hf_attn_ext.hasse.masks.block_two_stream`: the text, then blocks of mask tokens.

    Args:
        tokenizer: needs a mask token; :func:`hf_attn_ext.add_mask_token` gives it one.
        model: as for :class:`MaskCollator`; if given, the options below default to those of its mask.
        block_size, context, starts: as for the mask.
        max_length, pad_to_max_length, unlabelled: as for :class:`MaskCollator`.

    Raises:
        AttnExtError: no mask token, a model without this mask, options other than the mask's, or more
            tokens than the model has positions.

    Example:
        >>> hax.set_mask(model, "block_two_stream", block_size=4)  # doctest: +SKIP
        >>> collator = BlockTwoStreamCollator(tokenizer, model)  # doctest: +SKIP
        >>> model(**collator([tokenizer("one text"), tokenizer("and a longer one")])).loss  # doctest: +SKIP
    """

    mask_name = "block_two_stream"
    uses_mask_token = True

    def __init__(
        self,
        tokenizer: Any,
        model: Any = None,
        block_size: int | None = None,
        context: str | None = None,
        starts: str | None = None,
        max_length: int | None = None,
        pad_to_max_length: bool = False,
        unlabelled: Iterable[int] = (),
    ) -> None:
        super().__init__(
            tokenizer,
            model,
            max_length,
            pad_to_max_length,
            unlabelled,
            block_size=block_size,
            context=context,
            starts=starts,
        )
        if "block_size" not in self.options:
            raise AttnExtError("block_size is missing: give it, or a model whose mask says it")
        self.spec(self._least())  # a wrong option is found now
        if self.max_length is not None and self.max_length < self.options["block_size"]:
            raise AttnExtError(
                f"block_size is {self.options['block_size']}, but a text has {self.max_length} tokens at most"
            )

    def spec(self, tokens: int) -> MaskSpec:
        """Return the mask of a text of ``tokens`` tokens."""
        return block_two_stream(tokens, **self.options)

    def _laid_out(self, ids: Tensor, real: Tensor) -> dict[str, Tensor]:
        batch = super()._laid_out(ids, real)
        if self.options.get("starts") == "every":
            # Whole blocks only: a shorter text has none that begin where a longer one's still do.
            count, size = ids.shape[1], self.options["block_size"]
            begins = torch.arange(batch["labels"].shape[1] - count) // size
            lengths = real.sum(1, keepdim=True).clamp_min(size)
            beyond = torch.nn.functional.pad(begins + size > lengths, (count, 0))
            batch["labels"] = batch["labels"].masked_fill(beyond, IGNORED)
            batch["attention_mask"] = batch["attention_mask"].masked_fill(beyond, 0)
        return batch

    def _least(self) -> int:
        size = self.options["block_size"]
        return max(1, size) if isinstance(size, int) else 1

    def _defaults(self) -> dict[str, Any]:
        return {"context": "token", "starts": "boundary"}


class ButterflyCollator(MaskCollator):
    """Batches for :func:`hf_attn_ext.hasse.masks.butterfly`: a forward chain, a backward chain, a prediction a token.

    A prediction's input is the mean of its neighbours' embeddings, which only the model can compute: the batch holds
    ``neighbour_ids`` (B, N, 2), and :func:`.accept_neighbour_ids` or :func:`.butterfly_embeddings` make them inputs.

    Args:
        tokenizer: needs no mask token.
        model: as for :class:`MaskCollator`; if given, the window defaults to that of its mask.
        window: as for the mask.
        max_length, pad_to_max_length, unlabelled: as for :class:`MaskCollator`.

    Raises:
        AttnExtError: a model without this mask, a window other than the mask's, or more tokens than the model has
            positions.

    Example:
        >>> hax.set_mask(model, "butterfly")  # doctest: +SKIP
        >>> accept_neighbour_ids(model)  # doctest: +SKIP
        >>> model(**ButterflyCollator(tokenizer, model)([tokenizer("one text")])).loss  # doctest: +SKIP
    """

    mask_name = "butterfly"
    fewest_tokens = 2

    def __init__(
        self,
        tokenizer: Any,
        model: Any = None,
        window: int | None = None,
        max_length: int | None = None,
        pad_to_max_length: bool = False,
        unlabelled: Iterable[int] = (),
    ) -> None:
        super().__init__(tokenizer, model, max_length, pad_to_max_length, unlabelled, window=window)
        self.spec(2)

    def spec(self, tokens: int) -> MaskSpec:
        """Return the mask of a text of ``tokens`` tokens."""
        return butterfly(tokens, **self.options)


def _read(item: Mapping[str, Any], number: int) -> Tensor:
    """The real tokens of one item, int64 (n,)."""
    if not isinstance(item, Mapping) or "input_ids" not in item:
        raise AttnExtError(f"text {number} of the batch has no input_ids; tokenise it first")
    ids = _row(item["input_ids"], f"input_ids of text {number}")
    if len(ids) and (ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex()):
        raise AttnExtError(f"input_ids of text {number} of the batch must be whole numbers, got dtype {ids.dtype}")
    mask = item.get("attention_mask")
    if mask is not None:
        mask = _row(mask, f"attention_mask of text {number}")
        if len(mask) != len(ids):
            raise AttnExtError(
                f"text {number} of the batch has {len(ids)} input_ids, but {len(mask)} in attention_mask"
            )
        ids = ids[mask.to(torch.bool)]
    if not len(ids):
        raise AttnExtError(f"text {number} of the batch has no token; leave empty texts out")
    return ids.to(torch.int64)


def _row(values: Any, what: str) -> Tensor:
    """Return the values of one text, (n,); tokenizers that return tensors return (1, n)."""
    try:
        row = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise AttnExtError(f"{what} of the batch must be a list of numbers, got {short(values)}") from None
    row = row[0] if row.ndim == 2 and len(row) == 1 else row
    if row.ndim != 1:
        raise AttnExtError(f"{what} of each text in the batch must have one dimension, got shape {tuple(row.shape)}")
    return row


def _check_mask_token(mask_id: int | None, model: Any) -> None:
    if mask_id is None:
        raise AttnExtError("this tokenizer has no mask token; call hf_attn_ext.add_mask_token(model, tokenizer)")
    rows = None if model is None else model.get_input_embeddings().weight.shape[0]
    if rows is not None and mask_id >= rows:
        raise AttnExtError(
            f"the mask token has id {mask_id}, but {type(model).__name__} has {rows} embeddings; call "
            "hf_attn_ext.add_mask_token(model, tokenizer)"
        )
