"""The settings of a probe's run: one dataclass, filled from a YAML file and the command line."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_attn_ext._util.settings import load_settings
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe.corpus.annotate import check_boundaries

from .options import CONTROLS, whole

# Fields that may differ when a run is resumed: the statistics do not depend on them.
FREE = ("out", "save_every", "browse", "progress", "processes")
# Fields that the command line has an option for; the others are set with --set.
OPTIONS = (
    *("batch_size", "max_length", "layers", "heads", "percents", "sample", "seed", "limit", "words", "tokens"),
    *("browse", "projections", "num_heads"),
)


@dataclasses.dataclass
class ProbeConfig:
    """The settings of :func:`hf_attn_ext.probe.run_probe`.

    Attributes:
        model: the folder of a base or converted model, or a hub id.
        texts: files of texts: .txt (one text per line), .jsonl, .csv, .tsv, .parquet.
        out: the folder for all results.
        text_column: the field or column of the texts, in formats that have one.
        words: cut documents into texts of so many words; None leaves them whole.
        tokens: cut documents into texts of exactly so many tokens, special ones included; the rest of a document is
            left out. It sets ``max_length`` and ``truncation``.
        limit: draw so many of the texts at random, by the seed; None takes all.
        batch_size, max_length, truncation, language, boundaries, shuffle_tokens, pad_to: see
            :meth:`.ContextSimilarityProbe.feed`.
        layers, heads, projections, num_heads, sample, controls, separators: see :class:`.ContextSimilarityProbe`.
        percents: which pairs are high: the top percentages of each text's pairs; findings speak of the first.
        bootstrap: replicates of the bootstrap over documents; a document is one entry of a file.
        seed: of the draw of texts, the bootstrap, the null model and the sample.
        save_every: number of texts between saved states, for resuming.
        browse: number of texts in the report's head browser.
        processes: the expected number of processes; a run with another number stops.
        progress: show a progress bar on a terminal.
    """

    model: str
    texts: list[str]
    out: str
    text_column: str = "text"
    words: int | None = None
    tokens: int | None = None
    limit: int | None = None
    batch_size: int = 8
    max_length: int | None = None
    truncation: bool = False
    language: str = "en"
    boundaries: list[str] | None = None
    shuffle_tokens: bool = False
    pad_to: int | None = None
    layers: list[int | str] | None = None
    heads: list[int] | None = None
    projections: list[str] | None = None
    num_heads: int | None = None
    percents: list[float] = dataclasses.field(default_factory=lambda: [1.0, 2.0, 5.0])
    sample: float = 1 / 16
    controls: list[str] = dataclasses.field(default_factory=lambda: list(CONTROLS))
    separators: list[str] = dataclasses.field(default_factory=lambda: [".", ","])
    bootstrap: int = 64
    seed: int = 0
    save_every: int = 512
    browse: int = 3
    processes: int | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        if not self.texts:
            raise AttnExtError("texts names no file; give --texts, or the field 'texts'")
        for name in ("words", "tokens", "num_heads", "pad_to", "limit", "batch_size", "save_every", "processes"):
            value = getattr(self, name)
            if value is not None:
                whole(value, 1, name)
        if self.max_length is not None:
            whole(self.max_length, 4, "max_length")
        whole(self.browse, 0, "browse")
        if self.tokens is not None:
            if self.words is not None:
                raise AttnExtError(f"documents are cut by words ({self.words}) or by tokens ({self.tokens}), not both")
            if self.max_length not in (None, self.tokens):
                raise AttnExtError(f"max_length is {self.max_length}, tokens {self.tokens}; leave max_length out")
            self.max_length, self.truncation = self.tokens, True
        check_boundaries(self.boundaries)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return dataclasses.asdict(self)

    def command(self) -> str:
        """Return the command line of this run, with the settings that differ from the defaults."""
        words = ["hf-attn-ext", "probe", self.model]
        for file in self.texts:
            words += ["--texts", file]
        words += ["--out", self.out]
        defaults = ProbeConfig(self.model, self.texts, self.out)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value == getattr(defaults, field.name) or field.name in ("progress", "processes"):
                continue
            if field.name == "truncation":
                words.append("--truncation")
            elif field.name in OPTIONS:
                each = value if isinstance(value, list) else [value]
                shown = (f"{one:.12g}" if isinstance(one, float) else str(one) for one in each)
                words += ["--" + field.name.replace("_", "-"), ",".join(shown)]
            else:
                words += ["--set", f"{field.name}={json.dumps(value)}"]
        return shlex.join(words)


def load_probe_config(
    path: str | Path | None = None, overrides: Sequence[str] = (), given: Mapping[str, Any] | None = None
) -> ProbeConfig:
    """Read a YAML file into a :class:`ProbeConfig`.

    Args:
        path: the file; None starts from nothing.
        overrides: settings such as ``"seed=1"`` that win over the file.
        given: fields that win over both.

    Raises:
        AttnExtError: no such file, an unknown field (the nearest is suggested), a missing or an ill-typed one.

    Example:
        >>> load_probe_config(given={"model": "m", "texts": ["a.txt"], "out": "o"}).batch_size
        8
    """
    if path is None:
        named = {setting.partition("=")[0].strip() for setting in overrides} | set(given or {})
        for name, option in {"model": "MODEL", "texts": "--texts FILE", "out": "--out DIR"}.items():
            if name not in named:
                raise AttnExtError(f"{option} is missing; give it, or a YAML file with --config")
    return load_settings(ProbeConfig, path, overrides, given, "probe")
