"""A statistic that one file defines reaches everything: lists, command line, files, merging, resuming, the report."""

import importlib
import json

import naive
import numpy as np
import planted
import pyarrow.parquet
import pytest
from streamed import probed, same

from hf_attn_ext.cli.main import main
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe import (
    ContextSimilarityProbe,
    HeadStatistic,
    PairStatistic,
    ProbeConfig,
    ProbeStatistics,
    findings,
    list_statistics,
    register_statistic,
)
from hf_attn_ext.probe.report.figures import draw
from hf_attn_ext.probe.report.findings import gaps
from hf_attn_ext.probe.run import run_statistics
from hf_attn_ext.probe.statistics import registry
from tests.cli import models


def forget(name):
    registry._STATISTICS.pop(name, None)


@pytest.fixture
def neighbours():
    """The statistic's module, imported as ``--import`` does."""
    import neighbours

    yield importlib.reload(neighbours)
    forget("neighbours")


@pytest.fixture
def words(tmp_path):
    """The command line of a run, but for its folder."""
    (tmp_path / "texts.txt").write_text("the film is good and the plot is bad\n a story , a dull story and film\n" * 6)
    model = models.masked_lm(tmp_path / "model")
    texts = ["--texts", str(tmp_path / "texts.txt")]
    return ["--import", "neighbours", "probe", str(model), *texts, "--sample", "1", "--set", "bootstrap=4"]


def test_it_is_listed(neighbours, capsys):
    assert list_statistics()[-1] == "neighbours"
    assert main(["list", "statistics"]) == 0
    assert set(list_statistics()) == set(capsys.readouterr().out.split())


def test_the_command_line_writes_and_shows_it(neighbours, words, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([*words, "--out", str(out)]) == 0
    statistics = ProbeStatistics.from_json(out / "statistics.json")
    measured = statistics.get("neighbours", 1)
    assert measured.description == neighbours.Neighbours.description
    assert np.isfinite(measured.values).all() and np.isfinite(measured.chance_matched).all()
    assert np.allclose(measured.values, measured.chance_matched)  # distance is all that it sees
    assert {statistics.get("neighbours", 5, measure).measure for measure in ("dot", "cosine", "attention")}
    rows = pyarrow.parquet.read_table(out / "statistics.parquet").to_pylist()
    assert sum(row["name"] == "neighbours" for row in rows) == 3 * 2 * 3 * 3  # layers, heads, percentages, measures
    for name in ("map-neighbours.png", "map-neighbours.svg", "curve-neighbours.png"):
        assert (out / "figures" / name).stat().st_size > 2000
    page, said = (out / "report.html").read_text(), capsys.readouterr().out
    finding = next(one for one in findings(statistics) if one.statistic == "neighbours")
    assert finding.text in said and finding.text in page and "(a toy&#39;s claim)" in page
    assert neighbours.Neighbours.description in page and neighbours.Neighbours.title in page
    assert '"label":"neighbours"' in page  # the numbers of the head browser
    forget("neighbours")  # as in a process that does not import it
    with pytest.raises(AttnExtError, match=r"unknown statistic 'neighbours'.*Import the module"):
        _ = measured.description
    assert "neighbours" in gaps(statistics)[-1] and "map-noise" in {one.name for one in draw(statistics)}
    assert main([*words, "--out", str(out)]) == 2  # a run is not resumed with other statistics
    assert "another setting: statistics was" in capsys.readouterr().err


def test_it_is_merged_saved_and_gathered(neighbours, tokenizer):
    model, texts = planted.small_bert(), planted.make_texts(6)
    whole = probed(model, tokenizer, texts)
    halves = [probed(model, tokenizer, texts[part::2]) for part in range(2)]
    halves[0].merge(halves[1].state_dict())
    halves[0].gather()
    same(whole.statistics(), halves[0].statistics())
    assert ProbeStatistics.from_json(whole.statistics().to_json()).get("neighbours").texts == 6
    forget("neighbours")
    with pytest.raises(AttnExtError, match=r"differ in their statistics \(neighbours\); import the modules"):
        whole.merge(probed(model, tokenizer, planted.make_texts(2, seed=1)))


def test_a_run_that_was_broken_off_goes_on_with_it(neighbours, tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("\n".join(planted.make_texts(6)) + "\n")

    def run(out):
        options = {"batch_size": 2, "save_every": 2, "bootstrap": 4, "sample": 0.5}
        config = ProbeConfig("tiny", [str(tmp_path / "texts.txt")], str(tmp_path / out), **options)
        return run_statistics(planted.small_bert(), planted.word_tokenizer(), config).statistics

    expected, feed, calls = run("whole"), ContextSimilarityProbe.feed, []

    def stops(self, *arguments, **options):
        calls.append(None)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return feed(self, *arguments, **options)

    monkeypatch.setattr(ContextSimilarityProbe, "feed", stops)
    with pytest.raises(KeyboardInterrupt):
        run("parts")
    assert run("parts").to_json() == expected.to_json() and len(calls) == 4
    assert expected.get("neighbours").texts == 6
    assert "neighbours" in json.loads((tmp_path / "parts" / "probe.json").read_text())["statistics"]


def test_the_loops_agree(neighbours, tokenizer, monkeypatch):
    naive.check_loops(planted.small_bert(), tokenizer, planted.make_texts(3), monkeypatch)


def test_wrong_names_and_classes_are_refused(neighbours):
    for name in ("Two Words", "", 3):
        with pytest.raises(AttnExtError, match="must be lower case letters"):
            register_statistic(name)
    with pytest.raises(AttnExtError, match="must be a subclass of HeadStatistic"):
        register_statistic("toy")(int)

    class Untitled(HeadStatistic):
        description = "no title"

    with pytest.raises(AttnExtError, match="Untitled has no title"):
        register_statistic("toy")(Untitled)

    class Other(PairStatistic):
        title = description = "another"

    with pytest.raises(AttnExtError, match="'neighbours' is already registered by neighbours"):
        register_statistic("neighbours")(Other)
    assert "toy" not in list_statistics()
