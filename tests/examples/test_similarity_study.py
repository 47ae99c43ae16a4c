"""``similarity_study.py`` at small size, and its verdicts on levels and heads that are known."""

import dataclasses
import functools
import json
import math
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests" / "probe")]

import planted  # noqa: E402
import similarity_study_findings as finding  # noqa: E402
import similarity_study_page as paging  # noqa: E402
import similarity_study_verdicts as verdicts  # noqa: E402

from examples import similarity_study  # noqa: E402
from hf_attn_ext.errors import AttnExtError  # noqa: E402
from hf_attn_ext.probe import ContextSimilarityProbe, ProbeConfig, ProbeStatistics, Statistic  # noqa: E402
from hf_attn_ext.probe.findings import Level  # noqa: E402
from tests.training import small  # noqa: E402

SMALL = ["--texts", "12", "--control-texts", "4", "--tokens", "16", "--batch-size", "4", "--timed", "2", "--quiet"]


def level(value, chance, matched=math.nan, error=0.01, control=False):
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
    assert f"    python examples/similarity_study.py --model minilm {printed_command}\n" in text
    assert (out / "study.png").stat().st_size > 1000 and (tmp_path / "page-minilm-study.png").is_file()
    for name, texts in {"trained": 12, "reference": 4, "untrained": 4, "shuffled": 4}.items():
        counts = ProbeStatistics.from_json(out / name / "statistics.json").counts
        assert counts["texts"] == texts and counts["padding"] == 0
        assert name == "trained" or counts["sampled"] == 4
        assert counts["tokens"] + counts["special"] == 16 * texts
    speed = json.loads((out / "speed.json").read_text())
    assert speed["tokens"] == 2 * 4 * 16 and speed["run"]["texts"] == 12
    # given again, no text is read anew, and the numbers are the same
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
    found = SimpleNamespace(config=config, corpus=SimpleNamespace(texts=planted.make_texts(32)))
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
        with pytest.raises(AttnExtError, match="must have the marks .* once each, in this order"):
            paging.refresh(page, study, tmp_path)
        assert page.read_bytes() == wrong


def test_controls_are_compared_on_the_same_texts_and_by_intervals():
    one = level(0.6, 0.1)
    unlearnt, mixed = verdicts.UNLEARNT, verdicts.MIXED
    open_one = "agrees; cannot be told whether a model that learnt nothing gives as much"
    for untrained, shuffled, verdict in (
        (None, None, "agrees"),
        (level(0.3, 0.1), level(0.3, 0.1), "agrees"),
        (level(0.65, 0.1), None, unlearnt),
        (level(0.61, 0.1), None, open_one),
        (level(0.59, 0.1), None, open_one),
        (None, level(0.59, 0.1), mixed),
        (None, level(0.55, 0.1), "agrees; cannot be told whether language is needed"),  # nine tenths: 0.45
        (level(0.6, 0.1), level(0.55, 0.1), f"{open_one}, nor whether language is needed"),
        (
            level(0.6, 0.1),
            level(0.6, 0.1),
            f"{mixed}; cannot be told whether a model that learnt nothing gives as much",
        ),
        (None, level(0.3, 0.1, error=math.nan), "agrees; cannot be told whether language is needed"),
    ):
        assert verdicts.judge(True, one, untrained, shuffled) == verdict
    # the model on the controls' texts is what counts, not on all
    assert verdicts.judge(True, one, None, level(0.4, 0.1), reference=level(0.4, 0.1)) == mixed
    assert verdicts.judge(True, one, None, level(0.59, 0.1), reference=level(0.9, 0.1)) == "agrees"
    # where chance is what is claimed, numbers are compared themselves
    assert verdicts.judge(True, level(40, 42), level(42, 42), chance=False) == unlearnt
    assert verdicts.judge(True, level(40, 42), level(30, 42), level(39, 42), chance=False) == mixed


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
    same = {name: there for name in ("trained", "reference", "shuffled")}
    assert by_key(same)["repetitions far apart"].verdict == by_key(same)["repetitions"].verdict == verdicts.MIXED


