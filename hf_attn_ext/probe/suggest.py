"""Which layers should keep softmax? Convert a copy, initialise it from the data, see which layers it misses most."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..config import AttnExtConfig
from ..errors import AttnExtError
from ..files import write_text
from ..integration import calibrate, convert, converted_layers, is_converted
from ..integration.layers import attach, detach
from .annotate import Annotation
from .feeding import annotated_batches, evaluating, read
from .options import whole

Batch = dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class LayerSuggestion:
    """Which layers should keep softmax, and why.

    Attributes:
        keep: the layers that keep softmax, ascending: what the hybrid leaves out of ``convert(model, layers=...)``.
        convert: the others that can be converted.
        order: ``keep`` in the order they were chosen, the most needed first: its beginning is the suggestion for a
            smaller ``keep``.
        choices: for each choice, what the error would be if a layer were the next to keep softmax, by layer.
        errors: with none of ``order`` kept, with the first, with the first two, and so on; the error is the relative
            squared error of the last hidden states, ``sum |h - h*|^2 / sum |h*|^2`` over tokens.
        counts: texts and tokens that initialised the maps, and those that measured.
        settings: kernel and keep.
    """

    keep: list[int]
    convert: list[int]
    order: list[int]
    choices: list[dict[int, float]]
    errors: list[float]
    counts: dict[str, int]
    settings: dict[str, Any]

    def reason(self, layer: int) -> str:
        """Why a layer was chosen or not, in a sentence.

        Raises:
            AttnExtError: there is no such layer.
        """
        if layer not in self.keep and layer not in self.convert:
            raise AttnExtError(f"no layer {layer!r} was measured; there are {sorted(self.keep + self.convert)}")
        if layer in self.order:
            place = self.order.index(layer)
            before = f" beside {sorted(self.order[:place])}" if place else ""
            return (
                f"layer {layer}: keeping it{before} takes the error from {self.errors[place]:.4f} to "
                f"{self.errors[place + 1]:.4f}, more than any other layer would"
            )
        first, last = self.choices[0][layer], self.choices[-1][layer]
        return (
            f"layer {layer}: keeping it alone would take the error from {self.errors[0]:.4f} to {first:.4f}, and as "
            f"the last choice to {last:.4f} where layer {self.order[-1]} takes it to {self.errors[-1]:.4f}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a layer: whether it is kept, its place in the order, and the error if it alone is kept."""
        return [
            {
                "layer": layer,
                "kept": layer in self.keep,
                "place": self.order.index(layer) + 1 if layer in self.order else None,
                "error_if_alone_kept": error,
                "reason": self.reason(layer),
            }
            for layer, error in sorted(self.choices[0].items())
        ]

    def to_json(self, path: str | Path | None = None) -> str:
        """The JSON text; written to ``path``, beside and then renamed, where one is given."""
        text = json.dumps({"format": 1, **dataclasses.asdict(self), "layers": self.rows()}, allow_nan=False)
        if path is not None:
            write_text(path, text)
        return text


