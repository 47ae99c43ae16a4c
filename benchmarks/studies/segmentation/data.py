"""Documents whose borders are known: pieces of different addresses, or of reviews of different films, in a row.

As in Choi (2000), a document has ten pieces of 3 to 11 sentences, each from another source; here each from another
president, or about another film. Joined by a space: no line break gives a border away.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from benchmarks.studies.common.texts import by_film, read_addresses, read_reviews
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe import sentence_starts

SHORTEST, LONGEST = 3, 11
TRIES = 1000
REFUSED = 5


@dataclasses.dataclass(frozen=True)
class Document:
    """A text, where its sentences begin, the numbers of those that begin a piece, and who each piece is by."""

    name: str
    text: str
    starts: list[int]
    borders: list[int]
    sources: list[str]

    @property
    def sentences(self) -> list[str]:
        """Return the sentences of the document."""
        edges = [*self.starts, len(self.text)]
        return [self.text[first:end].strip() for first, end in itertools.pairwise(edges)]


def addresses(split: str) -> list[tuple[str, list[str]]]:
    """Return (president, sentences) of each address of a split by years."""
    sources = []
    for row in read_addresses(split):
        text = " ".join(row["text"].split())
        edges = [*sentence_starts(text), len(text)]
        parts = [text[first:end].strip() for first, end in itertools.pairwise(edges)]
        sources.append((row["president"], parts))
    return sources


def reviews(split: str) -> list[tuple[str, list[str]]]:
    """Return (film, sentences of its reviews) of each film of a split."""
    return list(by_film(read_reviews(split)).items())


def documents(name: str, sources: list[tuple[str, list[str]]], count: int, pieces: int, seed: int) -> list[Document]:
    """``count`` documents of ``pieces`` pieces, each of consecutive sentences of another author or film.

    A piece that changes how the splitter sees the sentences around its ends is drawn again.

    Raises:
        AttnExtError: there are not enough authors whose texts are long enough.
    """
    sources = [(author, sentences) for author, sentences in sources if len(sentences) >= LONGEST]
    authors = {author for author, _ in sources}
    if len(authors) < pieces:
        raise AttnExtError(f"{len(authors)} sources of {name} are too few for documents of {pieces} pieces; give fewer")
    generator = np.random.default_rng([seed, pieces])
    made = []
    for number in range(count):
        text, marks, used, refused = "", [], [], 0
        for _ in range(TRIES):
            if len(used) == pieces:
                break
            author, sentences = sources[generator.integers(len(sources))]
            length = int(generator.integers(SHORTEST, LONGEST + 1))
            first = int(generator.integers(len(sentences) - length + 1))
            if author in used:
                continue
            longer = " ".join(([text] if text else []) + sentences[first : first + length])
            mark = len(text) + 1 if text else 0
            if {*marks, mark} <= set(sentence_starts(longer)):
                text, marks, used, refused = longer, [*marks, mark], [*used, author], 0
            elif refused < REFUSED:
                refused += 1
            else:  # an open quotation mark swallows all that comes behind it
                text, marks, used, refused = "", [], [], 0
        else:
            raise AttnExtError(f"no document of {pieces} pieces of {name} came out in {TRIES} draws; give fewer pieces")
        starts = sentence_starts(text)
        borders = [starts.index(mark) for mark in marks[1:]]
        made.append(Document(f"{name}-{seed}-{number}", text, starts, borders, used))
    return made
