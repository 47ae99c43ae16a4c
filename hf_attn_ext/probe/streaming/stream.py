"""Streamed statistics of forward passes: prepare a pass's texts, count layer by layer, commit when the pass is over."""

from __future__ import annotations

import dataclasses
import os
import threading
import uuid
from typing import Any

import numpy as np
import torch

from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.integration.capture.attention_maps import attention_map, check_followed, visible_keys
from hf_attn_ext.integration.capture.head_outputs import HeadOutputs
from hf_attn_ext.integration.capture.passes import ForwardPass
from hf_attn_ext.probe.corpus.annotate import Annotation
from hf_attn_ext.probe.counting.high_pairs import high_pairs, in_parts
from hf_attn_ext.probe.counting.sums import Sums
from hf_attn_ext.probe.counting.texts import Text, make_text

from .measures import attention_sums, chance_sums, pair_sums

COUNTS = ("texts", "skipped", "tokens", "special", "padding", "pairs", "sentences", "words", "sampled")

# The annotation of the batch that each thread feeds; any probe that sees the batch may use it.
_FED = threading.local()


@dataclasses.dataclass(frozen=True)
class Settings:
    """What statistics depend on; two probes merge only where these are equal.

    Attributes:
        projected: heads are read at output projections.
        shuffle_tokens, segments: of the texts that were fed, None before; segments are ``"sentences"``, or the strings
            that end one.
        resampled: likewise, what the bootstrap draws: ``"texts"``, or the ``"documents"`` that they are of.
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
    """A pass that is not over: its texts, and what its layers have given."""

    texts: list[Text]
    counts: dict[str, int]
    parts: dict[str, list[np.ndarray]] = dataclasses.field(default_factory=dict)


class Stream:
    """The statistics of one probe."""

    def __init__(self, settings: Settings, special_ids: set[int], separator_ids: set[int] | None) -> None:
        self.settings = settings
        self.special_ids = np.array(sorted(special_ids), dtype=np.int64)
        self.separator_ids = None if separator_ids is None else np.array(sorted(separator_ids), dtype=np.int64)
        self.lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        self.origins: set[str] = set()  # of what was counted: no text must be counted twice
        self._own = uuid.uuid4().hex
        self.sums = Sums(self.settings.replicates)
        self.plain = Sums(0)
        self.counts = dict.fromkeys(COUNTS, 0)

    def feeding(self, **how: Any) -> None:
        """Note how texts are fed, by the names of :class:`Settings`.

        Raises:
            AttnExtError: others were fed before, of another kind.
        """
        for name, value in how.items():
            before = getattr(self.settings, name)
            if before not in (None, value):
                raise AttnExtError(
                    f"this probe was fed texts with {name} {before!r} before, now with {value!r}; make another probe"
                )
        self.settings = dataclasses.replace(self.settings, **how)

    def on_layer(self, call: HeadOutputs) -> None:
        """Count one layer's heads."""
        one: _Pass = call.forward.notes.get(self)
        if one is None:
            one = call.forward.notes[self] = self._begin(call.forward)
        heads = list(self.settings.heads)
        if self.settings.sample and call.query is not None:
            check_followed(call)  # before the first text of the sample comes
        for text in one.texts:
            outputs = _rows(call.output[text.row], text.places)
            outputs = outputs if len(heads) == outputs.shape[0] else outputs[heads]
            chosen = high_pairs(outputs, text)
            self._count(one, "dot", call.layer.index, chosen, text)
            if text.in_sample(self.settings.sample):
                self._sampled(one, call, text, outputs, chosen)

    def on_end(self, forward: ForwardPass) -> None:
        """Commit a pass that has come to its end; one that was broken off leaves no trace."""
        one: _Pass | None = forward.notes.pop(self, None)
        if one is None:
            return
        groups = {
            "all": np.array([text.weights for text in one.texts]),
            "sample": np.array([t.weights for t in one.texts if t.in_sample(self.settings.sample)]),
        }
        with self.lock:
            self.origins.add(f"{self._own} {os.getpid()}")  # a forked process counts its own
            for name, parts in one.parts.items():
                group, name = name.split(":")
                if group == "plain":
                    self.plain.add(name, np.ones((len(parts), 1)), np.stack(parts))
                else:
                    self.sums.add(name, groups[group], np.stack(parts))
            for name, count in one.counts.items():
                self.counts[name] += count

    def _count(self, one: _Pass, measure: str, layer: int, chosen: np.ndarray, text: Text) -> None:
        sums, unique, histogram = pair_sums(chosen, text)
        group = "all" if measure == "dot" else "sample"
        one.parts.setdefault(f"{group}:{measure}/pairs/{layer}", []).append(sums)
        one.parts.setdefault(f"{group}:{measure}/unique/{layer}", []).append(unique)
        kept = one.parts.setdefault(f"plain:{measure}/distances/{layer}", [np.zeros_like(histogram)])
        kept[0] += histogram
        if measure == "dot":
            one.parts.setdefault(f"all:dot/spread/{layer}", []).append(histogram.sum(0))

    def _sampled(self, one: _Pass, call: HeadOutputs, text: Text, outputs: torch.Tensor, chosen: np.ndarray) -> None:
        """The controls, and what is read from the attention map."""
        layer, controls = call.layer.index, self.settings.controls
        if "cosine" in controls:
            wide = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
            self._count(one, "cosine", layer, high_pairs(torch.nn.functional.normalize(wide, dim=-1), text), text)
        if call.query is None:  # read at the output projection
            return
        parts = []
        seen = visible_keys(call, text.row).cpu().numpy()
        for group in in_parts(len(self.settings.heads), call.output.shape[2]):
            attention = attention_map(call, text.row, list(self.settings.heads[group])).cpu()
            pairs = high_pairs(_rows(attention, text.places), text) if "attention" in controls else None
            its = seen if len(seen) == 1 else seen[list(self.settings.heads[group])]
            parts.append((*attention_sums(attention.numpy(), text, its, chosen[group]), pairs))
        focus, region, pairs = zip(*parts, strict=True)
        one.parts.setdefault(f"sample:focus/{layer}", []).append(np.concatenate(focus))
        one.parts.setdefault(f"sample:region/{layer}", []).append(np.concatenate(region))
        if "attention" in controls:
            self._count(one, "attention", layer, np.concatenate(pairs), text)

    def _begin(self, forward: ForwardPass) -> _Pass:
        if forward.input_ids is None:
            raise AttnExtError(
                "the pass was given embeddings: without token ids no statistics; give input_ids, or keep=('matrices',)"
            )
        ids, mask = forward.input_ids.cpu().numpy(), forward.attention_mask.cpu().numpy()
        known = _annotation_of(forward)
        special = np.isin(ids, self.special_ids) if known is None else known.special | np.isin(ids, self.special_ids)
        separates = None if self.separator_ids is None else np.isin(ids, self.separator_ids)
        counts = dict.fromkeys(COUNTS, 0)
        texts = []
        for row in range(len(ids)):
            places = np.flatnonzero(mask[row] & ~special[row])
            counts["tokens"] += len(places)
            counts["special"] += int((mask[row] & special[row]).sum())
            counts["padding"] += int((~mask[row]).sum())
            if known is not None:
                counts["sentences"] += len(np.unique(known.sentences[row, places]))
                counts["words"] += len(np.unique(known.words[row, places]))
            if len(places) < 2:
                counts["skipped"] += 1
                continue
            text = make_text(
                row,
                ids[row, places],
                places,
                np.flatnonzero(mask[row] & special[row]),
                None if known is None else known.sentences[row, places],
                None if separates is None else separates[row, places],
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
            self._levels(one, text)
        return one

    def _levels(self, one: _Pass, text: Text) -> None:
        """What does not depend on the model: the chance levels, and what ratios are taken over."""
        chance, distances, drawn = chance_sums(text)
        has_sentences = float(text.sentences is not None)
        below = np.array([[count, count * has_sentences, 1.0, has_sentences] for count in text.counts])
        chance_with = chance.copy()
        if not has_sentences:
            chance_with[:, [0, 2]] = 0.0
        groups = ["all", "sample"] if text.in_sample(self.settings.sample) else ["all"]
        for group in groups:
            one.parts.setdefault(f"{group}:{group}/chance", []).append(chance_with)
            one.parts.setdefault(f"{group}:{group}/below", []).append(below)
        one.parts.setdefault("all:all/spread", []).append(np.stack([distances, drawn]))
        if "sample" in groups:
            known = float(text.separators is not None)
            rows = np.array([text.length, text.length * known, known])
            one.parts.setdefault("sample:sample/rows", []).append(rows)

    def state_dict(self) -> dict[str, Any]:
        with self.lock:
            return {
                "settings": dataclasses.asdict(self.settings),
                "counts": dict(self.counts),
                "origins": sorted(self.origins),
                "sums": self.sums.state_dict(),
                "plain": self.plain.state_dict(),
            }

    def load(self, states: list[dict[str, Any]]) -> None:
        """Put the sum of states in place of what was counted."""
        with self.lock:
            self.clear()
        for state in states:
            self.merge(state)

    def merge(self, state: dict[str, Any]) -> None:
        """Add the statistics of another stream, such as another process's.

        Raises:
            AttnExtError: taken under other settings, or counted here already.
        """
        try:
            theirs = {name: _tuple(state["settings"][name]) for name in dataclasses.asdict(self.settings)}
            sums, plain = Sums(self.settings.replicates), Sums(0)
            sums.load_state_dict(state["sums"])
            plain.load_state_dict(state["plain"])
            counts = {name: int(state["counts"][name]) for name in COUNTS}
            origins = {str(one) for one in list(state["origins"])}
            if min(counts.values()) < 0 or isinstance(state["origins"], str) or (counts["texts"] and not origins):
                raise ValueError("its counts and origins do not belong together")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise AttnExtError(f"this is no state of a probe: {short(state)} ({short(error)})") from error
        fed_so = {}
        for name, value in dataclasses.asdict(self.settings).items():
            its = theirs[name]
            if name in _OF_TEXTS and None in (value, its):  # one of the two was fed nothing
                fed_so[name] = its if value is None else value
            elif its != value:
                raise AttnExtError(f"the states differ in {name}: {value!r} here, {its!r} there")
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
    """Say which batch this thread is feeding."""
    _FED.annotation = annotation


def _annotation_of(forward: ForwardPass) -> Annotation | None:
    known: Annotation | None = getattr(_FED, "annotation", None)
    if known is None or known.input_ids.shape != forward.input_ids.shape:
        return None
    return known if torch.equal(known.input_ids, forward.input_ids.cpu()) else None


def _rows(x: torch.Tensor, places: np.ndarray) -> torch.Tensor:
    """(H, n, d) at ``places``, as a view where they are neighbours."""
    first, last = int(places[0]), int(places[-1])
    return x[:, first : last + 1] if last - first + 1 == len(places) else x[:, torch.from_numpy(places).to(x.device)]


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, tuple)) else value
