"""Cut documents into texts of a given number of words, or of exactly a given number of tokens."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from hf_attn_ext.errors import AttnExtError

Cut = Callable[[str], list[str]]
"""A function that returns the texts of a document in order; none if it is blank or too short."""

_WORD = re.compile(r"\S+")


def whole_texts(text: str) -> list[str]:
    """Return the whole document as one text, or nothing if it is blank."""
    return [text] if text.strip() else []


def by_words(words: int) -> Cut:
    """Return a function that cuts documents into texts of ``words`` words; the last one may have fewer.

    Example:
        >>> by_words(2)("One two.  Three.")
        ['One two.', 'Three.']
    """

    def cut(text: str) -> list[str]:
        spans = [match.span() for match in _WORD.finditer(text)]
        parts = (spans[start : start + words] for start in range(0, len(spans), words))
        return [text[part[0][0] : part[-1][1]] for part in parts]

    return cut


class by_tokens:
    """Cut documents into texts that have exactly ``tokens`` tokens after truncation, special tokens included.

    A text begins with a word and ends with the word that contains its last token. If truncation cuts that word, the
    next text begins with it. A word longer than a text is split between tokens; without spaces, a whole paragraph may
    be one word. All tokens of a document are in some text, except those at its end that are too few for a text.
    """

    def __init__(self, tokens: int, tokenizer: Any) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise AttnExtError(
                f"the tokenizer must return character offsets, got {type(tokenizer).__name__}; use a fast tokenizer, "
                "or cut by words"
            )
        self.tokenizer, self.room = tokenizer, tokens - tokenizer.num_special_tokens_to_add()
        if self.room < 1:
            raise AttnExtError(
                f"tokens must be at least {tokens - self.room + 1} with this tokenizer's special tokens, got {tokens}"
            )

    def __call__(self, text: str) -> list[str]:
        """Return the texts of one document."""
        return self.with_rest(text)[0]

    def with_rest(self, text: str) -> tuple[list[str], int]:
        """Return the texts of one document, and the number of tokens at its end that are in no text."""
        words = np.array([match.span() for match in _WORD.finditer(text)], dtype=np.int64).reshape(-1, 2)
        ends = self._offsets(text)[:, 1]  # of the document; a text alone may have other tokens at its beginning
        texts: list[str] = []
        start = unread = int(words[0, 0]) if len(words) else len(text)
        while start < len(text):
            end = self._long_enough(text, start, words, ends)
            if end is None:
                break
            end, unread, following = self._cut(text, start, end, words)
            texts.append(text[start:end])
            start = max(following, start + 1)
        return texts, len(self._offsets(text[unread:]))

    def _offsets(self, text: str) -> np.ndarray:
        """Return the first character of each token and the first one after it, int64 (n, 2)."""
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)

    def _long_enough(self, text: str, start: int, words: np.ndarray, ends: np.ndarray) -> int | None:
        """Return where a text from ``start`` may end, after a word or inside a long one; None if too little is left."""
        token = int(np.searchsorted(ends, start, side="right")) + self.room - 1
        while True:
            near, far = (int(ends[i]) if i < len(ends) else len(text) for i in (token, token + 4 * self.room))
            word = min(int(np.searchsorted(words[:, 1], near)), len(words) - 1)
            end = min(int(words[word, 1]), max(far, near))
            if len(self._offsets(text[start:end])) >= self.room:
                return end
            if end >= words[-1, 1]:
                return None
            # a word may have fewer tokens at the beginning of a text than in the document
            token = int(np.searchsorted(ends, end, side="right"))

    def _cut(self, text: str, start: int, end: int, words: np.ndarray) -> tuple[int, int, int]:
        """Return the end of the text from ``start``, its first character without a token, and the next start."""
        own = self._offsets(text[start:end])
        last = int(np.searchsorted(words[:, 1], start + own[self.room - 1, 1]))  # the word of the last token read
        if words[last, 1] < end and len(shorter := self._offsets(text[start : words[last, 1]])) >= self.room:
            own, end = shorter, int(words[last, 1])
        unread = self._unread(text, start, end, own)
        word = int(np.searchsorted(words[:, 1], unread, side="right"))
        if word == len(words):
            return end, unread, len(text)
        if words[word, 0] > start:
            return end, unread, int(words[word, 0])
        # the text is part of one word
        for token in range(self.room - 1, len(own)):
            end = start + int(own[token, 1])
            inside = self._offsets(text[start:end])
            if len(inside) >= self.room:
                unread = self._unread(text, start, end, inside)
                break
        return end, unread, unread

    def _unread(self, text: str, start: int, end: int, own: np.ndarray) -> int:
        """Return the first character that is not a space and is not wholly in the tokens of the text."""
        position = end if len(own) <= self.room else start + int(own[self.room, 0])
        while position < len(text) and text[position].isspace():
            position += 1
        return position
