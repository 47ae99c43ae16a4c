"""Texts into tokens that know their word and sentence, by offsets."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import sentencex
import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError, short


@dataclasses.dataclass
class Annotation:
    """What is known of a batch of texts beside their token ids.

    Attributes:
        input_ids: int64 (B, N), padded on the right.
        attention_mask: int64 (B, N), 1 = real token.
        special: bool (B, N), tokens that the tokenizer added.
        sentences, words: int64 (B, N), the sentence's and the word's number in its text, or -1.
        documents: the name of each text's document; None where each text is its own.
    """

    input_ids: Tensor
    attention_mask: Tensor
    special: np.ndarray
    sentences: np.ndarray
    words: np.ndarray
    documents: Sequence[str] | None = None

    def positions(self, row: int, special_ids: Collection[int]) -> np.ndarray:
        """Return the positions of a text's tokens that are neither padding nor special.

        Args:
            row: the text's row in the batch.
            special_ids: ids that are special wherever they occur, in addition to the tokens that the tokenizer added.

        Returns:
            int64 (n,), ascending.
        """
        ids, real = self.input_ids[row].numpy(), self.attention_mask[row].numpy() > 0
        return np.flatnonzero(real & ~self.special[row] & ~np.isin(ids, list(special_ids)))


def sentence_starts(text: str, language: str = "en") -> list[int]:
    """Where the sentences of ``text`` begin; every character belongs to one.

    The splitter is the package sentencex, which has rules of its own for many languages and takes English ones for the
    others. Blank stretches (empty lines) belong to the sentence before them.

    Raises:
        AttnExtError: ``language`` is no code of a language.

    Example:
        >>> sentence_starts("Dr. Smith sleeps. So do I.")
        [0, 18]
    """
    check_language(language)
    spans = sentencex.get_sentence_boundaries(language, text)
    starts = [span["start_index"] for span in spans if span["text"].strip()]
    return [0, *starts[1:]] if starts else []


def segment_starts(text: str, boundaries: Sequence[str]) -> list[int]:
    """Where the segments of ``text`` begin: behind each of ``boundaries``, the longer before the shorter.

    White space and boundaries that follow at once belong to the segment before them.

    Example:
        >>> segment_starts("CCO.CC(=O)O>>CCOC(C)=O", [".", ">>"])
        [0, 4, 13]
    """
    ends = "|".join(re.escape(one) for one in sorted(boundaries, key=len, reverse=True))
    starts = [match.end() for match in re.finditer(rf"(?:(?:{ends})\s*)+", text)]
    return [0, *(start for start in starts if start < len(text))] if text.strip() else []


def check_boundaries(boundaries: Sequence[str] | None) -> None:
    """Raise unless these are strings that can end a segment, or None."""
    if boundaries is None:
        return
    listed = None if isinstance(boundaries, str) else list(boundaries)
    if not listed or not all(isinstance(one, str) and one.strip() for one in listed):
        raise AttnExtError(f"boundaries must be a list of strings such as ['.', '>>'], got {short(boundaries)}")


def check_language(language: str) -> None:
    """Raise unless it has the form of a code: the splitter takes any other word for English."""
    if not isinstance(language, str) or not re.fullmatch("[a-z]{2,3}(-[a-z0-9]{2,9})*", language):
        raise AttnExtError(f"language must be a code in small letters such as 'en' or 'de', got {short(language)}")


def check_characters(text: str, where: str) -> None:
    """Raise, naming ``where`` it comes from, if half of a surrogate pair stands in it, which no tokenizer reads."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = text[error.start]
        message = f"{where}: {half!r} at character {error.start} is half of a character; mend it"
        raise AttnExtError(message) from None


def padding_id(tokenizer: Any) -> int:
    """The id to pad with; any will do where the tokenizer has none, for padding is masked."""
    return next((each for each in (tokenizer.pad_token_id, tokenizer.eos_token_id) if each is not None), 0)


