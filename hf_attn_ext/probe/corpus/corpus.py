"""Read texts from files, cut long ones and draw a sample; every text keeps its file and line."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import numpy as np

from hf_attn_ext._util.tables import read_columns
from hf_attn_ext.errors import AttnExtError

from .annotate import check_characters
from .cutting import Cut, by_tokens, whole_texts


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Texts in the order of their files; the result of :func:`read_corpus`.

    Attributes:
        texts: the texts, none of them blank.
        sources: the file and line of each text, such as ``"speeches.jsonl, line 3"``.
        documents: a hash of the document that each text is part of.
        files: the names of the files.
        blank: the number of documents that are blank, or too short for a text.
        drawn_from: the number of texts before ``limit``.
        left: with a cut to tokens, the number of tokens at the ends of documents that are in no text.
    """

    texts: list[str]
    sources: list[str]
    documents: list[str]
    files: list[str]
    blank: int
    drawn_from: int
    left: int = 0

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def document_count(self) -> int:
        """The number of different documents that the texts are part of."""
        return len(set(self.documents))

    def digest(self) -> str:
        """Return a hash of all texts and their documents, in order."""
        digest = hashlib.blake2b(digest_size=16)
        for text, document in zip(self.texts, self.documents, strict=True):
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0" + document.encode() + b"\0")
        return digest.hexdigest()


def read_corpus(
    files: list[str], column: str = "text", cut: Cut = whole_texts, limit: int | None = None, seed: int = 0
) -> Corpus:
    """Read files of texts.

    Args:
        files: .txt files (one text per line), .json, .jsonl, .csv, .tsv or .parquet.
        column: the field with the text, in formats that have fields.
        cut: how to cut each document: :func:`.cutting.whole_texts`, :func:`.cutting.by_words` or
            :class:`.cutting.by_tokens`.
        limit: draw this many texts at random and keep their order; None for all.
        seed: the seed of the draw.

    Returns:
        The texts with their sources and documents.

    Raises:
        AttnExtError: a file is missing, has no text, has another format or is damaged; the message names the line.

    Example:
        >>> corpus = read_corpus(["speeches.jsonl"], limit=1000)  # doctest: +SKIP
        >>> len(corpus), corpus.sources[0]  # doctest: +SKIP
        (1000, 'speeches.jsonl, line 3')
    """
    texts: list[str] = []
    sources: list[str] = []
    documents: list[str] = []
    blank = left = 0
    for name in files:
        before, has_text = len(texts), False
        field = "text" if Path(name).suffix.lower() == ".txt" else column
        for line, (text,) in read_columns(name, [field]):
            if not isinstance(text, str):
                what = "is empty" if text is None else f"is {text!r}, not text"
                raise AttnExtError(f"{name}, {line}: {column!r} {what}")
            check_characters(text, f"{name}, {line}")
            pieces, rest = cut.with_rest(text) if isinstance(cut, by_tokens) else (cut(text), 0)
            left += rest
            blank += not pieces
            has_text |= bool(text.strip())
            documents += [_digest(text)] * len(pieces)
            for number, piece in enumerate(pieces):
                texts.append(piece)
                sources.append(f"{name}, {line}" + (f", part {number + 1}" if len(pieces) > 1 else ""))
        if len(texts) == before:
            what = "texts that are all too short" if has_text else "no text"
            raise AttnExtError(f"file {name!r} holds {what}; name another file")
    total = len(texts)
    if limit is not None and limit < total:
        kept = np.sort(np.random.default_rng([seed, 2]).permutation(total)[:limit])
        texts, sources, documents = ([values[i] for i in kept] for values in (texts, sources, documents))
    return Corpus(texts, sources, documents, list(files), blank, total, left)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
