"""``segmentation.py`` at small size: everybody takes part, readings are kept; a mistake is one line."""

import json
import random

import numpy as np
import pytest

from benchmarks.studies.segmentation import __main__ as segmentation
from tests.training import small

SMALL = ["--training", "2", "--documents", "2", "--reviews", "2", "--pieces", "3", "--window", "24"]
NAMES = set(segmentation.reporting.CONTESTANTS)


def sentences(generator, count, positive):
    return [small.sentence(generator, positive).capitalize() + "." for _ in range(count)]


@pytest.fixture
def tiny_sources(tiny_assets):
    """Addresses by four presidents and reviews of three films, in sentences that a splitter finds."""
    for seed, (name, count) in enumerate((("train", 8), ("test", 5))):
        generator, lines = random.Random(seed), []
        for i in range(count):
            text = " ".join(sentences(generator, 14, i % 2 == 0))
            lines.append(json.dumps({"text": text, "year": 1800 + i, "president": f"p{i % 4}", "address": f"a{i}"}))
        path = tiny_assets / "sotu" / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    generator = random.Random(9)
    rows = [
        {"text": text, "label": 0.0, "movie": f"film {film}"}
        for film in range(3)
        for text in sentences(generator, 12, film)
    ]
    small.save_csv(tiny_assets / "reviews" / "test.csv", rows)
    return tiny_assets


def test_everybody_takes_part_and_readings_are_kept(tiny_sources, tmp_path, capsys):
    arguments = [*SMALL, "--seeds", "0,1", "--out", "runs/cut"]
    assert segmentation.main(arguments) == 0
    printed = capsys.readouterr().out
    folder = tmp_path / "runs" / "cut"
    report = json.loads((folder / "results.json").read_text())
    assert report["sizes"]["addresses"]["documents"] == 4 and set(report["sizes"]) == {
        "training",
        "addresses",
        "reviews",
    }
    for setting in ("known", "unknown"):
        found = report["settings"][setting]
        assert set(found["tuned"]) == NAMES
        for corpus, count in (("addresses", 4), ("reviews", 2)):
            for name in NAMES:
                rows, row = found["documents"][corpus][name], found["corpora"][corpus][name]
                assert len(rows) == count
                assert row["pk"]["low"] <= row["pk"]["mean"] == pytest.approx(np.mean([each["pk"] for each in rows]))
                assert all(0 <= each[metric] <= 1 for each in rows for metric in ("pk", "windowdiff", "f1"))
                if setting == "known":
                    assert all(len(each["borders"]) == 2 for each in rows), name
    assert (folder / "results.md").read_text() in printed and (folder / "results.png").stat().st_size > 1000

    # A reading that is there is not made again, more documents go into the same folder; other pieces do not.
    kept = folder / "documents" / "held-out-0-1.npz"
    with np.load(kept) as before:
        changed = {**before, "embedding": np.eye(*before["embedding"].shape)}
    np.savez(kept, **changed)
    assert segmentation.main([*arguments, "--documents", "3", "--quiet"]) == 0
    again = json.loads((folder / "results.json").read_text())
    assert again["sizes"]["addresses"]["documents"] == 6
    first, second = (each["settings"]["known"]["documents"]["addresses"] for each in (report, again))
    assert second["TextTiling"][:2] == first["TextTiling"][:2] and second["chance"][:2] == first["chance"][:2]
    assert second["embeddings, depth"][0] == first["embeddings, depth"][0]
    assert second["embeddings, depth"][1] != first["embeddings, depth"][1]
    assert segmentation.main([*arguments, "--pieces", "2"]) == 2
    assert "another pieces: 3, not 2" in capsys.readouterr().err


def test_documents_have_the_borders_that_they_were_made_with(tiny_sources):
    sources = segmentation.data.addresses("train")
    by_author = {}
    for author, its in sources:
        by_author.setdefault(author, set()).update(its)
    for document in segmentation.data.documents("made", sources, 5, 4, seed=1):
        edges = [0, *document.borders, len(document.starts)]
        assert len(set(document.sources)) == 4 and len(edges) == 5
        for author, first, end in zip(document.sources, edges[:-1], edges[1:], strict=True):
            assert 3 <= end - first <= 11 and set(document.sentences[first:end]) <= by_author[author]
    assert (
        segmentation.data.documents("made", sources, 1, 4, seed=1)[0]
        == segmentation.data.documents("made", sources, 2, 4, seed=1)[0]
    )


def test_texttiling_finds_a_change_of_words():
    draw = random.Random(0)
    halves = [[f"{letter}{chr(97 + i)}{letter}" for i in range(9)] for letter in ("k", "z")]
    texts = [" ".join(draw.choices(half, k=10)) + "." for half in halves for _ in range(12)]
    found = segmentation.rivals.text_tiling(texts, 10, 4)
    assert segmentation.rivals.deepest(found["gaps"], 1, 2) == [12]
    assert segmentation.rivals.text_tiling(texts[:1], 10, 4) == {"gaps": [], "HC": [], "LC": []}
    assert segmentation.rivals.equal_lengths(12, 4) == [3, 6, 9]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pieces", "9"], "4 sources of training are too few for documents of 9 pieces; give fewer"),
        (["--documents", "1"], "--documents must be at least 2, got 1"),
        (["--seeds", "0;1"], "--seeds takes whole numbers with commas, got '0;1'"),
    ],
)
def test_mistakes_are_one_line(tiny_sources, tmp_path, capsys, arguments, message):
    assert segmentation.main([*SMALL, *arguments, "--out", "runs/wrong"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and message in lines[0]
    assert not (tmp_path / "runs" / "wrong").exists()
