"""A check that all statistics of a probe come from one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.fingerprint import fingerprint
from hf_attn_ext.integration.base_models.readable_layers import Layer


class SeenModel:
    """The model of a probe, as it was when its first statistics were taken."""

    def __init__(self, model: nn.Module, layers: Sequence[Layer]) -> None:
        self._model, self._layers = model, layers
        self._first: dict[str, str] | None = None

    def fingerprint(self) -> dict[str, str]:
        """Return the fingerprint at the first statistics; the present one where there are none yet."""
        return self._first or fingerprint(self._model, self._layers)

    def check_unchanged(self) -> None:
        """Raise AttnExtError if the model has changed since the first statistics."""
        now = fingerprint(self._model, self._layers)
        for what, before in (self._first or now).items():
            if now[what] != before:
                raise AttnExtError(
                    f"the model has other {what} than when this probe first saw it: its statistics would be of two "
                    "models; make another probe"
                )
        self.hold()

    def hold(self) -> None:
        """Record the present fingerprint as that of the first statistics."""
        self._first = self.fingerprint()

    def check_same(self, other: Mapping[str, str]) -> None:
        """Raise AttnExtError if ``other`` is the fingerprint of another model."""
        for what, own in self.fingerprint().items():
            if other.get(what) != own:
                raise AttnExtError(f"the statistics are of another model, of other {what}: they cannot be added")
