"""Cut documents into texts: of so many words, or of exactly so many tokens of a model."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import AttnExtError

# A document's texts, in order; none where it is blank or too short.
Cut = Callable[[str], list[str]]

_WORD = re.compile(r"\S+")


def whole_texts(text: str) -> list[str]:
    """The document as it is."""
    return [text] if text.strip() else []


def by_words(words: int) -> Cut:
    """Texts of so many words, by white space; the last one may be shorter.

    Example:
        >>> by_words(2)("One two.  Three.")
        ['One two.', 'Three.']
    """

    def cut(text: str) -> list[str]:
        spans = [match.span() for match in _WORD.finditer(text)]
        parts = (spans[start : start + words] for start in range(0, len(spans), words))
        return [text[part[0][0] : part[-1][1]] for part in parts]

    return cut


def by_tokens(tokens: int, tokenizer: Any) -> Cut:
    """Texts that are exactly so many tokens, special ones included, once they are truncated to as many.

    A text begins with a word and ends with the word in which its last token lies; where that is cut by truncation, the
    next text begins with it. What is left at a document's end, too short for another text, is left out.

    Args:
        tokens: at least one more than the special tokens of a text.
        tokenizer: a fast tokenizer of transformers.

    Raises:
        AttnExtError: a slow tokenizer, or ``tokens`` that leave no room.

    Example:
        >>> by_tokens(4, tokenizer)("one two three four five")  # [CLS] and [SEP] are two of the four  # doctest: +SKIP
        ['one two', 'three four']
    """
    if not getattr(tokenizer, "is_fast", False):
        raise AttnExtError(
            f"texts are cut to tokens by character offsets, which {type(tokenizer).__name__} does not give; use a fast "
            "tokenizer, or cut by words"
        )
    room = tokens - tokenizer.num_special_tokens_to_add()
    if room < 1:
        raise AttnExtError(f"tokens is {tokens}, of which the tokenizer's special ones take all; give more")

    def long_enough(text: str) -> bool:
        return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) >= room

    def cut(text: str) -> list[str]:
        spans = np.array([match.span() for match in _WORD.finditer(text)], dtype=np.int64).reshape(-1, 2)
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ends = np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)[:, 1]
        # by its last character: in some vocabularies a token begins with the space before it
        owner = np.maximum(np.searchsorted(spans[:, 0], ends - 1, side="right") - 1, 0)
        first_of = np.searchsorted(owner, np.arange(len(spans) + 1))  # a word's first token
        found, word = [], 0
        while word < len(spans) and first_of[word] + room <= len(owner):
            last = int(owner[first_of[word] + room - 1])
            # a word at a text's beginning may be fewer tokens there than in the document
            while last < len(spans) and not long_enough(text[spans[word, 0] : spans[last, 1]]):
                last += 1
            if last == len(spans):
                break
            found.append(text[spans[word, 0] : spans[last, 1]])
            whole = first_of[last + 1] <= first_of[word] + room
            word = last + 1 if whole else max(last, word + 1)
        return found

    return cut
