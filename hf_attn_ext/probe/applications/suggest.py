"""Suggest which layers keep softmax in a hybrid, before it is trained."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_attn_ext.config import AttnExtConfig
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration import calibrate, convert, converted_layers, is_converted
from hf_attn_ext.integration.base_models.evaluation import evaluating
from hf_attn_ext.integration.base_models.readable_layers import configuration_of
from hf_attn_ext.integration.kernel_modules.first_use import attached_on_first_use
from hf_attn_ext.integration.kernel_modules.layers import attach, detach
from hf_attn_ext.integration.linear.transfer import transfer
from hf_attn_ext.integration.names import IMPLEMENTATION
from hf_attn_ext.probe.corpus.annotate import Annotation
from hf_attn_ext.probe.json_text import JsonResult
from hf_attn_ext.probe.options import one_of, require_tokenizer, whole
from hf_attn_ext.probe.streaming.feeding import annotated_batches, read

from .neighbours import NEAREST, neighbour_attention

Batch = dict[str, Tensor]

CRITERIA = ("error", "neighbours")
STEPS = 30


@dataclasses.dataclass(frozen=True)
class LayerSuggestion(JsonResult):
    """Layers that should keep softmax, with scores and reasons; the result of :func:`suggest_layers`.

    Attributes:
        keep: the numbers of the layers that keep softmax, ascending.
        convert: the numbers of all other layers that can be converted: pass them to ``convert(model, layers=...)``.
        order: ``keep`` in the order of choice. Its first k layers are the suggestion for ``keep=k``.
        scores: by layer number; a layer with a higher score should rather keep softmax. For the criterion ``"error"``,
            how much keeping this layer alone lowers the error.
        reasons: by layer number, one sentence.
        errors: for the criterion ``"error"``, the relative error with no layer kept, with the first layer of ``order``
            kept, with the first two, and so on; else empty.
        choices: for the criterion ``"error"``, one dictionary per choice: the error by candidate layer; else empty.
        counts: the numbers of texts and tokens.
        settings: ``criterion``, ``keep``, ``steps``, ``kernel``, and ``maps``: the state of the kernels by which errors
            were measured. It is ``"trained"``, ``"initialised"`` (no steps, or they raised the error), or ``"none"``
            for the criterion ``"neighbours"``.
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
        """Return one dictionary per layer: score, whether it is kept, its rank in ``order`` as "place", the reason."""
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

    def to_dict(self) -> dict[str, Any]:
        """Return ``format``, the fields, and :meth:`rows` as ``layers``, as JSON values."""
        return {**super().to_dict(), "layers": self.rows()}


@dataclasses.dataclass(frozen=True)
class _Choice:
    """The part of a suggestion that depends on the criterion; see :class:`LayerSuggestion`."""

    order: list[int]
    scores: dict[int, float]
    reasons: dict[int, str]
    maps: str = "none"
    errors: list[float] = dataclasses.field(default_factory=list)
    choices: list[dict[int, float]] = dataclasses.field(default_factory=list)


