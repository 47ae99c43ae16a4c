"""Streaming statistics of forward passes: prepare a pass's texts, count layer by layer, commit at its end."""

from __future__ import annotations

import dataclasses
import os
import threading
import uuid
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.integration.capture.attention_maps import attention_map, check_followed, visible_keys
from hf_attn_ext.integration.capture.head_outputs import HeadOutputs
from hf_attn_ext.integration.capture.passes import ForwardPass
from hf_attn_ext.probe.corpus.annotate import Annotation
from hf_attn_ext.probe.counting.attention_rows import AttentionRows
from hf_attn_ext.probe.counting.high_pairs import high_pairs, in_parts
from hf_attn_ext.probe.counting.pair_set import PairSet
from hf_attn_ext.probe.counting.sums import Sums
from hf_attn_ext.probe.counting.texts import Text, distance_shares, make_text
from hf_attn_ext.probe.statistics import list_statistics, statistic_named

COUNTS = ("texts", "skipped", "tokens", "special", "padding", "pairs", "sentences", "words", "sampled")

# The annotation of the batch that each thread feeds; every probe that sees the batch may use it.
_FED = threading.local()


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings that statistics depend on, as :class:`.ContextSimilarityProbe` takes them.

    Attributes:
        projected: whether heads are read at output projections.
        shuffle_tokens: whether the texts' tokens were shuffled; None before any text was fed.
        segments: ``"sentences"``, or the strings that end a segment; None before any text was fed.
        resampled: the unit that the bootstrap resamples, ``"texts"`` or ``"documents"``; None before any text was fed.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    percents: tuple[float, ...]
    replicates: int
    sample: float
    controls: tuple[str, ...]
    separators: tuple[str, ...]
    seed: int
    projected: bool = False
    shuffle_tokens: bool | None = None
    segments: str | tuple[str, ...] | None = None
    resampled: str | None = None


_OF_TEXTS = ("shuffle_tokens", "segments", "resampled")


