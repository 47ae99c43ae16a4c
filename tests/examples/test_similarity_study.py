"""``similarity_study.py`` at small size, and its verdicts on levels and heads that are known."""

import json
import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests" / "probe")]

import planted  # noqa: E402
import similarity_study_findings as finding  # noqa: E402

from examples import similarity_study  # noqa: E402
from hf_attn_ext.probe import ContextSimilarityProbe, ProbeStatistics  # noqa: E402
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
    page.write_text("before\n<!-- study minilm: generated -->old<!-- study minilm: end -->\nbehind\n")
    arguments = [*SMALL, "--out", "runs/study", "--page", str(page)]
    assert similarity_study.main(arguments) == 0
    printed, out = capsys.readouterr().out, tmp_path / "runs" / "study"
    text = (out / "study.md").read_text(encoding="utf-8")
    assert text in printed and text.strip() in page.read_text(encoding="utf-8")
    assert page.read_text().startswith("before\n") and page.read_text().endswith("\nbehind\n")
    assert "old" not in page.read_text().split("generated -->")[1].split()[0]
    assert (out / "study.png").stat().st_size > 1000 and (tmp_path / "page-minilm-study.png").is_file()
    for name, texts in {"trained": 12, "untrained": 4, "shuffled": 4}.items():
        counts = ProbeStatistics.from_json(out / name / "statistics.json").counts
        assert counts["texts"] == texts and counts["padding"] == 0
        assert counts["tokens"] + counts["special"] == 16 * texts
    speed = json.loads((out / "speed.json").read_text())
    assert speed["tokens"] == 2 * 4 * 16 and speed["run"]["texts"] == 12
    assert speed["ratio"]["processor"] == speed["plain"]["processor"] / speed["probe"]["processor"]
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
        (["--page", "none.md"], "--page 'none.md' does not exist"),
    ],
)
def test_mistakes_are_one_line(tiny_study, capsys, options, said):
    assert similarity_study.main([*SMALL, "--out", "runs/study", *options]) == 2
    shown = capsys.readouterr().err.splitlines()
    assert said in shown[-1] and shown[-1].startswith("error: ")


def test_verdicts():
    chance = "agrees, but chance explains it: pairs at the same distances have as much"
    unlearnt = "agrees, but a model that learnt nothing gives as much"
    mixed = "agrees, also where tokens are shuffled: no language is needed"
    for one, shuffled, verdict in (
        (level(0.5, 0.3, 0.4), level(0.45, 0.3, 0.37), "agrees"),
        (level(0.5, 0.3, 0.4), level(0.5, 0.3, 0.41), mixed),
    ):
        assert finding.judge(True, one, None, shuffled) == verdict
    assert finding.judge(True, level(20, 40), None, level(21, 40), -1) == mixed
    assert finding.judge(True, level(20, 40), None, level(25, 40), -1) == "agrees"
    for one, untrained, sign, holds, verdict in (
        (level(0.5, 0.3, 0.4), None, 1, True, "agrees"),
        (level(0.5, 0.3, 0.4), None, 1, False, "does not agree"),
        (level(0.5, 0.3, 0.495), None, 1, True, chance),
        (level(0.5, 0.3, 0.4), level(0.6, 0.5, 0.55), 1, True, "agrees"),
        (level(0.5, 0.3, 0.4), level(0.3, 0.1, 0.15), 1, True, unlearnt),
        (level(0.5, 0.3), level(0.4, 0.1), 1, True, unlearnt),
        (level(20, 40), level(41, 40), -1, True, "agrees"),
        (level(20, 40), level(19, 40), -1, True, unlearnt),
        (level(0.5, 0.3, 0.4, error=math.nan), None, 1, True, "too few texts to tell"),
    ):
        assert finding.judge(holds, one, untrained, None, sign) == verdict


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
