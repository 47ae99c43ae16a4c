"""Cut documents into texts: of so many words, or of exactly so many tokens of a model."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from hf_attn_ext.errors import AttnExtError

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


class by_tokens:
    """Texts that are exactly so many tokens, special ones included, once they are truncated to as many.

    A text begins with a word and ends with the word in which its last token lies; where that is cut by truncation, the
    next text begins with it. A word that is longer than a text (in writing without spaces a whole paragraph may be one)
    is split between tokens. Every token of a document is read by some text, but for what is left at its end, too
    short for another text.

    Args:
        tokens: at least one more than the special tokens of a text.
        tokenizer: a fast tokenizer of transformers.

    Raises:
        AttnExtError: a slow tokenizer, or ``tokens`` that leave no room.

    Example:
        >>> by_tokens(4, tokenizer)("one two three four five")  # [CLS] and [SEP] are two of the four  # doctest: +SKIP
        ['one two', 'three four']
    """

    def __init__(self, tokens: int, tokenizer: Any) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise AttnExtError(
                f"texts are cut to tokens by character offsets, which {type(tokenizer).__name__} does not give; use a "
                "fast tokenizer, or cut by words"
            )
        self.tokenizer, self.room = tokenizer, tokens - tokenizer.num_special_tokens_to_add()
        if self.room < 1:
            raise AttnExtError(f"tokens is {tokens}, of which the tokenizer's special ones take all; give more")

    def __call__(self, text: str) -> list[str]:
        return self.with_rest(text)[0]

    def with_rest(self, text: str) -> tuple[list[str], int]:
        """The texts of one document, and how many tokens at its end none of them reads."""
        words = np.array([match.span() for match in _WORD.finditer(text)], dtype=np.int64).reshape(-1, 2)
        ends = self._offsets(text)[:, 1]  # of the document's tokens; a text's own are others at its beginning
        found: list[str] = []
        start = unread = int(words[0, 0]) if len(words) else len(text)
        while start < len(text):
            end = self._long_enough(text, start, words, ends)
            if end is None:
                break
            end, unread, following = self._cut(text, start, end, words)
            found.append(text[start:end])
            start = max(following, start + 1)
        return found, len(self._offsets(text[unread:]))

    def _offsets(self, text: str) -> np.ndarray:
        """(n, 2): where each token begins and ends."""
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)

    def _long_enough(self, text: str, start: int, words: np.ndarray, ends: np.ndarray) -> int | None:
        """Where a text from ``start`` may end: with a word, or inside a far longer one; None if too little is left."""
        token = int(np.searchsorted(ends, start, side="right")) + self.room - 1
        while True:
            near, far = (int(ends[at]) if at < len(ends) else len(text) for at in (token, token + 4 * self.room))
            word = min(int(np.searchsorted(words[:, 1], near)), len(words) - 1)
            end = min(int(words[word, 1]), max(far, near))
            if len(self._offsets(text[start:end])) >= self.room:
                return end
            if end >= words[-1, 1]:
                return None
            # at a text's beginning a word may be fewer tokens than in the document
            token = int(np.searchsorted(ends, end, side="right"))

    def _cut(self, text: str, start: int, end: int, words: np.ndarray) -> tuple[int, int, int]:
        """Where the text from ``start`` ends, the first character that it does not read, and where the next begins."""
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
        # the text lies in one word, which is longer than it
        for token in range(self.room - 1, len(own)):
            end = start + int(own[token, 1])
            inside = self._offsets(text[start:end])
            if len(inside) >= self.room:
                unread = self._unread(text, start, end, inside)
                break
        return end, unread, unread

    def _unread(self, text: str, start: int, end: int, own: np.ndarray) -> int:
        """The first character, not a space, that is not wholly in the tokens that are read."""
        place = end if len(own) <= self.room else start + int(own[self.room, 0])
        while place < len(text) and text[place].isspace():
            place += 1
        return place