def annotate(
    texts: Sequence[str],
    tokenizer: Any,
    *,
    truncation: bool = False,
    max_length: int | None = None,
    language: str = "en",
    boundaries: Sequence[str] | None = None,
    pad_to: int | None = None,
    first: int = 0,
) -> Annotation:
    """Tokenise ``texts`` and find each token's sentence and word.

    Args:
        texts: a list of texts.
        tokenizer: a fast tokenizer of transformers.
        truncation: cut longer texts to ``max_length`` tokens.
        max_length: the longest text, special tokens included; None is any.
        language: for the sentence splitter.
        boundaries: strings that end a segment, see :func:`segment_starts`; None finds sentences.
        pad_to: the least length of the batch in tokens, filled up with padding.
        first: the number of the first text, for messages.

    Raises:
        AttnExtError: a text that is no string, a blank one, a text longer than ``max_length``, or a slow tokenizer.

    Example:
        >>> annotate(["One. Two."], tokenizer).sentences  # doctest: +SKIP
        array([[-1,  0,  0,  1,  1, -1]])
    """
    if not getattr(tokenizer, "is_fast", False):
        raise AttnExtError(
            f"sentences are found by character offsets, which {type(tokenizer).__name__} does not give; use a fast "
            "tokenizer (AutoTokenizer.from_pretrained)"
        )
    for number, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise AttnExtError(f"text {number} is a {type(text).__name__}, not a string")
        check_characters(text, f"text {number}")
        if not text.strip():
            raise AttnExtError(f"text {number} is blank: it has no sentence; leave it out")
    encoded = tokenizer(
        list(texts),
        truncation=truncation and max_length is not None,
        max_length=max_length if truncation else None,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        return_attention_mask=False,
        verbose=False,
    )
    lengths = [len(ids) for ids in encoded["input_ids"]]
    longest = max(lengths)
    if max_length is not None and longest > max_length:
        number = next(i for i, length in enumerate(lengths) if length > max_length)
        raise AttnExtError(
            f"text {first + number} has {lengths[number]} tokens, the model takes {max_length}; shorten it, or set "
            "truncation=True"
        )
    pad = padding_id(tokenizer)
    shape = (len(lengths), max(longest, pad_to or 0))
    ids, mask = np.full(shape, pad), np.zeros(shape, dtype=np.int64)
    special, sentences, words = np.ones(shape, dtype=bool), np.full(shape, -1), np.full(shape, -1)
    for row, length in enumerate(lengths):
        ids[row, :length], mask[row, :length] = encoded["input_ids"][row], 1
        special[row, :length] = np.array(encoded["special_tokens_mask"][row], dtype=bool)
        ends = np.array(encoded["offset_mapping"][row], dtype=np.int64).reshape(-1, 2)[:, 1]
        # by its last character: in some vocabularies a token begins with the space before it
        starts = segment_starts(texts[row], boundaries) if boundaries else sentence_starts(texts[row], language)
        found = np.searchsorted(starts, ends - 1, side="right") - 1
        sentences[row, :length] = np.where(special[row, :length], -1, np.maximum(found, 0))
        of_word = [-1 if word is None else word for word in encoded.word_ids(row)]
        words[row, :length] = np.where(special[row, :length], -1, of_word)
    return Annotation(torch.from_numpy(ids), torch.from_numpy(mask), special, sentences, words)


def shuffled(annotation: Annotation, seed: int) -> Annotation:
    """A control: each text's tokens in random order, while special tokens, padding and sentences stay where they were.

    The order hangs on the text's token ids and ``seed`` alone, never on the batch.
    """
    ids, words = annotation.input_ids.clone(), annotation.words.copy()
    for row, special in enumerate(annotation.special):
        places = np.flatnonzero(~special)
        its = ids[row, places].numpy()
        key = hashlib.blake2b(its.astype("<i8").tobytes(), digest_size=16, key=f"shuffle {seed}".encode()).digest()
        order = np.random.default_rng(int.from_bytes(key, "little")).permutation(len(places))
        ids[row, places], words[row, places] = torch.from_numpy(its[order]), words[row, places][order]
    return dataclasses.replace(annotation, input_ids=ids, words=words)
