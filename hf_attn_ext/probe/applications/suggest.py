"""Which layers should keep softmax? Those without which a kernel moves the model most, known before it is trained."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hf_attn_ext.config import AttnExtConfig
from hf_attn_ext.errors import AttnExtError, short, suggest
from hf_attn_ext.integration import calibrate, convert, converted_layers, is_converted
from hf_attn_ext.integration.base_models.evaluation import evaluating
from hf_attn_ext.integration.base_models.readable_layers import configuration_of
from hf_attn_ext.integration.kernel_modules.first_use import attached_on_first_use
from hf_attn_ext.integration.kernel_modules.layers import attach, detach
from hf_attn_ext.integration.linear.transfer import transfer
from hf_attn_ext.integration.names import IMPLEMENTATION
from hf_attn_ext.probe.corpus.annotate import Annotation
from hf_attn_ext.probe.json_text import json_text
from hf_attn_ext.probe.options import whole
from hf_attn_ext.probe.streaming.feeding import annotated_batches, read

from .neighbours import NEAREST, neighbour_attention

Batch = dict[str, Tensor]


CRITERIA = ("error", "neighbours")
STEPS = 30


@dataclasses.dataclass(frozen=True)
class LayerSuggestion:
    """Which layers should keep softmax, and why.

    Attributes:
        keep: the layers that keep softmax, ascending: what ``convert(model, layers=...)`` leaves out.
        convert: the others that can be converted.
        order: ``keep`` in the order they were chosen, the most needed first: its beginning is the suggestion for a
            smaller ``keep``.
        scores: by layer, the higher the more it should keep softmax; of the criterion ``"error"``, those of the first
            choice.
        reasons: by layer, in a sentence.
        errors: of the criterion ``"error"``: the relative error with none of ``order`` kept, with the first, with the
            first two, and so on; else empty.
        choices: of that criterion, for each choice: what the error would be if a layer were the next to be kept.
        counts: how many texts and tokens it rests on.
        settings: criterion, keep, steps, kernel, and what ``maps`` errors were measured with: ``"trained"``,
            ``"initialised"`` where these steps made the error greater or were none, ``"none"`` of ``"neighbours"``.
    """

    keep: list[int]
    convert: list[int]
    order: list[int]
    scores: dict[int, float]
    reasons: dict[int, str]
    errors: list[float]
    choices: list[dict[int, float]]
    counts: dict[str, int]
    settings: dict[str, Any]

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a layer: its score, whether it is kept, its place in the order, and the reason."""
        return [
            {
                "layer": layer,
                "score": score,
                "kept": layer in self.keep,
                "place": self.order.index(layer) + 1 if layer in self.order else None,
                "reason": self.reasons[layer],
            }
            for layer, score in sorted(self.scores.items())
        ]

    def to_json(self, path: str | Path | None = None) -> str:
        """The JSON text; written to ``path``, beside and then renamed, where one is given."""
        return json_text({"format": 1, **dataclasses.asdict(self), "layers": self.rows()}, path)


