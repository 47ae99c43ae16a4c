"""Who takes part in ``segmentation.py``: what each is free to choose, and how it cuts a document."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hf_attn_ext.probe.applications.boundaries import highest, standardised
from hf_attn_ext.probe.applications.segmentation import cut
from hf_attn_ext.probe.applications.segmentation_scores import segmentation_scores

from . import rivals

PENALTIES = tuple(np.round(np.arange(0.2, 3.1, 0.2), 1).tolist())
DEVIATIONS = (-0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
SCATTER_WEIGHTS = (-0.4, -0.2, -0.1, -0.05, 0.05, 0.1, 0.2, 0.4)
DEPTH_WEIGHTS = (-0.6, -0.3, -0.1, 0.1, 0.3, 0.6)
BLOCKS = (2, 3, 4)
TILINGS = ((10, 10), (20, 6), (20, 10), (30, 6))  # nltk's default is the third

Option = dict[str, Any]


class Data:
    """A document, what was read of it, and the usual length of a piece."""

    def __init__(self, document: Any, features: dict[str, np.ndarray], tiling: Callable, usual: float) -> None:
        self.document, self.features, self.tiling, self.usual = document, features, tiling, usual
        self.count = len(document.starts)
        self._kept: dict[tuple, np.ndarray] = {}

    def similarities(self, option: Option) -> np.ndarray:
        """Return the similarities of the sentences, (n, n), mean over the chosen layers."""
        key = (option["reading"], option["similarity"], tuple(option["layers"]))
        if key not in self._kept:
            of_layers = self.features[f"{option['reading']}-{option['similarity']}"][option["layers"]]
            self._kept[key] = of_layers.astype(np.float64).mean(0)
        return self._kept[key]

    def focus(self, option: Option) -> np.ndarray:
        """Return the standardised separator focus after each sentence but the last."""
        return standardised(self.features[f"{option['reading']}-focus"][option["layers"]].mean(0))

    def segments(self, known: bool) -> int:
        """The number of pieces, or what it is on average in a text of that length."""
        return len(self.document.borders) + 1 if known else max(2, round(self.count / self.usual))


def layer_sets(layers: int) -> list[list[int]]:
    """The last layer, the last two, the later half, all."""
    everything = list(range(layers))
    sets = [everything[-1:], everything[-2:], everything[layers // 2 :], everything]
    return [chosen for place, chosen in enumerate(sets) if chosen not in sets[:place]]


def similarity_options(reading: str, layers: int, *names: str) -> Iterator[Option]:
    """Yield the choices of layers, similarity and way to cut for one reading."""
    product = itertools.product(layer_sets(layers), ("cosine", "dot"), methods(*names))
    for chosen, similarity, method in product:
        yield {"reading": reading, "layers": chosen, "similarity": similarity, **method}


def methods(*names: str) -> Iterator[Option]:
    """The ways to cut of these names; all without a name."""
    if "scatter" in names or not names:
        yield {"method": "scatter"}
    if "depth" in names or not names:
        for block in BLOCKS:
            yield {"method": "depth", "block": block}


def with_threshold(options: Iterator[Option] | list[Option], known: bool) -> Iterator[Option]:
    """Yield the options with each threshold; with None where the number of pieces is known."""
    for option in options:
        values = PENALTIES if option.get("method") == "scatter" else DEVIATIONS
        for value in [None] if known else values:
            yield {**option, "threshold": value}


def both_options(best: Option, layers: int) -> Iterator[Option]:
    """The best of the similarity alone, with the focus as a bonus; layers and reading are chosen again."""
    weights = SCATTER_WEIGHTS if best["method"] == "scatter" else DEPTH_WEIGHTS
    for reading, chosen, weight in itertools.product(("sentence", "window"), layer_sets(layers), weights):
        yield {**best, "reading": reading, "layers": chosen, "weight": weight}


def focus_options(layers: int) -> Iterator[Option]:
    """Yield the choices of the separator focus alone."""
    for reading, chosen, weight in itertools.product(("sentence", "window"), layer_sets(layers)[:2], (1.0, -1.0)):
        yield {"reading": reading, "layers": chosen, "weight": weight}


def by_similarity(data: Data, option: Option, known: bool) -> list[int]:
    """Cut by context similarity."""
    return cut_with(data, option, known)[0]


def cut_with(data: Data, option: Option, known: bool) -> tuple[list[int], np.ndarray]:
    """Borders, and what every gap brings."""
    chosen = {name: option[name] for name in ("method", "threshold", "block") if name in option}
    bonus = option["weight"] * data.focus(option) if "weight" in option else None
    segments = data.segments(True) if known else None
    return cut(data.similarities(option), bonus, segments=segments, **chosen)


def by_focus(data: Data, option: Option, known: bool) -> list[int]:
    """Cut by the separator focus."""
    segments = data.segments(True) if known else None
    bonus = option["weight"] * data.focus(option)
    return cut(None, bonus, segments=segments, method="depth", threshold=option["threshold"])[0]


def by_embeddings(data: Data, option: Option, known: bool) -> list[int]:
    """Cut by sentence embeddings."""
    chosen = {name: option[name] for name in ("method", "threshold", "block") if name in option}
    similarities = rivals.cosines(data.features["embedding"].astype(np.float64), option["centred"])
    return cut(similarities, segments=data.segments(True) if known else None, **chosen)[0]


def by_tiling(data: Data, option: Option, known: bool) -> list[int]:
    """Cut by TextTiling."""
    found = data.tiling(data.document, *option["tiling"])
    if known:
        return rivals.deepest(found["gaps"], len(data.document.borders), 2)
    if option["threshold"] == "nltk":
        return found["HC"]
    if not found["gaps"]:
        return []
    places, depth = zip(*found["gaps"], strict=True)
    chosen = highest(np.array(depth), None, option["threshold"])
    return sorted({places[gap - 1] for gap in chosen})


def by_length(data: Data, option: Option, known: bool) -> list[int]:
    """Cut into segments of equal length."""
    return rivals.equal_lengths(data.count, data.segments(known))


def by_chance(data: Data, option: Option, known: bool) -> list[int]:
    """Cut anywhere."""
    seed = [int(byte) for byte in data.document.name.encode()]
    return rivals.by_chance(data.count, data.segments(known), np.random.default_rng(seed))


def contestants(
    known: bool, layers: int, tuned: dict[str, tuple[Callable, Option, float]]
) -> Iterator[tuple[str, Callable, list[Option]]]:
    """Name, how it cuts, and the options it may choose from; what is ``tuned`` already may be used."""

    def embedded(method: str) -> list[Option]:
        return [{"centred": centred, **each} for centred in (False, True) for each in methods(method)]

    plain = {
        "similarity, scatter": (by_similarity, similarity_options("sentence", layers, "scatter")),
        "similarity, depth": (by_similarity, similarity_options("sentence", layers, "depth")),
        "similarity, windows": (by_similarity, similarity_options("window", layers)),
        "separator focus": (by_focus, focus_options(layers)),
        "random weights": (by_similarity, similarity_options("random", layers)),
        "embeddings, scatter": (by_embeddings, embedded("scatter")),
        "embeddings, depth": (by_embeddings, embedded("depth")),
    }
    for name, (way, options) in plain.items():
        yield name, way, list(with_threshold(options, known))
    alone = min((tuned[f"similarity, {method}"] for method in ("scatter", "depth")), key=lambda row: row[2])
    options = with_threshold(both_options(alone[1], layers), known)
    yield "similarity and focus", by_similarity, list(options)
    tilings = [{"tiling": tiling, "threshold": "nltk"} for tiling in TILINGS]
    if not known:
        tilings += [{"tiling": tiling, "threshold": value} for tiling in TILINGS for value in DEVIATIONS]
    yield "TextTiling", by_tiling, tilings
    yield "equal lengths", by_length, [{}]
    yield "chance", by_chance, [{}]


def tune(training: list[Data], known: bool, layers: int) -> dict[str, tuple[Callable, Option, float]]:
    """Each contestant's way, its options of the least mean Pk on the training documents, and that Pk."""
    tuned: dict[str, tuple[Callable, Option, float]] = {}
    for name, way, options in contestants(known, layers, tuned):
        means = [np.mean([score(data, way, option, known)["pk"] for data in training]) for option in options]
        place = int(np.argmin(means))
        tuned[name] = way, options[place], float(means[place])
    return tuned


def score(data: Data, way: Callable, option: Option, known: bool) -> dict[str, float]:
    """Return the scores of one way to cut one document."""
    document = data.document
    return segmentation_scores(way(data, option, known), document.borders, data.count)
