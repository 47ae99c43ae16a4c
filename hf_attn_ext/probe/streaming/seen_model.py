"""Statistics that are added must be of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.fingerprint import fingerprint
from hf_attn_ext.integration.base_models.readable_layers import Layer


class SeenModel:
    """The model that statistics are of, as it was when the first of them were taken."""

    def __init__(self, model: nn.Module, layers: Sequence[Layer]) -> None:
        self._model, self._layers = model, layers
        self._first: dict[str, str] | None = None

    def fingerprint(self) -> dict[str, str]:
        """Its fingerprint then; of now, where there are no statistics yet."""
        return self._first or fingerprint(self._model, self._layers)

    def check_unchanged(self) -> None:
        """Raise where it is not what it was."""
        now = fingerprint(self._model, self._layers)
        for what, its in (self._first or now).items():
            if now[what] != its:
                raise AttnExtError(
                    f"the model has other {what} than when this probe first saw it: its statistics would be of two "
                    "models; make another probe"
                )
        self.hold()

    def hold(self) -> None:
        """From now on there are statistics of it."""
        self._first = self.fingerprint()

    def check_same(self, other: Mapping[str, str]) -> None:
        """Raise where a fingerprint is another model's."""
        for what, its in self.fingerprint().items():
            if other.get(what) != its:
                raise AttnExtError(f"the statistics are of another model, of other {what}: they cannot be added")