@dataclasses.dataclass
class _Pass:
    """An unfinished pass: its texts, and what was counted so far.

    Attributes:
        parts: by group of texts and name, one array per text; sums with a bootstrap.
        plain: by name, sums over texts without a bootstrap.
    """

    texts: list[Text]
    counts: dict[str, int]
    parts: dict[tuple[str, str], list[np.ndarray]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    plain: dict[str, Any] = dataclasses.field(default_factory=lambda: defaultdict(float))


class Stream:
    """The sums behind the statistics of one probe; ``separator_ids`` is None where the separators are not known."""

    def __init__(self, settings: Settings, special_ids: set[int], separator_ids: set[int] | None) -> None:
        self.settings = settings
        self.kinds = tuple(statistic_named(name) for name in list_statistics())
        self.special_ids = np.array(sorted(special_ids), dtype=np.int64)
        self.separator_ids = None if separator_ids is None else np.array(sorted(separator_ids), dtype=np.int64)
        self.lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget what was counted."""
        self.origins: set[str] = set()  # where the sums come from: no text may be counted twice
        self._own = uuid.uuid4().hex
        self.sums = Sums(self.settings.replicates)
        self.plain = Sums(0)
        self.counts = dict.fromkeys(COUNTS, 0)

    def feeding(self, **how: Any) -> None:
        """Record how texts are fed, by the names of :class:`Settings`."""
        for name, value in how.items():
            before = getattr(self.settings, name)
            if before not in (None, value):
                raise AttnExtError(
                    f"this probe was fed texts with {name} {before!r} before, now with {value!r}; make another probe"
                )
        self.settings = dataclasses.replace(self.settings, **how)

    def on_layer(self, call: HeadOutputs) -> None:
        """Count one layer's heads."""
        if self not in call.forward.notes:
            call.forward.notes[self] = self._begin(call.forward)
        one: _Pass = call.forward.notes[self]
        heads = list(self.settings.heads)
        if self.settings.sample and call.query is not None:
            check_followed(call)  # before the first text of the sample
        for text in one.texts:
            outputs = _rows(call.output[text.row], text.positions)
            outputs = outputs if len(heads) == outputs.shape[0] else outputs[heads]
            high = PairSet.at(text, high_pairs(outputs, text))
            self._count_pairs(one, "dot", call.layer.index, high)
            if text.in_sample(self.settings.sample):
                self._sampled(one, call, outputs, high)

    def on_end(self, forward: ForwardPass) -> None:
        """Commit a pass at its end; a pass that was broken off changes nothing."""
        one: _Pass | None = forward.notes.pop(self, None)
        if one is None:
            return
        groups = {
            "all": np.array([text.weights for text in one.texts]),
            "sample": np.array([t.weights for t in one.texts if t.in_sample(self.settings.sample)]),
        }
        with self.lock:
            self.origins.add(f"{self._own} {os.getpid()}")  # a forked process counts its own
            for (group, name), parts in one.parts.items():
                self.sums.add(name, groups[group], np.stack(parts))
            for name, total in one.plain.items():
                self.plain.add(name, np.ones((1, 1)), np.asarray(total)[None])
            for name, count in one.counts.items():
                self.counts[name] += count
        for text in one.texts:
            text.forget()

    def _count_pairs(self, one: _Pass, measure: str, layer: int, high: PairSet) -> None:
        group = "all" if measure == "dot" else "sample"
        for kind in self.kinds:
            if not kind.needs_attention and kind.counted_as is None and (kind.controls or measure == "dot"):
                one.parts[group, f"{measure}/{kind.name}/{layer}"].append(kind.count(high))
        if measure == "dot":
            one.plain[f"distances/{layer}"] += high.by_distance

    def _sampled(self, one: _Pass, call: HeadOutputs, outputs: torch.Tensor, high: PairSet) -> None:
        """Count the controls and the attention map."""
        layer, controls, text = call.layer.index, self.settings.controls, high.text
        if "cosine" in controls:
            wide = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
            unit = torch.nn.functional.normalize(wide, dim=-1)
            self._count_pairs(one, "cosine", layer, PairSet.at(text, high_pairs(unit, text)))
        if call.query is None:  # read at the output projection
            return
        kinds = [kind for kind in self.kinds if kind.needs_attention and kind.counted_as is None]
        counts: dict[str, list[np.ndarray]] = {kind.name: [] for kind in kinds}
        pairs, counted = [], []
        visible = visible_keys(call, text.row).cpu().numpy()
        for group in in_parts(len(self.settings.heads), call.output.shape[2]):
            heads = list(self.settings.heads[group])
            attention = attention_map(call, text.row, heads).cpu()
            if "attention" in controls:
                pairs.append(high_pairs(_rows(attention, text.positions), text))
            seen = visible if len(visible) == 1 else visible[heads]
            rows = AttentionRows(text, attention.numpy(), seen, high.of_heads(group))
            counted.append(rows.counted.sum(1))
            for kind in kinds:
                counts[kind.name].append(kind.count(rows))
        for name, parts in counts.items():
            one.parts["sample", f"dot/{name}/{layer}"].append(np.concatenate(parts, axis=1))
        one.plain[f"rows/{layer}"] += np.concatenate(counted)
        if "attention" in controls:
            self._count_pairs(one, "attention", layer, PairSet.at(text, np.concatenate(pairs)))

    def _begin(self, forward: ForwardPass) -> _Pass:
        if forward.input_ids is None:
            raise AttnExtError(
                "the pass was given embeddings: without token ids no statistics; give input_ids, or keep=('matrices',)"
            )
        assert forward.attention_mask is not None  # a pass with token ids has one
        ids, mask = forward.input_ids.cpu().numpy(), forward.attention_mask.cpu().numpy()
        known = _annotation_of(forward)
        special = np.isin(ids, self.special_ids) if known is None else known.special | np.isin(ids, self.special_ids)
        separates = None if self.separator_ids is None else np.isin(ids, self.separator_ids)
        counts = dict.fromkeys(COUNTS, 0)
        texts = []
        for row in range(len(ids)):
            positions = np.flatnonzero(mask[row] & ~special[row])
            counts["tokens"] += len(positions)
            counts["special"] += int((mask[row] & special[row]).sum())
            counts["padding"] += int((~mask[row]).sum())
            if known is not None:
                counts["sentences"] += len(np.unique(known.sentences[row, positions]))
                counts["words"] += len(np.unique(known.words[row, positions]))
            if len(positions) < 2:
                counts["skipped"] += 1
                continue
            text = make_text(
                row,
                ids[row, positions],
                positions,
                np.flatnonzero(mask[row] & special[row]),
                None if known is None else known.sentences[row, positions],
                None if separates is None else separates[row, positions],
                self.settings.percents,
                self.settings.replicates,
                len(self.settings.heads),
                self.settings.seed,
                None if known is None or known.documents is None else known.documents[row],
            )
            counts["texts"] += 1
            counts["pairs"] += len(text.pairs[0])
            counts["sampled"] += text.in_sample(self.settings.sample)
            texts.append(text)
        one = _Pass(texts, counts)
        for text in texts:
            self._count_text(one, text)
        return one

    def _count_text(self, one: _Pass, text: Text) -> None:
        """Count what does not depend on the model: chance levels and denominators."""
        groups = ["all", "sample"] if text.in_sample(self.settings.sample) else ["all"]
        for kind in self.kinds:
            if kind.counted_as is None:
                counts = kind.count_text(text)
                for group in ["sample"] if kind.needs_attention else groups:
                    if group in groups:
                        one.parts[group, f"{group}/{kind.name}"].append(counts)
        one.parts["all", "all/texts"].append(np.ones(1))
        one.plain["distances/chance"] += np.outer(text.counts, distance_shares(text))
        if "sample" in groups:
            one.plain["rows"] += text.length

    def state_dict(self) -> dict[str, Any]:
        """Return settings, counts and sums, for a file or another process."""
        with self.lock:
            return {
                "settings": dataclasses.asdict(self.settings),
                "statistics": [kind.name for kind in self.kinds],
                "counts": dict(self.counts),
                "origins": sorted(self.origins),
                "sums": self.sums.state_dict(),
                "plain": self.plain.state_dict(),
            }

    def load(self, states: list[dict[str, Any]]) -> None:
        """Replace what was counted by the sum of ``states``."""
        with self.lock:
            self.clear()
        for state in states:
            self.merge(state)

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add the statistics of another stream, such as another process's."""
        try:
            theirs = {name: _tuple(state["settings"][name]) for name in dataclasses.asdict(self.settings)}
            sums, plain = Sums(self.settings.replicates), Sums(0)
            sums.load_state_dict(state["sums"])
            plain.load_state_dict(state["plain"])
            counts = {name: int(state["counts"][name]) for name in COUNTS}
            origins = {str(one) for one in list(state["origins"])}
            kinds = list(state["statistics"])
            if min(counts.values()) < 0 or isinstance(state["origins"], str) or (counts["texts"] and not origins):
                raise ValueError("its counts and origins do not belong together")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise AttnExtError(f"expected a probe or its state_dict(), got {short(state)} ({short(error)})") from error
        fed_so = {}
        for name, value in dataclasses.asdict(self.settings).items():
            other = theirs[name]
            if name in _OF_TEXTS and None in (value, other):  # one of the two was fed nothing
                fed_so[name] = other if value is None else value
            elif other != value:
                raise AttnExtError(f"the states differ in {name}: {value!r} here, {other!r} there")
        if kinds != [kind.name for kind in self.kinds]:
            different = sorted({kind.name for kind in self.kinds} ^ set(kinds))
            raise AttnExtError(
                f"the states differ in their statistics ({', '.join(different) or 'their order'}); import the modules "
                "that register statistics in every process"
            )
        if self.origins & origins:
            raise AttnExtError(
                "these statistics are counted here already: a probe's own, or a state that was merged before; their "
                "texts would count twice"
            )
        self.settings = dataclasses.replace(self.settings, **fed_so)
        with self.lock:
            self.origins |= origins
            self.sums.merge(sums)
            self.plain.merge(plain)
            for name, count in counts.items():
                self.counts[name] += count


def fed(annotation: Annotation | None) -> None:
    """Set the annotation of the batch that this thread feeds, None for no batch."""
    _FED.annotation = annotation


def _annotation_of(forward: ForwardPass) -> Annotation | None:
    known: Annotation | None = getattr(_FED, "annotation", None)
    ids = forward.input_ids
    if known is None or ids is None or known.input_ids.shape != ids.shape:
        return None
    return known if torch.equal(known.input_ids, ids.cpu()) else None


def _rows(x: torch.Tensor, positions: np.ndarray) -> torch.Tensor:
    """(H, n, d) at ``positions``, as a view where they are contiguous."""
    first, last = int(positions[0]), int(positions[-1])
    if last - first + 1 == len(positions):
        return x[:, first : last + 1]
    return x[:, torch.from_numpy(positions).to(x.device)]


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, tuple)) else value