def suggest_layers(
    model: PreTrainedModel,
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
    """Suggest which ``keep`` layers of ``model`` keep softmax in a hybrid, before it is trained.

    There are two criteria:

    ``"error"``: a hybrid that shares the model's weights is converted in all layers and calibrated on every other text
        (:func:`hf_attn_ext.calibrate`). Then ``steps`` steps of attention transfer train its kernels on these texts.
        The other texts measure the error of the last hidden states. The layer whose softmax lowers the error most is
        kept first, then the best layer in addition to it, and so on. This takes
        ``keep * (layers - (keep - 1) / 2) + 4`` passes over half of the texts.
    ``"neighbours"``: the layers whose heads attend most to the nearest tokens, relative to chance, keep softmax
        (:func:`.neighbours.neighbour_attention`, mean over heads). The idea is that a kernel of queries and keys
        depends on content rather than position. This takes one pass and works for any kernel, but is only a heuristic:
        it does better than random choices on MiniLM and worse on the 12-layer reaction model rxnfp.

    ``docs/evidence/probe-and-conversion.md`` compares both with random choices after stage 1. ``model`` is not changed.

    Args:
        model: a Transformers model that :func:`hf_attn_ext.convert` accepts, not converted.
        tokenizer: its fast tokenizer.
        texts: a few dozen strings.
        keep: how many layers keep softmax, from 1 to one less than the number of layers that can be converted.
        kernel, num_features, kernel_options, seed: of the conversion, see :class:`hf_attn_ext.AttnExtConfig`.
        criterion: ``"error"`` or ``"neighbours"``.
        steps: training steps for the criterion ``"error"``. With 0 steps, or if they raise the error, the kernels are
            used as initialised.
        batch_size, truncation, max_length: see :meth:`.ContextSimilarityProbe.feed`.

    Returns:
        The suggested layers, with a score and a reason for every layer.

    Raises:
        AttnExtError: the model is converted already or cannot be converted; ``keep`` is out of range; ``criterion`` is
            unknown; there are fewer than two texts, or the model cannot read one.

    Example:
        >>> suggestion = suggest_layers(model, tokenizer, texts, keep=2)  # doctest: +SKIP
        >>> hax.convert(model, layers=suggestion.convert)  # doctest: +SKIP

    Source:
        Ours.
    """
    keep, steps = whole(keep, 1, "keep"), whole(steps, 0, "steps")
    one_of(criterion, CRITERIA, "criterion")
    _check_unconverted(model)
    require_tokenizer(tokenizer, "suggest_layers")
    config = AttnExtConfig(kernel=kernel, num_features=num_features, kernel_options=kernel_options or {}, seed=seed)
    # the copy shares all parameters with the model: only what conversion adds is new
    hybrid = convert(copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()}), config)
    layers = [layer.layer_idx for layer in converted_layers(hybrid)]
    if keep >= len(layers):
        raise AttnExtError(
            f"keep must be between 1 and {len(layers) - 1} for a model with {len(layers)} layers that can be "
            f"converted, got {keep}"
        )
    size = 2 * whole(batch_size, 1, "batch_size")
    annotated = annotated_batches([model], tokenizer, texts, size, truncation=truncation, max_length=max_length)
    training, measured = _halves(annotated)
    with evaluating(model, hybrid):
        if criterion == "neighbours":
            choice = _by_neighbours(model, [*training, *measured], layers, keep)
        else:
            choice = _by_error(model, hybrid, training, measured, layers, keep, steps)
    masks = [batch["attention_mask"] for batch in (*training, *measured)]
    return LayerSuggestion(
        keep=sorted(choice.order),
        convert=[layer for layer in layers if layer not in choice.order],
        order=choice.order,
        scores=choice.scores,
        reasons=choice.reasons,
        errors=choice.errors,
        choices=choice.choices,
        counts={"texts": sum(map(len, masks)), "tokens": sum(int(mask.sum()) for mask in masks)},
        settings={
            "criterion": criterion,
            "keep": keep,
            "steps": steps if criterion == "error" else 0,
            "maps": choice.maps,
            "kernel": config.to_dict(),
        },
    )


def _check_unconverted(model: nn.Module) -> None:
    """Check that the model has softmax in all layers."""
    name = type(model).__name__
    if is_converted(model):
        raise AttnExtError(f"{name} is converted already; pass the base model, or revert the conversion first")
    if configuration_of(model)["attn_implementation"] == IMPLEMENTATION or attached_on_first_use(model) is not None:
        raise AttnExtError(
            f"{name} was opened with attn_implementation={IMPLEMENTATION!r}, so its kernels would be compared with "
            "themselves; open it with 'sdpa' or 'eager'"
        )


def _by_neighbours(model: nn.Module, batches: list[Batch], layers: list[int], keep: int) -> _Choice:
    heads = neighbour_attention(model, batches)
    scores = {layer: float(heads[layer].mean()) for layer in layers}
    ranked = sorted(layers, key=lambda layer: -scores[layer])
    order = ranked[:keep]
    reasons = {
        layer: f"layer {layer}: {100 * score:.1f} points of its attention go to the {NEAREST} nearest tokens on either "
        f"side beyond chance, rank {ranked.index(layer) + 1} of {len(ranked)}"
        + (": keeps softmax" if layer in order else "")
        for layer, score in scores.items()
    }
    return _Choice(order, scores, reasons)


