"""``similarity_study.py`` at small size, and its verdicts on levels and heads that are known."""

import dataclasses
import functools
import json
import math
import random
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.studies.similarity_study import __main__ as similarity_study
from benchmarks.studies.similarity_study import findings as finding
from benchmarks.studies.similarity_study import page as paging
from benchmarks.studies.similarity_study import verdicts
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe import ContextSimilarityProbe, ProbeConfig, ProbeStatistics, Statistic
from hf_attn_ext.probe.report.findings import Level
from tests.probe import planted
from tests.training import small

SMALL = ["--texts", "12", "--control-texts", "4", "--tokens", "16", "--batch-size", "4", "--timed", "2", "--quiet"]


def level(value, chance, matched=math.nan, error=0.01):
    sides = [(v - error, v + error) for v in (value, value - chance, value - matched)]
    return Level(value, sides[0], chance, matched, sides[1], sides[2])


@pytest.fixture
def tiny_study(tiny_assets):
    """Addresses under the name of the real ones."""
    for seed, name in enumerate(("train", "validation", "test")):
        draw = random.Random(seed)
        texts = [" ".join(small.sentence(draw, bool(i % 2)) for i in range(30)) for _ in range(3)]
        path = tiny_assets / "sotu" / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return tiny_assets


def test_everything_is_measured_once(tiny_study, tmp_path, capsys, monkeypatch):
    # figures are tested elsewhere, and take longest
    monkeypatch.setattr(similarity_study, "write_run", lambda found, *rest: found.report.write_text("<html>"))
    monkeypatch.setattr(similarity_study.paging, "FIGURES", ())
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- study minilm: generated -->stale<!-- study minilm: end -->\nbehind\n")
    arguments = [*SMALL, "--out", "runs/study", "--page", str(page)]
    assert similarity_study.main(arguments) == 0
    printed, out = capsys.readouterr().out, tmp_path / "runs" / "study"
    text = (out / "study.md").read_text(encoding="utf-8")
    assert text in printed and text.strip() in page.read_text(encoding="utf-8")
    assert page.read_text().startswith("before\n") and page.read_text().endswith("\nbehind\n")
    assert "stale" not in page.read_text()
    printed_command = f"--texts 12 --control-texts 4 --timed 2 --tokens 16 --batch-size 4 --page {page}"
    assert f"    python -m benchmarks.studies.similarity_study --model minilm {printed_command}\n" in text
    assert (out / "study.png").stat().st_size > 1000 and (tmp_path / "page-minilm-study.png").is_file()
    for name, texts in {"trained": 12, "reference": 4, "untrained": 4, "shuffled": 4}.items():
        counts = ProbeStatistics.from_json(out / name / "statistics.json").counts
        assert counts["texts"] == texts and counts["padding"] == 0
        assert name == "trained" or counts["sampled"] == 4
        assert counts["tokens"] + counts["special"] == 16 * texts
    speed = json.loads((out / "speed.json").read_text())
    assert speed["tokens"] == 2 * 4 * 16 and speed["run"]["texts"] == 12
    # run again: no text is read anew, and the numbers are the same
    tables = text.split("### Cost")[0]
    assert similarity_study.main(arguments) == 0
    assert (out / "study.md").read_text(encoding="utf-8").split("### Cost")[0] == tables
    assert json.loads((out / "trained-time.json").read_text())["texts"] == 12


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--texts", "1"], "--texts must be at least 2, got 1"),
        (["--model", "no/such/folder"], "there is no model folder 'no/such/folder'"),
        (["--data", "none.txt"], "'none.txt' does not exist"),
        (["--browse", "-1"], "--browse must be at least 0, got -1"),
        (["--page", "none.md"], "--page 'none.md' does not exist"),
    ],
)
def test_mistakes_are_one_line(tiny_study, capsys, options, said):
    assert similarity_study.main([*SMALL, "--out", "runs/study", *options]) == 2
    shown = capsys.readouterr().err.splitlines()
    assert said in shown[-1] and shown[-1].startswith("error: ")