def test_uniform_distances_are_compared_with_the_controls_too():
    one = statistics_of()
    assert by_key({"trained": one})["uniform early"].verdict == "agrees" + verdicts.NO_INTERVAL
    shuffled = by_key({"trained": one, "reference": one, "shuffled": one})["uniform early"]
    assert shuffled.verdict == verdicts.MIXED + verdicts.NO_INTERVAL
    few = dataclasses.replace(one, counts={"texts": 1})
    assert by_key({"trained": few})["uniform early"].verdict == verdicts.FEW


def by_key(tables):
    return {row.key: row for row in finding.rows(tables)}


def statistics_of(within=(0.5, 0.3, 0.4), repeated=(0.5, 0.1, 0.2)):
    """Of one layer with one head, from values, chance levels and levels at the same distances."""
    found = []
    for name, (value, *levels) in {
        "within_sentence": within,
        "repeated_tokens": repeated,
        "distance": (40.0, 42.0, math.nan),
    }.items():
        around = np.array([[[-0.01, 0.01]]])
        bounds = [value + around, *(value - each + around for each in levels)]
        arrays = [np.array([[each]]) for each in (value, *levels)]
        found.append(Statistic(name, "dot", 1.0, [0], [0], arrays[0], bounds[0], *arrays[1:], *bounds[1:], 9))
    shares = {"values": np.ones((1, 1, 1, 1)), "chance": np.ones((1, 1))}
    return ProbeStatistics(found, shares, {"texts": 9}, {}, [])


def test_verdicts():
    exact = functools.partial(level, error=0.001)
    chance = "does not agree: pairs at the same distances have as much"
    unlearnt = "agrees, but a model that learnt nothing gives as much"
    mixed = "agrees, also where tokens are shuffled: no language is needed"
    for one, shuffled, verdict in (
        (exact(0.5, 0.3, 0.4), exact(0.45, 0.3, 0.37), "agrees"),
        (exact(0.5, 0.3, 0.4), exact(0.5, 0.3, 0.405), mixed),
    ):
        assert verdicts.judge(True, one, None, shuffled) == verdict
    assert verdicts.judge(True, exact(20, 40), None, exact(21, 40), -1) == mixed
    assert verdicts.judge(True, exact(20, 40), None, exact(25, 40), -1) == "agrees"
    for one, untrained, sign, holds, verdict in (
        (exact(0.5, 0.3, 0.4), None, 1, True, "agrees"),
        (exact(0.5, 0.3, 0.4), None, 1, False, "does not agree"),
        (exact(0.5, 0.3, 0.4999), None, 1, True, chance),
        (exact(0.5, 0.3, 0.4), exact(0.6, 0.5, 0.55), 1, True, "agrees"),
        (exact(0.5, 0.3, 0.4), exact(0.3, 0.1, 0.15), 1, True, unlearnt),
        (exact(0.5, 0.3), exact(0.4, 0.1), 1, True, unlearnt),
        (exact(20, 40), exact(41, 40), -1, True, "agrees"),
        (exact(20, 40), exact(19, 40), -1, True, unlearnt),
        (exact(0.5, 0.3, 0.4, error=math.nan), None, 1, True, "too few texts to tell"),
    ):
        assert verdicts.judge(holds, one, untrained, None, sign) == verdict


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


def test_overlap_is_one_where_distances_are_those_of_all_pairs():
    chance = np.array([[0.5, 0.3, 0.2]])
    values = np.array([[[chance[0], [1.0, 0, 0]], [[0.2, 0.3, 0.5], [0, 0, 1.0]]]])
    table = ProbeStatistics([], {"values": values, "chance": chance}, {}, {}, [])
    assert np.allclose(finding.overlaps(table), [[1, 0.5], [0.7, 0.2]])