def _by_error(
    model: nn.Module,
    hybrid: nn.Module,
    training: list[Batch],
    measured: list[Batch],
    layers: list[int],
    keep: int,
    steps: int,
) -> _Choice:
    error = _Errors(hybrid, measured, [_last_hidden_states(model, batch) for batch in measured])
    calibrate(hybrid, training)
    maps = _trained_if_better(hybrid, training, steps, error)
    order, choices, errors = _greedy(error, layers, keep)
    scores = {layer: errors[0] - alone for layer, alone in choices[0].items()}
    reasons = {layer: _error_reason(layer, order, choices, errors) for layer in layers}
    return _Choice(order, scores, reasons, maps, errors, choices)


def _error_reason(layer: int, order: list[int], choices: list[dict[int, float]], errors: list[float]) -> str:
    if layer in order:
        rank = order.index(layer)
        others = f" in addition to {sorted(order[:rank])}" if rank else ""
        return (
            f"layer {layer}: keeping it{others} takes the error from {errors[rank]:.4f} to {errors[rank + 1]:.4f}, "
            "more than any other layer would: keeps softmax"
        )
    return (
        f"layer {layer}: keeping it alone would take the error from {errors[0]:.4f} to {choices[0][layer]:.4f}, and as "
        f"the last choice to {choices[-1][layer]:.4f} where layer {order[-1]} takes it to {errors[-1]:.4f}"
    )


class _Errors:
    """Relative error of a hybrid's last hidden states, as a function of the layers that keep softmax.

    ``expected`` are the base model's last hidden states of each batch's real tokens, (tokens, width).
    """

    def __init__(self, model: nn.Module, batches: list[Batch], expected: list[Tensor]):
        self.model, self.batches, self.expected = model, batches, expected
        self.layers = converted_layers(model)
        self.norm = sum(float(states.double().square().sum()) for states in expected)
        if not 0 < self.norm < float("inf"):
            raise AttnExtError(
                "the model's last hidden states are all zero or not finite, possibly by overflow in half precision; "
                "load the model in float32"
            )

    def __call__(self, kept: Sequence[int]) -> float:
        """Return the squared error relative to the squared norm, with softmax in the layers ``kept``."""
        detach(self.model)
        attach(
            self.model,
            [
                (layer.module, layer.layer_idx, None if layer.layer_idx in kept else layer.feature_map)
                for layer in self.layers
            ],
        )
        total = 0.0
        for batch, expected in zip(self.batches, self.expected, strict=True):
            total += float((_last_hidden_states(self.model, batch) - expected).double().square().sum())
        if not math.isfinite(total):
            raise AttnExtError(
                f"the hybrid's last hidden states are not finite with softmax in layers {sorted(kept)}; choose another "
                "kernel"
            )
        return total / self.norm


def _trained_if_better(hybrid: nn.Module, batches: list[Batch], steps: int, error: _Errors) -> str:
    """Train the kernels for a few steps and return the state they are in; undo the training if it raises the error."""
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
    """Choose ``keep`` layers one after another, each time the one with the lowest error; the first among equals."""
    order: list[int] = []
    choices: list[dict[int, float]] = []
    reached = [error(())]
    for _ in range(keep):
        errors = {layer: error((*order, layer)) for layer in layers if layer not in order}
        order.append(min(errors, key=errors.__getitem__))
        choices.append(errors)
        reached.append(errors[order[-1]])
    return order, choices, reached


def _halves(annotated: Iterable[Annotation]) -> tuple[list[Batch], list[Batch]]:
    """Split batches of texts into two lists of batches: texts with even numbers, and texts with odd numbers."""
    halves: tuple[list[Batch], list[Batch]] = ([], [])
    for batch in annotated:
        for start, half in enumerate(halves):
            ids, mask = batch.input_ids[start::2], batch.attention_mask[start::2]
            longest = int(mask.sum(1).max()) if len(mask) else 0
            if longest:
                half.append({"input_ids": ids[:, :longest], "attention_mask": mask[:, :longest]})
    if not halves[1]:
        raise AttnExtError("one text is too few to suggest layers from; pass at least 2, better a few dozen")
    return halves


def _last_hidden_states(model: nn.Module, batch: Batch) -> Tensor:
    """Return the last hidden states of the batch's real tokens, (tokens, width)."""
    states: Tensor = read(model, batch["input_ids"], batch["attention_mask"]).last_hidden_state
    return states[batch["attention_mask"].to(states.device, torch.bool)]