def suggest_layers(
    model: nn.Module,
    tokenizer: Any,
    texts: Iterable[str],
    keep: int,
    kernel: str = "flexformer_p",
    *,
    criterion: str = "error",
    num_features: int = 64,
    kernel_options: dict[str, Any] | None = None,
    steps: int = STEPS,
    seed: int = 0,
    batch_size: int = 8,
    truncation: bool = False,
    max_length: int | None = None,
) -> LayerSuggestion:
    """Suggest which ``keep`` layers of ``model`` should keep softmax in a hybrid, before it is trained.

    Both criteria are ours:

    ``"error"``: all layers are converted, with ``kernel``, and initialised from every other text
        (:func:`hf_attn_ext.calibrate`); ``steps`` steps of attention transfer on these texts take most of the error
        that any training would take. On the rest, that layer is kept first whose softmax brings the last hidden states
        nearest to the model's, then the best one beside it, and so on: ``keep * (layers - (keep - 1) / 2) + 4`` passes
        over half the texts.
    ``"neighbours"``: the layers whose heads attend most to the nearest tokens, beyond what there is of them
        (:func:`.neighbours.neighbour_attention`, mean over heads), on the ground that a kernel of queries and keys
        follows contents. One pass over the texts, for any kernel, and no rule: better than random choices on MiniLM,
        worse on the 12-layer reaction model rxnfp.

    Measured after stage 1, against the mean of random choices: ``docs/evidence/probe-and-conversion.md``.

    ``model`` itself stays as it is; its weights are shared, not copied.

    Args:
        model: a stock model of transformers that :func:`hf_attn_ext.convert` takes.
        tokenizer: its fast tokenizer.
        texts: a few dozen.
        keep: how many layers keep softmax, 1 to the number of layers that can be converted less one.
        criterion: see above.
        kernel, num_features, kernel_options, seed: of the conversion, see :class:`hf_attn_ext.AttnExtConfig`.
        steps: of the criterion ``"error"``; 0 judges the kernel as it is initialised, as does an error that they raise.
        batch_size: texts a pass.
        truncation: cut texts to ``max_length`` tokens; otherwise a longer one is an error.
        max_length: the longest text in tokens, special ones included; None is what the model takes.

    Raises:
        AttnExtError: a model that is converted already or cannot be, ``keep`` out of range, no such criterion, fewer
            than two texts, or one that the model cannot read.

    Example:
        >>> found = suggest_layers(model, tokenizer, texts, keep=2)  # doctest: +SKIP
        >>> hax.convert(model, layers=found.convert)  # doctest: +SKIP
    """
    keep, steps = whole(keep, 1, "keep"), whole(steps, 0, "steps")
    if criterion not in CRITERIA:
        raise AttnExtError(
            f"unknown criterion {short(criterion)}.{suggest(criterion, CRITERIA)} There are: {', '.join(CRITERIA)}"
        )
    if is_converted(model):
        raise AttnExtError(f"{type(model).__name__} is converted already; give the stock model, or revert it first")
    if configuration_of(model)["attn_implementation"] == IMPLEMENTATION or attached_on_first_use(model) is not None:
        raise AttnExtError(
            f"{type(model).__name__} was opened with attn_implementation={IMPLEMENTATION!r}, whose kernels would be "
            "compared with themselves; open it with 'sdpa' or 'eager'"
        )
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
    annotated = annotated_batches([model], tokenizer, texts, size, truncation=truncation, max_length=max_length)
    halves = [[_half(batch, start) for start in (0, 1)] for batch in annotated]
    seen, measured = ([half for half in side if half is not None] for side in zip(*halves, strict=True))
    if not measured:
        raise AttnExtError("one text is too few to suggest layers from; give 2 at least, better a few dozen")
    with evaluating(model, hybrid):
        if criterion == "neighbours":
            maps = "none"
            heads = neighbour_attention(model, [*seen, *measured])
            scores = {layer: float(heads[layer].mean()) for layer in layers}
            order = sorted(layers, key=lambda layer: -scores[layer])[:keep]
            errors, choices = [], []
            reasons = _neighbour_reasons(scores, order)
        else:
            error = _Errors(hybrid, measured, [_hidden(model, batch) for batch in measured])
            calibrate(hybrid, seen)
            maps = _trained_if_better(hybrid, seen, steps, error)
            order, choices, errors = _greedy(error, layers, keep)
            scores = {layer: errors[0] - its for layer, its in choices[0].items()}
            reasons = {layer: _error_reason(layer, order, choices, errors) for layer in layers}
    masks = [batch["attention_mask"] for batch in (*seen, *measured)]
    return LayerSuggestion(
        keep=sorted(order),
        convert=[layer for layer in layers if layer not in order],
        order=order,
        scores=scores,
        reasons=reasons,
        errors=errors,
        choices=choices,
        counts={"texts": sum(map(len, masks)), "tokens": sum(int(mask.sum()) for mask in masks)},
        settings={
            "criterion": criterion,
            "keep": keep,
            "steps": steps if criterion == "error" else 0,
            "maps": maps,
            "kernel": config.to_dict(),
        },
    )


def _neighbour_reasons(scores: dict[int, float], order: list[int]) -> dict[int, str]:
    ranked = sorted(scores, key=lambda layer: -scores[layer])
    return {
        layer: f"layer {layer}: {100 * score:.1f} points of its attention go to the {NEAREST} nearest tokens of either "
        f"side beyond chance, place {ranked.index(layer) + 1} of {len(ranked)}"
        + (": keeps softmax" if layer in order else "")
        for layer, score in scores.items()
    }


def _error_reason(layer: int, order: list[int], choices: list[dict[int, float]], errors: list[float]) -> str:
    if layer in order:
        place = order.index(layer)
        beside = f" beside {sorted(order[:place])}" if place else ""
        return (
            f"layer {layer}: keeping it{beside} takes the error from {errors[place]:.4f} to {errors[place + 1]:.4f}, "
            "more than any other layer would: keeps softmax"
        )
    return (
        f"layer {layer}: keeping it alone would take the error from {errors[0]:.4f} to {choices[0][layer]:.4f}, and as "
        f"the last choice to {choices[-1][layer]:.4f} where layer {order[-1]} takes it to {errors[-1]:.4f}"
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
        if not 0 < self.norm < float("inf"):
            raise AttnExtError(
                "the model's last hidden states are all zero or not finite (overflow of half precision?): nothing can "
                "be compared with them"
            )

    def __call__(self, kept: Sequence[int]) -> float:
        detach(self.model)
        attach(
            self.model,
            [(one.module, one.layer_idx, None if one.layer_idx in kept else one.feature_map) for one in self.layers],
        )
        total = 0.0
        for batch, expected in zip(self.batches, self.expected, strict=True):
            total += float((_hidden(self.model, batch) - expected).double().square().sum())
        if not math.isfinite(total):
            raise AttnExtError(
                f"the hybrid's last hidden states are not finite with softmax kept in layers {sorted(kept)}: this "
                "kernel cannot be judged on this model"
            )
        return total / self.norm


def _trained_if_better(hybrid: nn.Module, batches: list[Batch], steps: int, error: _Errors) -> str:
    """Train the maps for a few steps, and take them back where the error is greater for it."""
    if not steps:
        return "initialised"
    before = [{name: x.clone() for name, x in layer.feature_map.state_dict().items()} for layer in error.layers]
    initial = error(())
    transfer(hybrid, batches, steps)
    if error(()) < initial:
        return "trained"
    for layer, state in zip(error.layers, before, strict=True):
        layer.feature_map.load_state_dict(state)
    return "initialised"


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
    states = read(model, **batch).last_hidden_state
    return states[batch["attention_mask"].to(states.device, torch.bool)]
