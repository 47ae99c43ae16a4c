"""The results of a probe: statistics with chance levels and intervals, as tables and JSON.

The JSON form holds ``format`` (1) and the fields of :class:`ProbeStatistics`; NaN is null.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from hf_attn_ext.errors import AttnExtError, suggest
from hf_attn_ext.probe.statistics import statistic_named

from .json_text import FORMAT, JsonResult, plain

MEASURES = {"dot": "dot products of the heads' outputs", "cosine": "their cosines", "attention": "A A^T"}


@dataclasses.dataclass(frozen=True)
class Statistic:
    """One statistic, by layer and head.

    Attributes:
        name: one of :func:`.list_statistics`.
        measure: the similarity: ``"dot"``, or a control, ``"cosine"`` or ``"attention"``.
        percent: which pairs are high; None for statistics of the attention map.
        layers, heads: the numbers of the axes; heads is None for a statistic of a whole layer.
        values: (L, H), or (L,) for a statistic of a whole layer; likewise below.
        interval: (L, H, 2), 95% by a bootstrap over texts or documents, cut at the possible values (0 and 1 for a
            share); NaN where all texts were drawn together.
        chance: (L, H), for pairs drawn by count; NaN where there is no such level.
        chance_matched: (L, H), for pairs drawn at the same distances; NaN where there is no such level.
        excess_interval: (L, H, 2), 95% interval of ``values - chance``, texts paired.
        excess_matched_interval: (L, H, 2), the same for ``values - chance_matched``.
        texts: how many texts were counted.
        replicates: (3, R, L, H), values, chance and chance_matched in each bootstrap replicate; two probes with one
            seed draw the same texts or documents in each. None if the statistic was read from a file.
    """

    name: str
    measure: str
    percent: float | None
    layers: list[int]
    heads: list[int] | None
    values: np.ndarray
    interval: np.ndarray
    chance: np.ndarray
    chance_matched: np.ndarray
    excess_interval: np.ndarray
    excess_matched_interval: np.ndarray
    texts: int
    replicates: np.ndarray | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def description(self) -> str:
        """One line, from the registry."""
        return statistic_named(self.name).description


@dataclasses.dataclass(frozen=True)
class ProbeStatistics(JsonResult):
    """All statistics of a probe.

    Attributes:
        statistics: one entry per name, measure and percentage.
        distances: ``bins`` (lower bounds), ``percents``, ``values`` (P, L, H, bins): shares of the high pairs by
            distance, ``chance`` (P, bins): shares of all pairs.
        counts: numbers of texts, tokens, special tokens, padding and so on.
        settings: the probe's settings.
        notes: gaps that a reader must know of, in sentences.

    Example:
        >>> table = probe.statistics()  # doctest: +SKIP
        >>> table.get("within_sentence", percent=1).values.shape  # doctest: +SKIP
        (6, 12)
    """

    statistics: list[Statistic]
    distances: dict[str, Any]
    counts: dict[str, int]
    settings: dict[str, Any]
    notes: list[str]

    def get(self, name: str, percent: float | None = None, measure: str = "dot") -> Statistic:
        """Return one statistic.

        Args:
            name: one of :func:`.list_statistics`.
            percent: which pairs are high; None takes the first percentage.
            measure: ``"dot"``, ``"cosine"`` or ``"attention"``.

        Raises:
            AttnExtError: the probe has no such statistic.
        """
        names = list(dict.fromkeys(each.name for each in self.statistics))
        if name not in names:
            raise AttnExtError(f"no statistic {name!r};{suggest(name, names)} There are: {', '.join(names)}")
        for each in self.statistics:
            if each.name == name and each.measure == measure and percent in (None, each.percent):
                return each
        known = sorted({(e.measure, e.percent) for e in self.statistics if e.name == name}, key=str)
        raise AttnExtError(f"no statistic {name!r} with measure {measure!r} and percent {percent!r}; there are {known}")

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per statistic, layer and head, for a data frame."""
        rows = []
        for each in self.statistics:
            for index in np.ndindex(each.values.shape):
                row = {"name": each.name, "measure": each.measure, "percent": each.percent}
                row["layer"] = each.layers[index[0]]
                row["head"] = each.heads[index[1]] if each.heads is not None else None
                for field in ("values", "chance", "chance_matched"):
                    row[field.removesuffix("s")] = float(getattr(each, field)[index])
                for field in ("interval", "excess_interval", "excess_matched_interval"):
                    row[f"{field}_low"], row[f"{field}_high"] = map(float, getattr(each, field)[index])
                rows.append(row)
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return ``format`` and the fields as JSON values, without the bootstrap replicates."""
        entries = [dataclasses.replace(each, replicates=None) for each in self.statistics]
        state = dataclasses.asdict(dataclasses.replace(self, statistics=entries))
        for each in state["statistics"]:
            del each["replicates"]
        return {"format": FORMAT, **plain(state)}

    @classmethod
    def from_json(cls, text: str | Path) -> ProbeStatistics:
        """Read the output of :meth:`to_json`.

        Args:
            text: the JSON text, or the path of a file.

        Raises:
            AttnExtError: the file cannot be read, or has another format.
        """
        if isinstance(text, Path):
            try:
                text = text.read_text(encoding="utf-8")
            except OSError as error:
                raise AttnExtError(f"cannot read {text}: {error.strerror}") from error
        try:
            state = json.loads(text)
            if state.pop("format", None) != FORMAT:
                raise KeyError("format")
            state["statistics"] = [Statistic(**_arrays(each)) for each in state["statistics"]]
            state["distances"] = _arrays(state["distances"])
            return cls(**state)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise AttnExtError(f"these are no statistics of a probe, format {FORMAT} ({error})") from error


def _arrays(entry: dict[str, Any]) -> dict[str, Any]:
    fields = ("values", "chance", "chance_matched", "interval", "excess_interval", "excess_matched_interval")
    return {n: np.array(v, dtype=np.float64) if n in fields else v for n, v in entry.items()}