def test_a_report_that_is_too_large_is_refused_before_anything_else_is_run(tiny_study, capsys, monkeypatch):
    monkeypatch.setattr(similarity_study, "write_run", lambda found, *rest: found.report.write_text("<html>"))
    monkeypatch.setattr(similarity_study, "LIMIT", 5)
    monkeypatch.setattr(similarity_study, "speed", None)
    assert similarity_study.main([*SMALL, "--out", "runs/study"]) == 2
    assert "has 6 bytes, more than 5 MiB; give --browse 2 or less" in capsys.readouterr().err
    assert not Path("runs/study/reference").exists()


def test_time_and_sample_are_those_of_the_batches_that_are_timed(monkeypatch):
    """By a clock that a forward pass moves by 1 and the probe by another 3; all texts are in the sample."""
    model, tokenizer, now, feed = planted.small_bert(), planted.word_tokenizer(), [0.0], ContextSimilarityProbe.feed
    model.register_forward_hook(lambda *_: now.__setitem__(0, now[0] + 1))
    clock = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: 2 * now[0])
    monkeypatch.setattr(similarity_study, "time", clock)

    def slow(self, *given, **options):
        now[0] += 3
        return feed(self, *given, **options)

    monkeypatch.setattr(ContextSimilarityProbe, "feed", slow)
    config = ProbeConfig("x", ["t"], "o", sample=1.0, bootstrap=4, batch_size=8)
    found = SimpleNamespace(config=config, corpus=SimpleNamespace(texts=planted.make_texts(32), documents=["d"] * 32))
    timed = similarity_study.speed(model, tokenizer, found, 2)
    assert timed["plain"] == {"wall": 2, "processor": 4} and timed["probe"] == {"wall": 8, "processor": 16}
    assert timed["ratio"] == {"wall": 0.25, "processor": 0.25} and timed["texts in the sample"] == 16


@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
def test_only_the_part_between_the_marks_is_written(tmp_path, monkeypatch, ends):
    monkeypatch.setattr(paging, "markdown", lambda study: "new\ntext\n")
    monkeypatch.setattr(paging, "FIGURES", ())
    study, page = SimpleNamespace(source=SimpleNamespace(name="m")), tmp_path / "page.md"
    (tmp_path / "study.png").write_bytes(b"x")
    begin, end = b"<!-- study m: generated -->", b"<!-- study m: end -->"
    page.write_bytes(b"before \\1 " + ends + begin + b"stale" + end + ends + b"behind")
    for _ in range(2):
        paging.refresh(page, study, tmp_path)
        before, part, behind = re.split(b"%b|%b" % (begin, end), page.read_bytes())
        assert before == b"before \\1 " + ends and behind == ends + b"behind"
        assert part.startswith(ends * 2 + b"new" + ends + b"text" + ends) and b"page-m-study.png" in part
        assert part.count(b"\n") == part.count(ends) and b"stale" not in part
    for wrong in (end + begin, begin, end, b"", begin + end + begin + end, begin + begin + end):
        page.write_bytes(wrong)
        with pytest.raises(AttnExtError, match=r"must have the marks .* once each, in this order"):
            paging.refresh(page, study, tmp_path)
        assert page.read_bytes() == wrong


def test_controls_are_judged_by_the_intervals_of_what_they_have_more():
    one, yes, no, open_one = level(0.6, 0.1), (0.01, 0.03), (-0.03, -0.01), (-0.01, 0.01)
    unlearnt, mixed = verdicts.UNLEARNT, verdicts.MIXED
    untold = "agrees; undecided whether a model that learnt nothing gives as much"
    for untrained, shuffled, verdict in (
        (None, None, "agrees"),
        (no, no, "agrees"),
        (yes, None, unlearnt),
        (yes, yes, unlearnt),
        (open_one, None, untold),
        (None, yes, mixed),
        (None, open_one, "agrees; undecided whether language is needed"),
        (open_one, open_one, f"{untold}, nor whether language is needed"),
        (open_one, yes, f"{mixed}; undecided whether a model that learnt nothing gives as much"),
        (None, (math.nan, math.nan), "agrees; undecided whether language is needed"),
    ):
        assert verdicts.judge(True, one, untrained, shuffled) == verdict


