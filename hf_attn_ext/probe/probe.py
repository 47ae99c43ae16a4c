"""``ContextSimilarityProbe``: compare every head's outputs while a model runs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.integration.base_models.evaluation import evaluating
from hf_attn_ext.integration.base_models.readable_layers import config_special_ids, layer_count
from hf_attn_ext.integration.capture.capture import capture
from hf_attn_ext.integration.capture.head_outputs import HeadOutputs
from hf_attn_ext.integration.capture.passes import ForwardPass
from hf_attn_ext.probe.corpus.annotate import shuffled
from hf_attn_ext.probe.counting.similarity import similarity_matrices
from hf_attn_ext.probe.counting.sums import equal_draws, ratio
from hf_attn_ext.probe.counting.texts import DISTANCE_BINS
from hf_attn_ext.probe.report.browser import browse
from hf_attn_ext.probe.report.notes import notes
from hf_attn_ext.probe.report.report import write_report
from hf_attn_ext.probe.streaming.feeding import annotated_batches, read
from hf_attn_ext.probe.streaming.kept import NO_PASS, KeptMatrices
from hf_attn_ext.probe.streaming.seen_model import SeenModel
from hf_attn_ext.probe.streaming.stream import Settings, Stream, fed
from hf_attn_ext.probe.streaming.summarise import rows_left_out, summarise

from .options import (
    CONTROLS,
    KEEPS,
    check_tokenizer,
    choose_heads,
    choose_layers,
    percents_of,
    readable_layers,
    share,
    special_ids,
    token_ids,
    tokens_of,
    whole,
    words,
)
from .results import ProbeStatistics


class ContextSimilarityProbe:
    """Context similarity of every head during ordinary forward passes (2512.21956; the statistics are ours).

    A context manager. Inside it, the outputs of every chosen head, before the output projection, are compared by dot
    product, on every attention backend. The model's own outputs do not change. Probes can be nested. A pass is seen by
    the probes that its thread has entered on the model, and in a thread that has entered none by all of the model's
    probes.

    Args:
        model: a Transformers model that uses the attention interface, converted or not, or a module that holds one.
        tokenizer: its fast tokenizer, for :meth:`feed`, and in other passes for special tokens and separators.
        layers: numbers from 0, or patterns of module names (``"*.layer.3.*"``); None is all.
        heads: numbers from 0; None is all.
        keep: ``"statistics"``, streaming, in constant memory; ``"matrices"``, every matrix.
        percents: which pairs are high: the top percentages of each matrix.
        sample: the share of texts used for the controls and the attention map, chosen by a hash of the text.
        controls: other similarities on the sample: ``"cosine"`` of the outputs, ``"attention"`` for ``A A^T``.
        separators: the tokens of the separator focus.
        bootstrap: replicates of the bootstrap over texts or documents.
        seed: of the bootstrap, the null model and the sample.
        projections: for a model outside the attention interface, of Transformers or your own: name patterns of its
            output projections, such as ``"*.attention.output.dense"``. The heads are then the input of a projection,
            (batch, tokens, heads * size), split head by head; a model that interleaves its heads is read wrongly, and
            this cannot be detected. Tokens and padding are the model's arguments ``input_ids`` and ``attention_mask``.
            There are no queries and keys, and therefore no statistics of the attention map. A layer has the number of
            its block, from its name. A first pass of your own must not have as many texts as tokens: the two axes
            could not be told apart.
        num_heads: of those projections, where the model's configuration does not say.

    Raises:
        AttnExtError: a model that cannot be captured, a layer or head index out of range, or an unknown word in
            ``keep``; in a pass, a continued cache (a Cache, or tensors under a usual name; a cache object of your own
            without a length is not noticed), or a mask (batch, tokens) with values other than 0 and 1.

    Example:
        >>> with ContextSimilarityProbe(model, tokenizer) as probe:  # doctest: +SKIP
        ...     probe.feed(texts, batch_size=16)
        >>> probe.statistics().get("within_sentence", percent=1).values  # doctest: +SKIP
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        layers: Sequence[int | str] | int | str | None = None,
        heads: Sequence[int] | int | None = None,
        keep: Sequence[str] | str = ("statistics",),
        *,
        percents: Sequence[float] = (1, 2, 5),
        sample: float = 1 / 16,
        controls: Sequence[str] = CONTROLS,
        separators: Sequence[str] = (".", ","),
        bootstrap: int = 64,
        seed: int = 0,
        projections: Sequence[str] | str | None = None,
        num_heads: int | None = None,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self._named = {"projections": projections, "num_heads": num_heads}
        readable = readable_layers(model, projections, num_heads)
        self.layers = choose_layers(readable, layers)
        self._part = len(self.layers) < layer_count(model, readable)
        self.heads = choose_heads(self.layers, heads)
        self.keep = words(keep, KEEPS, "keep")
        projected = self.layers[0].projection  # there are no queries and keys
        settings = Settings(
            layers=tuple(layer.index for layer in self.layers),
            heads=tuple(self.heads),
            percents=percents_of(percents),
            replicates=whole(bootstrap, 2, "bootstrap"),
            sample=share(sample),
            controls=tuple(one for one in words(controls, CONTROLS, "controls") if one != "attention" or not projected),
            separators=tokens_of(separators),
            seed=whole(seed, 0, "seed"),
            projected=projected,
        )
        check_tokenizer(tokenizer)
        special = special_ids(tokenizer) if tokenizer is not None else config_special_ids(model)
        self._unknown = [one for one in settings.separators if tokenizer is None or not token_ids(tokenizer, [one])]
        none = len(self._unknown) == len(settings.separators)
        known = None if none else token_ids(tokenizer, settings.separators)
        self._stream = Stream(settings, special, known)
        self._kept = KeptMatrices([layer.index for layer in self.layers], "matrices" in self.keep)
        self._open: contextlib.ExitStack | None = None
        self._seen = SeenModel(model, self.layers)
        self._gathered = False

    def __enter__(self) -> ContextSimilarityProbe:
        if self._open is not None:
            raise AttnExtError("this probe is entered already; make another one to nest them")
        if self.tokenizer is None and "statistics" in self.keep:
            warnings.warn(
                "a probe without a tokenizer knows special tokens by the model's configuration only "
                f"(ids {self._stream.special_ids.tolist()}), and no separators and sentences; give tokenizer=",
                stacklevel=2,
            )
        if "statistics" in self.keep:
            self._seen.check_unchanged()
        with contextlib.ExitStack() as stack:
            stack.enter_context(capture(self.model, self._on_layer, self._on_end, self.layers))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._open is None:
            raise AttnExtError("this probe is not entered, or was left already; use it as: with probe: ...")
        opened, self._open = self._open, None
        opened.close()

    def feed(
        self,
        texts: Iterable[str],
        batch_size: int = 8,
        *,
        truncation: bool = False,
        max_length: int | None = None,
        language: str = "en",
        boundaries: Sequence[str] | None = None,
        shuffle_tokens: bool = False,
        pad_to: int | None = None,
        documents: Iterable[str] | None = None,
    ) -> int:
        """Run texts through the model in evaluation mode, with known words and sentences of their tokens.

        Padding is on the right, whatever the tokenizer's side: a text gives the same statistics in every batch.

        Args:
            texts: any iterable of strings, read lazily.
            batch_size: texts per pass.
            truncation: cut texts to ``max_length`` tokens; otherwise a longer one is an error.
            max_length: the longest text in tokens, special ones included; None is the model's limit.
            language: of the sentence splitter: a code, such as ``"de"``.
            boundaries: strings that end a segment, such as ``[".", ">>"]`` of reactions; segments then replace
                sentences.
            shuffle_tokens: a control: each text's tokens in a random order, which depends on them and the probe's
                seed; special tokens and sentence borders keep their positions.
            pad_to: the least length of a batch in tokens. With one length for all batches, float32 rounds alike in
                batches of any size, as far as the machine's math library does so; otherwise nearly equal pairs may
                change their order.
            documents: the name of each text's document, where several texts are parts of one. The bootstrap then draws
                documents; drawing their parts alone would give intervals that are too narrow, as parts are alike.

        Returns:
            The number of texts.

        Raises:
            AttnExtError: outside the block; no tokenizer or no texts; a blank text or one that is too long; an unknown
                language; another number of documents than texts; or other ``shuffle_tokens``, ``boundaries`` or use of
                ``documents`` than before.
        """
        if self._open is None:
            raise AttnExtError("feed works inside the block only: with ContextSimilarityProbe(...) as probe")
        if self.tokenizer is None:
            raise AttnExtError("feed needs the model's tokenizer: ContextSimilarityProbe(model, tokenizer)")
        batches = annotated_batches(
            [self.model],
            self.tokenizer,
            texts,
            batch_size,
            truncation=truncation,
            max_length=max_length,
            language=language,
            boundaries=boundaries,
            pad_to=pad_to,
            documents=documents,
            layers=self.layers,
        )
        segments = "sentences" if boundaries is None else tuple(boundaries)
        resampled = "texts" if documents is None else "documents"
        self._stream.feeding(shuffle_tokens=bool(shuffle_tokens), segments=segments, resampled=resampled)
        count = 0
        try:
            with evaluating(self.model):
                for annotation in batches:
                    if shuffle_tokens:
                        annotation = shuffled(annotation, self._stream.settings.seed)
                    fed(annotation)
                    read(self.model, annotation.input_ids, annotation.attention_mask, self.layers)
                    count += len(annotation.input_ids)
        finally:
            fed(None)
        return count

    def matrices(self, layer: int) -> Tensor:
        """Return the context similarity matrices (B, H, N, N) of one layer, diagonal zero, on the CPU.

        They hold the dot products of all tokens, special tokens and padding included; see :meth:`tokens`. The texts of
        several passes follow one another; shorter passes are padded with zeros.

        Args:
            layer: the number of the layer.

        Raises:
            AttnExtError: the probe keeps no matrices, does not look at this layer, or has seen no pass.
        """
        return self._kept.matrices(layer)

    def tokens(self) -> tuple[Tensor | None, Tensor]:
        """Return token ids (B, N), or None if a pass had embeddings, and the padding mask, True = real token.

        Texts are in the order of :meth:`matrices`; shorter passes are padded with 0 and False.

        Raises:
            AttnExtError: the probe keeps no matrices, or has seen no pass.
        """
        return self._kept.tokens()

    def statistics(self) -> ProbeStatistics:
        """Return all statistics so far, each with chance levels and an interval.

        Raises:
            AttnExtError: the probe keeps no statistics, or has seen no text of two tokens or more.
        """
        stream = self._stream
        settings = dataclasses.asdict(stream.settings)
        if "statistics" not in self.keep:
            raise AttnExtError("this probe keeps no statistics; leave keep as it is, or add 'statistics' to it")
        with stream.lock:
            counts = dict(stream.counts)
            if not counts["texts"]:
                if counts["skipped"]:
                    raise AttnExtError(
                        f"the probe has seen {counts['skipped']} texts, each of one token or none that is not special: "
                        "there are no pairs; give longer texts"
                    )
                raise AttnExtError(NO_PASS)
            layers = settings["layers"]
            results = summarise(stream.sums, stream.kinds, stream.settings)
            distances = np.stack([stream.plain[f"distances/{layer}"][0] for layer in layers], 1)  # (P, L, H, bins)
            by_chance = stream.plain["distances/chance"][0]
            left_out = rows_left_out(stream.plain, layers)
            draws = equal_draws(stream.sums["all/texts"][:, 0])
        return ProbeStatistics(
            results,
            {
                "bins": list(DISTANCE_BINS),
                "percents": list(settings["percents"]),
                "values": ratio(distances, distances.sum(-1, keepdims=True)),
                "chance": ratio(by_chance, by_chance.sum(-1, keepdims=True)),
            },
            counts,
            settings,
            notes(
                counts,
                settings,
                self.layers,
                tokenizer=self.tokenizer is not None,
                part=self._part,
                left_out=left_out,
                draws=draws,
                unknown=self._unknown,
                dtype=next(self.model.parameters()).dtype,
            ),
        )

    def report(self, path: str | os.PathLike, texts: Sequence[str] = (), **options: Any) -> Path:
        """Write one self-contained HTML file: findings in words, maps, curves, and a head browser for ``texts``.

        Args:
            path: path of the HTML file.
            texts: a few texts for the browser, which are run once more.
            options: ``title`` and ``provenance`` of :func:`.write_report`.

        Returns:
            The path.

        Raises:
            AttnExtError: as :meth:`statistics`; or texts inside the block, where their passes would be counted.
        """
        statistics = self.statistics()
        if texts and self._open is not None:
            raise AttnExtError("report(texts=...) runs the model, which would count: call it after the block")
        layers, percent = [layer.index for layer in self.layers], statistics.settings["percents"][0]
        wanted = {"percent": percent, "seed": self._stream.settings.seed, **self._named}
        browsed = browse(self.model, self.tokenizer, texts, layers, self.heads, **wanted) if texts else []
        return write_report(statistics, path, browser=browsed, **options)

    def state_dict(self) -> dict[str, Any]:
        """Return the streaming sums as numbers and numpy arrays, for a file or another process."""
        return {**self._stream.state_dict(), "model": self._seen.fingerprint()}

    @property
    def nbytes(self) -> int:
        """Memory of the streaming sums in bytes."""
        return self._stream.sums.nbytes + self._stream.plain.nbytes

    def merge(self, other: ContextSimilarityProbe | Mapping[str, Any]) -> None:
        """Add the statistics of another probe, or its :meth:`state_dict`.

        Raises:
            AttnExtError: not a probe or a state; other settings (layers, heads, percentages, sample, seed,
                projections); other statistics; other ways of feeding; a model with other weights or another
                configuration; or texts that are already counted here.
        """
        state = other.state_dict() if isinstance(other, ContextSimilarityProbe) else other
        if not (isinstance(state, Mapping) and isinstance(state.get("model"), Mapping)):
            raise AttnExtError(f"expected a probe or its state_dict(), got {short(state)}")
        self._seen.check_same(state["model"])
        self._stream.merge(state)
        self._seen.hold()

    def gather(self) -> None:
        """Merge the statistics of all processes of an accelerate run in each of them; one process keeps its own.

        All processes must have the same model. This is not checked, as some ways of distributing a model give each
        process another part of it.

        Raises:
            AttnExtError: this probe has gathered before, or several processes merged the same state.
        """
        from accelerate.utils import gather_object

        if self._gathered:
            raise AttnExtError(
                "gather was called before: every process has the statistics of all already, and they would be counted "
                "once a process; gather once, at the end, or make another probe"
            )
        mine = self._stream.state_dict()
        states = gather_object([mine])
        try:
            self._stream.load(states)
        except AttnExtError:
            self._stream.load([mine])
            raise
        self._gathered = len(states) > 1

    def _on_layer(self, call: HeadOutputs) -> None:
        call.check_single(self)
        if "statistics" in self.keep:
            self._stream.on_layer(call)
        if "matrices" in self.keep:
            output = call.output if len(self.heads) == call.output.shape[1] else call.output[:, self.heads]
            kept = call.forward.notes.setdefault(self, {})
            kept[call.layer.index] = similarity_matrices(output).cpu()

    def _on_end(self, forward: ForwardPass) -> None:
        self._stream.on_end(forward)
        kept = forward.notes.pop(self, None)
        if kept is not None:
            self._kept.add(forward, kept)
