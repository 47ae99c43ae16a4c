"""What ``segmentation.py`` compares with: sentence embeddings, TextTiling from nltk, equal lengths, chance."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch


@torch.no_grad()
def embeddings(model: torch.nn.Module, tokenizer: Any, sentences: list[str], limit: int) -> np.ndarray:
    """(n, width): mean of the last outputs of each sentence's tokens, as MiniLM is meant to be used, of length 1."""
    found = np.empty((len(sentences), model.config.hidden_size))
    order = np.argsort([len(sentence) for sentence in sentences], kind="stable")
    for at in range(0, len(order), 8):
        batch = order[at : at + 8]
        inputs = tokenizer(
            [sentences[i] for i in batch], padding=True, truncation=True, max_length=limit, return_tensors="pt"
        )
        states = model(**inputs).last_hidden_state.double()
        weights = inputs["attention_mask"][..., None].double()
        found[batch] = ((states * weights).sum(1) / weights.sum(1)).numpy()
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def cosines(vectors: np.ndarray, centred: bool) -> np.ndarray:
    """(n, n) cosines, of the vectors as they are or relative to the document's mean."""
    vectors = vectors - vectors.mean(0) if centred else vectors
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return vectors @ vectors.T


def text_tiling(sentences: list[str], width: int, blocks: int) -> dict[str, list]:
    """What nltk's TextTiling finds in a text with a paragraph break after every sentence.

    Args:
        width, blocks: its ``w`` and ``k``: words of a pseudo-sentence, and pseudo-sentences of a block.

    Returns:
        ``gaps``: [sentence that begins nearest to the gap, depth] of each gap between pseudo-sentences; ``HC`` and
        ``LC``: the sentences at the boundaries that its two policies choose. All empty where the text is too short for
        it. Positions are counted here, in nltk's own words: its way back into the text is a pseudo-sentence off.
    """
    from nltk.tokenize.texttiling import TextTilingTokenizer
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    text = "\n\n".join(sentences)
    tiling = TextTilingTokenizer(w=width, k=blocks, stopwords=set(ENGLISH_STOP_WORDS), demo_mode=True)
    try:
        _, _, depth, high = tiling.tokenize(text)
    except ValueError:
        return {"gaps": [], "HC": [], "LC": []}
    kept = [place for place, char in enumerate(text.lower()) if re.match(r"[a-z\-' \n\t]", char)]
    plain = "".join(text.lower()[place] for place in kept)
    words = [kept[match.start()] for match in re.finditer(r"\w+", plain)]
    starts = np.cumsum([0, *(len(sentence) + 2 for sentence in sentences[:-1])])
    inner = starts[1:]

    def nearest(gap: int) -> int:
        return int(np.abs(inner - words[min((gap + 1) * width, len(words) - 1)]).argmin()) + 1

    tiling.cutoff_policy = "LC"
    low = tiling._identify_boundaries(depth)
    found: dict[str, list] = {"gaps": [[nearest(gap), float(value)] for gap, value in enumerate(depth)]}
    for name, flags in (("HC", high), ("LC", low)):
        found[name] = sorted({nearest(gap) for gap, flag in enumerate(flags) if flag})
    return found


def deepest(gaps: list[list], wanted: int, apart: int) -> list[int]:
    """The sentences of the deepest gaps, so many, no two nearer than ``apart`` sentences while there are others."""
    order = [place for place, _ in sorted(gaps, key=lambda gap: -gap[1])]
    chosen: list[int] = []
    for least in (apart, 1):
        for place in order:
            if len(chosen) < wanted and all(abs(place - other) >= least for other in chosen):
                chosen.append(place)
    return sorted(chosen)


def equal_lengths(sentences: int, segments: int) -> list[int]:
    """Borders of segments that are as equally long as can be."""
    return sorted({round(sentences * part / segments) for part in range(1, segments)} - {0, sentences})


def by_chance(sentences: int, segments: int, generator: np.random.Generator) -> list[int]:
    """So many segments, their borders anywhere."""
    count = min(segments, sentences) - 1
    return sorted((generator.choice(sentences - 1, count, replace=False) + 1).tolist())