def test_contrasts_are_of_the_same_documents_and_of_the_level_that_is_meant():
    """What two runs have in common in each replicate drops out, whatever it is."""
    draw = np.random.default_rng(0)
    common = draw.normal(size=64)
    one, other = (replicated(0.6, 0.1, 0.3, common, own) for own in 0.001 * draw.normal(size=(2, 64)))
    place = verdicts.Place(one, 0, 0)
    low, high = verdicts.contrast(verdicts.Place(other, 0, 0), place, 1.0)
    assert low < 0 < high and high - low < 0.01
    low, high = verdicts.contrast(place, place, 0.9)
    assert 0 < high - low < 0.001 and (low + high) / 2 == pytest.approx(0.1 * (0.6 - 0.3))
    assert verdicts.contrast(place, place, 0.9, -1) == pytest.approx((-high, -low))
    low, high = verdicts.contrast(place, place, 0.9, chance=False)  # now the common part is seen, a tenth of it
    assert (low + high) / 2 == pytest.approx(0.1 * 0.6) and 0.2 < high - low < 0.6
    by_count = verdicts.Place(replicated(0.6, 0.1, math.nan, common, 0 * common), 0, 0)
    assert verdicts.contrast(by_count, by_count, 0.0)[0] == pytest.approx(0.5)
    alone = dataclasses.replace(one, interval=one.interval * math.nan)
    assert all(map(math.isnan, verdicts.contrast(place, verdicts.Place(alone, 0, 0), 1.0)))
    heads = dataclasses.replace(one, heads=[0, 1], values=np.array([[0.6, 0.2]]))
    heads = dataclasses.replace(heads, replicates=np.concatenate([one.replicates, one.replicates + 2], axis=3))
    assert np.allclose(verdicts.Place(heads, 0).excess(False)[1], one.replicates[0, :, 0, 0] + 1)


def replicated(value, chance, matched, common, own):
    """Of one head; each replicate has ``common`` in the number and its levels, and ``own`` in the number alone."""
    levels = np.array([value, chance, matched])[:, None] + common + np.array([1.0, 0, 0])[:, None] * own
    arrays = [np.array([[each]]) for each in (value, chance, matched)]
    bounds = np.array([[[-0.01, 0.01]]])
    return Statistic(
        "signal", "dot", 1.0, [0], [0], arrays[0], bounds, *arrays[1:], bounds, bounds, 9, levels[..., None, None]
    )


def test_nothing_agrees_where_chance_is_no_less():
    third = {"trained": statistics_of(within=(0.65, 0.75, 0.6))}
    assert by_key(third)["a third inside"].verdict == by_key(third)["sentence at the end"].verdict == "does not agree"
    assert by_key({"trained": statistics_of(within=(0.65, 0.5, 0.6))})["a third inside"].verdict == "agrees"
    assert by_key({"trained": statistics_of(within=(0.3, 0.2, 0.25))})["a third inside"].verdict == "does not agree"
    near = by_key({"trained": statistics_of(within=(0.65, 0.5, 0.649))})
    assert near["a third inside"].verdict == verdicts.NEAR


def test_repetitions_across_the_text_need_repetitions():
    without = by_key({"trained": statistics_of(repeated=(0.1, 0.1, 0.1))})
    assert without["repetitions"].verdict == "does not agree"
    assert without["repetitions far apart"].verdict == "does not agree: it finds no repetitions"
    there = statistics_of(repeated=(0.5, 0.1, 0.2))
    assert by_key({"trained": there})["repetitions far apart"].verdict == "agrees"
    same = dict.fromkeys(("trained", "reference", "shuffled"), there)
    assert by_key(same)["repetitions far apart"].verdict == by_key(same)["repetitions"].verdict == verdicts.MIXED


def test_uniform_distances_need_an_interval_and_are_compared_with_the_controls_too():
    one = statistics_of()
    assert by_key({"trained": one})["uniform early"].verdict == "agrees"
    controls = by_key({"trained": one, "reference": one, "shuffled": one})
    assert controls["uniform early"].verdict == verdicts.MIXED
    for overlap in ((0.805, 0.5), (0.95, 0.945)):
        assert by_key({"trained": statistics_of(overlap=overlap)})["uniform early"].verdict == "does not agree"


