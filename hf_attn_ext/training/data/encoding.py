"""From texts to batches of token ids: tokenisation, packing, padding, and the order in which examples come.

The order is a pure function of the seed and the step, so a resumed run sees exactly the batches it would have
seen, without replaying what came before; and a step sees the same examples however they are spread over
processes and accumulation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.linear.transfer import MODEL_INPUTS

from .labels import LANGUAGE
from .loading import Split

_DOCUMENTS = 256  # texts tokenised at once


class EncodedSplit:
    """Token ids of many sequences, stored flat.

    Item ``i`` is a dict with ``input_ids``, maybe ``token_type_ids`` and ``label``, and ``index`` (= ``i``).
    """

    def __init__(
        self, ids: Sequence[Sequence[int] | np.ndarray], type_ids: list[list[int]] | None, labels: np.ndarray | None
    ):
        self.lengths = np.array([len(row) for row in ids], dtype=np.int64)
        self.ends = np.cumsum(self.lengths)
        self.ids = np.concatenate([np.asarray(row, dtype=np.int32) for row in ids])
        self.type_ids = None
        if type_ids is not None:
            self.type_ids = np.concatenate([np.asarray(row, dtype=np.int8) for row in type_ids])
        self.labels = labels

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> dict[str, Any]:
        span = slice(self.ends[i] - self.lengths[i], self.ends[i])
        item = {"index": int(i), "input_ids": self.ids[span]}
        if self.type_ids is not None:
            item["token_type_ids"] = self.type_ids[span]
        if self.labels is not None:
            item["label"] = self.labels[i]
        return item


def encode(split: Split, tokenizer, max_length: int) -> EncodedSplit:
    """Tokenise texts (and pairs), cut to ``max_length`` tokens, special tokens included."""
    pairs = (split.pairs,) if split.pairs is not None else ()
    out = tokenizer(split.texts, *pairs, truncation=True, max_length=max_length)
    return EncodedSplit(out["input_ids"], out.get("token_type_ids"), split.labels)


def pack(split: Split, tokenizer, length: int, where: str = "data") -> EncodedSplit:
    """Join the texts of each group and cut them to sequences of exactly ``length`` tokens; the rest is left out.

    Raises:
        AttnExtError: no group has enough text for one sequence.
    """
    prefix, suffix = special_tokens(tokenizer)
    room = length - len(prefix) - len(suffix)
    texts = split.texts
    if split.pairs is not None:
        texts = [text for both in zip(split.texts, split.pairs, strict=True) for text in both]
    repeat = 1 if split.pairs is None else 2
    groups = [0] * len(texts) if split.groups is None else [g for g in split.groups for _ in range(repeat)]
    streams: dict[Any, list[int]] = {}
    for group, ids in zip(groups, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True):
        streams.setdefault(group, []).extend(ids)
    rows = [
        prefix + stream[start : start + room] + suffix
        for stream in streams.values()
        for start in range(0, len(stream) - room + 1, room)
    ]
    if not rows:
        raise AttnExtError(f"packing: no text in {where!r} is long enough for one sequence of {length} tokens")
    return EncodedSplit(rows, None, None)


def encode_documents(
    split: Split, tokenizer, length: int, packing: bool = True, borders: bool = True, where: str = "data"
) -> EncodedSplit:
    """Turn texts into sequences for language modelling.

    Each text gets the tokenizer's token for the beginning before it and the one for the end behind it; a tokenizer that
    has one token for both (GPT-2) gets it once, before. Without ``borders`` they are left out.

    With ``packing`` all texts are joined, in order, and cut into sequences of ``length`` tokens. A sequence begins with
    the last token of the one before, so that every token but the very first is predicted exactly once; the last
    sequence may be short. A sequence may hold the end of one text and the beginning of the next, and attention reaches
    over that border, as is usual in training GPTs. Without ``packing`` each text is one sequence, cut to ``length``.

    Raises:
        AttnExtError: the tokenizer has no token for the beginning and none for the end, or no text holds a token.
    """
    begin, end = _document_borders(tokenizer) if borders else ([], [])
    documents = []
    for start in range(0, len(split), _DOCUMENTS):
        texts = split.texts[start : start + _DOCUMENTS]
        for ids in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]:
            if ids:
                documents.append(np.asarray([*begin, *ids, *end], dtype=np.int32))
    if packing and documents:
        documents = [np.concatenate(documents)]
    documents = [ids for ids in documents if len(ids) > 1]
    if not documents:
        raise AttnExtError(f"field '{where}': no text has a token to predict")
    if not packing:
        return EncodedSplit([ids[:length] for ids in documents], None, None)
    stream = documents[0]
    return EncodedSplit([stream[i : i + length] for i in range(0, len(stream) - 1, length - 1)], None, None)


def _document_borders(tokenizer) -> tuple[list[int], list[int]]:
    """Return the ids that go before and behind a document."""
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    if begin is None and end is None:
        raise AttnExtError(
            "this tokenizer has neither a bos nor an eos token to part texts with: set tokenizer.eos_token and save it"
        )
    begin = end if begin is None else begin
    return [begin], ([] if end is None or end == begin else [end])


def special_tokens(tokenizer) -> tuple[list[int], list[int]]:
    """Return the ids that the tokenizer puts before and after a single text."""
    for sample in ("a", "the", "0"):
        bare = tokenizer(sample, add_special_tokens=False)["input_ids"]
        full = tokenizer(sample)["input_ids"]
        for start in range(len(full) - len(bare) + 1):
            if bare and full[start : start + len(bare)] == bare:
                return full[:start], full[start + len(bare) :]
    raise AttnExtError("packing: this tokenizer does not show where it puts its special tokens")


class Collator:
    """Pad a list of items to the longest and stack them into tensors.

    Args:
        tokenizer: says the padding token and side.
        task: ``language_modeling`` pads on the right, with any token where the tokenizer has none for it.

    Returns a dict: ``input_ids``, ``attention_mask``, maybe ``token_type_ids`` (int64, (B, N)), ``index`` (int64, (B,))
    and ``labels`` (int64 or float32, (B,)).
    """

    def __init__(self, tokenizer, task: str | None = None):
        self.pad_id = tokenizer.pad_token_id
        if self.pad_id is None and task != LANGUAGE:
            raise AttnExtError("this tokenizer has no padding token: set tokenizer.pad_token and save it again")
        # Language modelling pads on the right, so that positions count from the first token; what fills up is not seen,
        # so any token will do.
        self.pad_id = 0 if self.pad_id is None else self.pad_id
        self.left = tokenizer.padding_side == "left" and task != LANGUAGE

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the padded batch of ``items``."""
        width = max(len(item["input_ids"]) for item in items)
        ids = torch.full((len(items), width), self.pad_id, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        batch = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in items[0]:
            batch["token_type_ids"] = torch.zeros_like(ids)
        for row, item in enumerate(items):
            size = len(item["input_ids"])
            span = slice(width - size, width) if self.left else slice(0, size)
            ids[row, span] = torch.from_numpy(item["input_ids"].astype(np.int64))
            mask[row, span] = 1
            if "token_type_ids" in batch:
                batch["token_type_ids"][row, span] = torch.from_numpy(item["token_type_ids"].astype(np.int64))
        batch["index"] = torch.tensor([item["index"] for item in items])
        if "label" in items[0]:
            batch["labels"] = torch.as_tensor(np.array([item["label"] for item in items]))
        return batch


def model_inputs(batch: dict[str, torch.Tensor], causal: bool = False) -> dict[str, Any]:
    """Return what the model's ``forward`` takes of a batch; a causal model gets ``use_cache=False``."""
    inputs = {name: batch[name] for name in MODEL_INPUTS if name in batch}
    return {**inputs, "use_cache": False} if causal else inputs


class TrainingOrder:
    """The order of training examples: shuffled epochs, one after the other, divided into steps.

    Args:
        lengths: number of tokens of each example.
        batch_size: sequences of one forward pass of one process.
        accumulate: forward passes per step.
        processes: number of processes.
        seed: determines the order.
        group_by_length: sort by length inside windows of 32 steps, so that a step's sequences need little padding.

    Example:
        >>> order = TrainingOrder(np.ones(10, dtype=int), batch_size=2, accumulate=1, processes=2, seed=0)
        >>> [len(order.rank_batches(0, rank)[0]) for rank in (0, 1)]
        [2, 2]
    """

    WINDOW = 32

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int,
        accumulate: int = 1,
        processes: int = 1,
        seed: int = 0,
        group_by_length: bool = False,
    ):
        self.lengths, self.seed, self.group_by_length = lengths, seed, group_by_length
        self.batch_size, self.accumulate, self.processes = batch_size, accumulate, processes
        self.per_step = batch_size * accumulate * processes
        self._epoch: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))
        self._window: tuple[int, list[np.ndarray]] = (-1, [])

    def step(self, step: int) -> np.ndarray:
        """Return the indices of all examples of one step, over all processes."""
        if not self.group_by_length:
            return self._stream(step * self.per_step, self.per_step)
        window, place = divmod(step, self.WINDOW)
        if self._window[0] != window:
            rows = self._stream(window * self.WINDOW * self.per_step, self.WINDOW * self.per_step)
            rows = rows[np.argsort(self.lengths[rows], kind="stable")].reshape(self.WINDOW, self.per_step)
            shuffled = np.random.default_rng([self.seed, 4, window]).permutation(self.WINDOW)
            self._window = (window, [rows[i] for i in shuffled])
        return self._window[1][place]

    def rank_batches(self, step: int, rank: int) -> list[np.ndarray]:
        """Return the ``accumulate`` batches of one process in one step."""
        rows = self.step(step).reshape(self.accumulate, self.processes, self.batch_size)
        return list(rows[:, rank])

    def _stream(self, start: int, count: int) -> np.ndarray:
        size, parts = len(self.lengths), []
        while count:
            epoch, offset = divmod(start, size)
            if self._epoch[0] != epoch:
                self._epoch = (epoch, np.random.default_rng([self.seed, 3, epoch]).permutation(size))
            part = self._epoch[1][offset : offset + count]
            parts.append(part)
            start, count = start + len(part), count - len(part)
        return np.concatenate(parts)


def evaluation_batches(
    data: EncodedSplit,
    collate: Collator,
    batch_size: int,
    rank: int = 0,
    processes: int = 1,
    even: bool = True,
    rows: np.ndarray | None = None,
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield this process's share of all examples (or of ``rows``), longest first.

    With ``even``, every process gets the same number of batches (a wrapped model's collective calls need that):
    examples that fill up the last round come twice, with their true ``index``. Without, each comes once.
    """
    rows = np.arange(len(data)) if rows is None else rows
    order = rows[np.argsort(-data.lengths[rows], kind="stable")]
    rounds = -(-len(order) // (batch_size * processes))
    order = np.resize(order, rounds * batch_size * processes) if even and processes > 1 else order
    for start in range(rank * batch_size, len(order), batch_size * processes):
        yield collate([data[int(row)] for row in order[start : start + batch_size]])
