"""Full similarity matrices of every pass, for ``keep=("matrices",)``."""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.capture.passes import ForwardPass

NO_PASS = "the probe has seen no forward pass; run model(**inputs) or probe.feed(texts) inside the block"


class KeptMatrices:
    """The matrices of all passes, on the CPU; texts follow one another. ``wanted``: whether matrices are kept."""

    def __init__(self, layers: list[int], wanted: bool) -> None:
        self.layers, self.wanted = layers, wanted
        self._passes: list[tuple[ForwardPass, dict[int, Tensor]]] = []
        self._lock = threading.Lock()

    def add(self, forward: ForwardPass, of_layer: dict[int, Tensor]) -> None:
        """Keep the matrices (B, H, N, N) of one pass, by layer."""
        with self._lock:
            self._passes.append((forward, of_layer))

    def matrices(self, layer: int) -> Tensor:
        """See :meth:`.probe.ContextSimilarityProbe.matrices`."""
        self._check_wanted()
        if layer not in self.layers:
            raise AttnExtError(f"the probe has no layer {layer!r}; it has {', '.join(map(str, self.layers))}")
        self._check_seen()
        return _joined([of_layer[layer] for _, of_layer in self._passes])

    def tokens(self) -> tuple[Tensor | None, Tensor]:
        """See :meth:`.probe.ContextSimilarityProbe.tokens`."""
        self._check_wanted()
        self._check_seen()
        passes = [forward for forward, _ in self._passes]
        ids = [forward.input_ids for forward in passes if forward.input_ids is not None]
        mask = _joined([forward.attention_mask for forward in passes if forward.attention_mask is not None])
        return _joined(ids) if len(ids) == len(passes) else None, mask

    def _check_wanted(self) -> None:
        if not self.wanted:
            raise AttnExtError("this probe keeps no matrices: ContextSimilarityProbe(model, keep=('matrices',))")

    def _check_seen(self) -> None:
        if not self._passes:
            raise AttnExtError(NO_PASS)


def _joined(parts: list[Tensor]) -> Tensor:
    """Concatenate along the batch, the other axes padded with zeros at the end."""
    if len(parts) == 1:
        return parts[0]
    longest = max(part.shape[-1] for part in parts)
    axes = parts[0].ndim - 1 if parts[0].ndim == 2 else 2
    filled = [nn.functional.pad(part, (0, longest - part.shape[-1]) * axes) for part in parts]
    return torch.cat(filled)