def by_key(tables):
    return {row.key: row for row in finding.rows(tables)}


def statistics_of(within=(0.5, 0.3, 0.4), repeated=(0.5, 0.1, 0.2), overlap=(0.9, 0.5)):
    """Of two layers with one head, from values, chance levels and levels at the same distances of both."""
    found = []
    for name, (value, *levels) in {
        "within_sentence": within,
        "repeated_tokens": repeated,
        "distance": (40.0, 42.0, math.nan),
        "distance_overlap": (0.0, 1.0, math.nan),
    }.items():
        shape = (2,) if name == "distance_overlap" else (2, 1)
        arrays = [np.full(shape, each) for each in (value, *levels)]
        if name == "distance_overlap":
            arrays[0] = np.array(overlap)
        around = np.array([-0.01, 0.01])
        bounds = [each[..., None] + around for each in (arrays[0], arrays[0] - arrays[1], arrays[0] - arrays[2])]
        heads = None if name == "distance_overlap" else [0]
        replicates = np.stack([np.stack([each] * 8) for each in arrays])
        found.append(
            Statistic(name, "dot", 1.0, [0, 1], heads, arrays[0], bounds[0], *arrays[1:], *bounds[1:], 9, replicates)
        )
    return ProbeStatistics(found, {}, {"texts": 9}, {}, [])


def test_verdicts():
    exact = functools.partial(level, error=0.001)
    assert verdicts.judge(True, exact(0.5, 0.3, 0.4)) == "agrees"
    assert verdicts.judge(False, exact(0.5, 0.3, 0.4)) == "does not agree"
    assert verdicts.judge(True, exact(0.3, 0.5, 0.2)) == "does not agree"
    assert verdicts.judge(True, exact(0.5, 0.3, 0.4999)) == verdicts.NEAR
    assert verdicts.judge(True, exact(20, 40), sign=-1) == "agrees"
    assert verdicts.judge(True, exact(40, 20), sign=-1) == "does not agree"
    assert verdicts.judge(True, exact(20, 40), chance=False) == "agrees"
    assert verdicts.judge(True, exact(0.5, 0.3, 0.4, error=math.nan)) == "too few texts to tell"


def test_planted_heads_are_found():
    """One head compares token ids, one averages all, one looks at "." alone: see ``planted_bert``."""
    tables = {}
    for name, model in {
        "trained": planted.planted_bert(),
        "untrained": planted.small_bert(num_hidden_layers=1),
    }.items():
        with ContextSimilarityProbe(model, planted.word_tokenizer(), sample=1, bootstrap=16) as probe:
            probe.feed(planted.make_texts(24))
        tables[name] = probe.statistics()
    rows = {row.key: row for row in finding.rows(tables)}
    assert rows["repetitions"].seen.startswith("layer 0 head 0,") and rows["repetitions"].verdict == "agrees"
    assert rows["separators at the end"].level.value > rows["separators at the end"].level.chance
    assert rows["near in the middle"].verdict == "does not agree"
    assert all(row.shuffled is None and row.untrained is not None for row in rows.values())


def test_the_head_that_the_source_names_is_there_in_models_of_its_depth():
    model = planted.small_bert(hidden_size=24, num_hidden_layers=12, num_attention_heads=12)
    with ContextSimilarityProbe(model, planted.word_tokenizer(), sample=0, bootstrap=4) as probe:
        probe.feed(planted.make_texts(4))
    rows = {row.key: row.seen for row in finding.rows({"trained": probe.statistics()})}
    assert rows["head 8 of layer 11, from 0"].startswith("layer 11 head 8,")
    assert rows["head 8 of layer 11, from 1"].startswith("layer 10 head 7,")
    assert "region" not in rows and "special tokens" not in rows  # no attention maps without a sample
    assert not finding.has_named_head(range(6), range(12)) and not finding.has_named_head(range(12), range(4))