def suggest_layers(
    model: nn.Module,
    tokenizer: Any,
    texts: Iterable[str],
    keep: int,
    kernel: str = "flexformer_c",
    *,
    num_features: int = 64,
    kernel_options: dict[str, Any] | None = None,
    seed: int = 0,
    batch_size: int = 8,
    truncation: bool = False,
    max_length: int | None = None,
) -> LayerSuggestion:
    """Suggest which ``keep`` layers of ``model`` should keep softmax in a hybrid, without any training.

    The criterion is ours. Every layer is converted, its feature map initialised from the data
    (:func:`hf_attn_ext.calibrate`) on every other text; on the rest, that layer is kept first whose softmax brings the
    last hidden states nearest to the model's, then the best one beside it, and so on: errors of layers are not
    independent, so they are not ranked one by one. This takes ``keep * (layers - (keep - 1) / 2) + 2`` passes over
    half the texts; ``model`` itself stays as it is (its weights are shared, not copied).

    Args:
        model: a stock model of transformers that :func:`hf_attn_ext.convert` takes.
        tokenizer: its fast tokenizer.
        texts: a few dozen; the token ids and last hidden states of all are held in memory.
        keep: how many layers keep softmax, 1 to the number of layers that can be converted less one.
        kernel, num_features, kernel_options, seed: of the conversion, see :class:`hf_attn_ext.AttnExtConfig`.
        batch_size: texts a pass.
        truncation: cut texts to ``max_length`` tokens; otherwise a longer one is an error.
        max_length: the longest text in tokens, special ones included; None is what the model takes.

    Raises:
        AttnExtError: a model that is converted already or cannot be, ``keep`` out of range, fewer than two texts, or
            one that the model cannot read.

    Example:
        >>> found = suggest_layers(model, tokenizer, texts, keep=2)  # doctest: +SKIP
        >>> hax.convert(model, layers=found.convert)  # doctest: +SKIP
    """
    keep = whole(keep, 1, "keep")
    if is_converted(model):
        raise AttnExtError(f"{type(model).__name__} is converted already; give the stock model, or revert it first")
    if tokenizer is None:
        raise AttnExtError("suggest_layers needs the model's tokenizer, to read the texts")
    config = AttnExtConfig(kernel=kernel, num_features=num_features, kernel_options=kernel_options or {}, seed=seed)
    # the same parameters under another model: only what conversion adds is new
    hybrid = convert(copy.deepcopy(model, {id(each): each for each in model.parameters()}), config)
    layers = [layer.layer_idx for layer in converted_layers(hybrid)]
    if keep >= len(layers):
        raise AttnExtError(
            f"keep must lie between 1 and {len(layers) - 1}, for a model of {len(layers)} layers that can be "
            f"converted, got {keep}"
        )
    size = 2 * whole(batch_size, 1, "batch_size")
    read_at_once = annotated_batches([model], tokenizer, texts, size, truncation=truncation, max_length=max_length)
    batches = list(read_at_once)
    seen, measured = ([half for batch in batches if (half := _half(batch, start))] for start in (0, 1))
    if not measured:
        raise AttnExtError("one text is too few: every other text initialises the maps, the rest measure; give 2")
    with evaluating(model, hybrid):
        calibrate(hybrid, seen)
        errors = _Errors(hybrid, measured, [_hidden(model, batch) for batch in measured])
        order, choices, reached = _greedy(errors, layers, keep)
    return LayerSuggestion(
        keep=sorted(order),
        convert=[layer for layer in layers if layer not in order],
        order=order,
        choices=choices,
        errors=reached,
        counts={
            f"{part}_{what}": sum(count(batch["attention_mask"]) for batch in batches)
            for part, batches in (("initialising", seen), ("measuring", measured))
            for what, count in (("texts", len), ("tokens", lambda mask: int(mask.sum())))
        },
        settings={"kernel": config.to_dict(), "keep": keep},
    )


class _Errors:
    """The relative error of a hybrid's last hidden states, by which layers keep softmax.

    Args:
        model: converted in every layer that can be, its maps ready.
        batches: what to measure on.
        expected: the stock model's last hidden states of each batch's real tokens, (tokens, width).
    """

    def __init__(self, model: nn.Module, batches: list[Batch], expected: list[Tensor]):
        self.model, self.batches, self.expected = model, batches, expected
        self.layers = converted_layers(model)
        self.norm = sum(float(each.double().square().sum()) for each in expected)

    def __call__(self, kept: Sequence[int]) -> float:
        detach(self.model)
        attach(
            self.model,
            [(one.module, one.layer_idx, None if one.layer_idx in kept else one.feature_map) for one in self.layers],
        )
        total = 0.0
        for batch, expected in zip(self.batches, self.expected, strict=True):
            total += float((_hidden(self.model, batch) - expected).double().square().sum())
        return total / self.norm


def _greedy(error: _Errors, layers: list[int], keep: int) -> tuple[list[int], list[dict[int, float]], list[float]]:
    """Choose one layer after the other, each the one that lowers the error most; of equals the first."""
    order: list[int] = []
    choices: list[dict[int, float]] = []
    reached = [error(())]
    for _ in range(keep):
        found = {layer: error((*order, layer)) for layer in layers if layer not in order}
        order.append(min(found, key=found.__getitem__))
        choices.append(found)
        reached.append(found[order[-1]])
    return order, choices, reached


def _half(batch: Annotation, start: int) -> Batch | None:
    """Every other text of a batch from ``start`` on; None where there is none."""
    ids, mask = batch.input_ids[start::2], batch.attention_mask[start::2]
    longest = int(mask.sum(1).max()) if len(mask) else 0
    return {"input_ids": ids[:, :longest], "attention_mask": mask[:, :longest]} if longest else None


def _hidden(model: nn.Module, batch: Batch) -> Tensor:
    """(tokens, width): the last hidden states of the batch's real tokens."""
    states = read(model, batch["input_ids"], batch["attention_mask"]).last_hidden_state
    return states[batch["attention_mask"].to(states.device, torch.bool)]
