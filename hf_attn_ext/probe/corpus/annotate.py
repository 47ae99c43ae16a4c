"""Annotate tokens with their word and sentence, by character offsets."""

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
    """A batch of tokenised texts with the word and sentence of each token.

    Attributes:
        input_ids: int64 (B, N), padded on the right.
        attention_mask: int64 (B, N), 1 = real token.
        special: bool (B, N), True = special token added by the tokenizer, or padding.
        sentences, words: int64 (B, N), the index of the sentence and of the word in the text, -1 for special tokens
            and padding.
        documents: the name of each text's document; None if every text is a document.
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
    """Split a text into sentences.

    The splitter is the package sentencex. It has rules for many languages and uses the English rules for all others.
    Blank lines belong to the sentence before them.

    Args:
        text: any text.
        language: a language code such as ``"en"``.

    Returns:
        The first character of each sentence, ascending from 0; empty for a blank text.

    Raises:
        AttnExtError: ``language`` is not a language code.

    Example:
        >>> sentence_starts("Dr. Smith sleeps. So do I.")
        [0, 18]
    """
    check_language(language)
    spans = sentencex.get_sentence_boundaries(language, text)
    starts = [span["start_index"] for span in spans if span["text"].strip()]
    return [0, *starts[1:]] if starts else []


def segment_starts(text: str, boundaries: Sequence[str]) -> list[int]:
    """Return the first character of each segment, ascending from 0; a segment ends after any of ``boundaries``.

    Longer boundaries are matched before shorter ones. White space and further boundaries directly after a boundary
    belong to the same segment.

    Example:
        >>> segment_starts("CCO.CC(=O)O>>CCOC(C)=O", [".", ">>"])
        [0, 4, 13]
    """
    ends = "|".join(re.escape(boundary) for boundary in sorted(boundaries, key=len, reverse=True))
    starts = [match.end() for match in re.finditer(rf"(?:(?:{ends})\s*)+", text)]
    return [0, *(start for start in starts if start < len(text))] if text.strip() else []


def check_boundaries(boundaries: Sequence[str] | None) -> None:
    """Check that ``boundaries`` is None, or a list of strings that are not blank."""
    if boundaries is None:
        return
    listed = None if isinstance(boundaries, str) else list(boundaries)
    if not listed or not all(isinstance(boundary, str) and boundary.strip() for boundary in listed):
        raise AttnExtError(f"boundaries must be a list of strings such as ['.', '>>'], got {short(boundaries)}")


def check_language(language: str) -> None:
    """Check that ``language`` looks like a language code; the splitter would take any other word for English."""
    if not isinstance(language, str) or not re.fullmatch("[a-z]{2,3}(-[a-z0-9]{2,9})*", language):
        raise AttnExtError(f"language must be a lower-case code such as 'en' or 'de', got {short(language)}")


def check_characters(text: str, where: str) -> None:
    """Check that a text has no half of a surrogate pair, which tokenizers cannot read; ``where`` names its source."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = text[error.start]
        message = f"{where}: character {error.start} is {half!r}, half of a surrogate pair; correct the text"
        raise AttnExtError(message) from None


def padding_id(tokenizer: Any) -> int:
    """Return the token id for padding; any id if the tokenizer has none, because padding is masked."""
    return next((token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token is not None), 0)


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
    """Tokenise ``texts`` and find the sentence and word of each token.

    Args:
        texts: a list of texts.
        tokenizer: a fast tokenizer.
        truncation, language, boundaries, pad_to: see :meth:`.ContextSimilarityProbe.feed`.
        max_length: the maximum length of a text in tokens, special tokens included; None for no limit.
        first: the number of the first text, for messages.

    Returns:
        The annotated batch.

    Raises:
        AttnExtError: a text is not a string, is blank or is longer than ``max_length``; the tokenizer is not fast.

    Example:
        >>> annotate(["One. Two."], tokenizer).sentences  # doctest: +SKIP
        array([[-1,  0,  0,  1,  1, -1]])
    """
    if not getattr(tokenizer, "is_fast", False):
        raise AttnExtError(
            f"the tokenizer must return character offsets, got {type(tokenizer).__name__}; use a fast tokenizer "
            "(AutoTokenizer.from_pretrained)"
        )
    for number, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise AttnExtError(f"text {number} must be a string, got {short(text)}")
        check_characters(text, f"text {number}")
        if not text.strip():
            raise AttnExtError(f"text {number} is blank; leave it out")
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
        row = next(row for row, length in enumerate(lengths) if length > max_length)
        raise AttnExtError(
            f"text {first + row} has {lengths[row]} tokens, the model takes {max_length}; shorten it, or set "
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
        # a token is assigned by its last character: in some vocabularies it begins with the space before it
        starts = segment_starts(texts[row], boundaries) if boundaries else sentence_starts(texts[row], language)
        of_sentence = np.searchsorted(starts, ends - 1, side="right") - 1
        sentences[row, :length] = np.where(special[row, :length], -1, np.maximum(of_sentence, 0))
        of_word = [-1 if word is None else word for word in encoded.word_ids(row)]
        words[row, :length] = np.where(special[row, :length], -1, of_word)
    return Annotation(torch.from_numpy(ids), torch.from_numpy(mask), special, sentences, words)


def shuffled(annotation: Annotation, seed: int) -> Annotation:
    """Return a batch with each text's tokens and words shuffled, as a control.

    Special tokens, padding and sentence indices keep their positions. The order depends on the text's token ids and
    ``seed``, not on the batch.
    """
    ids, words = annotation.input_ids.clone(), annotation.words.copy()
    for row, special in enumerate(annotation.special):
        positions = np.flatnonzero(~special)
        tokens = ids[row, positions].numpy()
        key = hashlib.blake2b(tokens.astype("<i8").tobytes(), digest_size=16, key=f"shuffle {seed}".encode()).digest()
        order = np.random.default_rng(int.from_bytes(key, "little")).permutation(len(positions))
        ids[row, positions], words[row, positions] = torch.from_numpy(tokens[order]), words[row, positions][order]
    return dataclasses.replace(annotation, input_ids=ids, words=words)
