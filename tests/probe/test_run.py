"""Runs over files: the statistics of the probe, exactly resumable, and folders that are never half or another's."""

import dataclasses
import errno
import json
import os
import resource
import uuid
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import planted
import pyarrow.parquet
import pytest
import torch
import yaml

import hf_attn_ext as hax
from hf_attn_ext._util import files
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe import ContextSimilarityProbe, ProbeConfig, ProbeStatistics, load_probe_config
from hf_attn_ext.probe import run as run_module
from hf_attn_ext.probe.report import report as report_module
from hf_attn_ext.probe.report.figures import draw
from hf_attn_ext.probe.run import provenance, run_statistics, write_rows

TEXTS = planted.make_texts(10) + planted.make_texts(5, sentences=2, seed=1)


@pytest.fixture
def config(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    files = [str(tmp_path / "texts.txt")]
    return ProbeConfig("tiny", files, str(tmp_path / "out"), batch_size=2, save_every=4, sample=0.5, bootstrap=8)


def run(config, model=None):
    return run_statistics(model or planted.small_bert(), planted.word_tokenizer(), config)


def fed(monkeypatch, stop_at=None):
    """Count the texts that are fed; break off before the batches of call ``stop_at``."""
    seen, feed = [], ContextSimilarityProbe.feed

    def counted(self, texts, *rest, **options):
        if len(seen) == stop_at:
            raise KeyboardInterrupt
        seen.append(feed(self, texts, *rest, **options))
        return seen[-1]

    monkeypatch.setattr(ContextSimilarityProbe, "feed", counted)
    return seen


def test_a_run_has_the_statistics_of_the_probe(config):
    found = run(config).statistics
    with ContextSimilarityProbe(planted.small_bert(), planted.word_tokenizer(), sample=0.5, bootstrap=8) as probe:
        probe.feed(TEXTS, 2)
    expected = probe.statistics()
    assert found.counts == expected.counts
    for one, two in zip(found.statistics, expected.statistics, strict=True):
        assert np.array_equal(one.values, two.values, equal_nan=True)


def test_a_run_that_was_broken_off_goes_on_to_the_same_bits(config, tmp_path, monkeypatch):
    whole = run(dataclasses.replace(config, out=str(tmp_path / "whole"))).statistics.to_json()
    with monkeypatch.context() as patched:
        seen = fed(patched, stop_at=2)
        with pytest.raises(KeyboardInterrupt):
            run(config)
        assert seen == [4, 4]
    with monkeypatch.context() as patched:
        seen = fed(patched)
        assert run(config).statistics.to_json() == whole
        assert sum(seen) == len(TEXTS) - 8
    with monkeypatch.context() as patched:
        seen = fed(patched)
        assert run(dataclasses.replace(config, save_every=100)).statistics.to_json() == whole
        assert seen == []


@pytest.mark.parametrize(
    ("change", "said"),
    [({"seed": 1}, "seed was 0, is now 1"), ({"batch_size": 3}, "batch_size was 2, is now 3"), ({"limit": 3}, "limit")],
)
def test_another_setting_is_refused_by_name(config, change, said):
    run(config)
    with pytest.raises(AttnExtError, match=said):
        run(dataclasses.replace(config, **change))


def test_other_weights_and_other_texts_are_refused(config, tmp_path):
    run(config)
    model = planted.small_bert()
    with torch.no_grad():
        model.encoder.layer[1].output.dense.weight += 1e-3
    with pytest.raises(AttnExtError, match="weights of the model"):
        run(config, model)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:-1]) + "\n")
    with pytest.raises(AttnExtError, match="content of the texts"):
        run(config)


@pytest.mark.parametrize("change", ["buffer", "mask", "backend"])
def test_another_buffer_mask_or_backend_is_refused(config, change):
    """Values that are no parameters and still change context similarity, such as a kernel's random directions."""
    run(config)
    model, said = planted.small_bert(), "configuration of the model"
    if change == "buffer":
        model.register_buffer("directions", torch.ones(3), persistent=False)
        said = "weights of the model"
    elif change == "mask":
        hax.set_mask(model, "causal")
    else:
        model.set_attn_implementation("eager")
    with pytest.raises(AttnExtError, match=said):
        run(config, model)


def test_half_a_character_is_named(config, tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": "word1 word2"}\n{"text": "word1 \\ud800"}\n')
    with pytest.raises(AttnExtError, match=r"line 2: character 6 is '\\ud800', half of a surrogate pair"):
        run(dataclasses.replace(config, texts=[str(tmp_path / "texts.jsonl")]))


def test_a_full_disk_leaves_the_state_before_it(config, monkeypatch):
    saved, savez = [], np.savez

    def full(file, **arrays):
        saved.append(1)
        if len(saved) == 2:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        savez(file, **arrays)

    with monkeypatch.context() as patched:
        patched.setattr(np, "savez", full)
        with pytest.raises(AttnExtError, match=r"cannot write .*No space left"):
            run(config)
    assert os.listdir(Path(config.out) / "state") == ["0-of-1.npz"]
    with monkeypatch.context() as patched:
        seen = fed(patched)
        run(config)
        assert sum(seen) == len(TEXTS) - 4


def test_a_full_disk_leaves_no_half_of_what_is_written_at_the_end(config, tmp_path, monkeypatch):
    """At each file in turn, the system takes its first bytes and no more."""
    few = []
    monkeypatch.setattr(run_module, "draw", lambda statistics: few or few.extend(draw(statistics)[:2]) or few)
    monkeypatch.setattr(report_module, "draw", run_module.draw)
    model, tokenizer = planted.small_bert(), planted.word_tokenizer()
    finished = run(config, model)
    whole = [path.relative_to(finished.folder) for path in run_module.write_run(finished, model, tokenizer)]
    assert len(whole) == 7 and whole[-1].name == "report.html"
    expected = {path: (finished.folder / path).read_bytes() for path in whole}
    before, limits = [], resource.getrlimit(resource.RLIMIT_FSIZE)

    def named():
        before.append(1)
        if len(before) == full_at:
            resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
        return uuid.uuid4()

    monkeypatch.setattr(files, "uuid", SimpleNamespace(uuid4=named))
    for number, path in enumerate(whole):
        before.clear()
        full_at = number + 1
        again = dataclasses.replace(finished, folder=tmp_path / f"full{number}")
        again.folder.mkdir()
        try:
            with pytest.raises(AttnExtError, match=rf"cannot write '.*{path.name}': \w") as caught:
                run_module.write_run(again, model, tokenizer)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "\n" not in str(caught.value)
        left = {each.relative_to(again.folder) for each in again.folder.rglob("*") if each.is_file()}
        assert left == set(whole[:number])
        assert all((again.folder / each).read_bytes() == expected[each] for each in left)


def test_texts_without_pairs_leave_the_folder_free(config, tmp_path):
    (tmp_path / "short.txt").write_text("word1\nword2\n")
    short = dataclasses.replace(config, texts=[str(tmp_path / "short.txt")])
    with pytest.raises(AttnExtError, match="2 texts, each of one token or none that is not special: there are no"):
        run(short)
    assert not Path(config.out).exists()
    run(config)


def test_folders_of_others_and_damaged_states_are_refused(config, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    with pytest.raises(AttnExtError, match=r"holds something else .*thesis.tex"):
        run(dataclasses.replace(config, out=str(tmp_path / "other")))
    with pytest.raises(AttnExtError, match="is a file"):
        run(dataclasses.replace(config, out=str(tmp_path / "texts.txt")))
    with pytest.raises(AttnExtError, match=r"cannot (read|write)|Not a directory"):
        run(dataclasses.replace(config, out=str(tmp_path / "texts.txt" / "below")))
    run(config)
    (tmp_path / "out" / "state" / "0-of-1.npz").write_bytes(b"PK half")
    with pytest.raises(AttnExtError, match="damaged"):
        run(config)


def test_long_texts_are_found_before_the_run_or_cut(config, tmp_path, monkeypatch):
    seen = fed(monkeypatch)
    with pytest.raises(AttnExtError, match=r"texts.txt, line 1: a text of 34 tokens, at most 20"):
        run(dataclasses.replace(config, max_length=20))
    assert seen == [] and not (tmp_path / "out").exists()
    with pytest.raises(AttnExtError, match="the model takes 64"):
        run(dataclasses.replace(config, max_length=100))
    cut = run(dataclasses.replace(config, max_length=20, truncation=True))
    assert cut.statistics.counts["tokens"] == 18 * 10 + 16 * 5
    parts = run(dataclasses.replace(config, out=str(tmp_path / "parts"), words=6))
    assert parts.statistics.counts["texts"] == len(parts.corpus) > len(TEXTS)


def test_asked_for_two_processes_one_stops(config):
    with pytest.raises(AttnExtError, match=r"asks for 2 processes, but 1 runs.*torchrun.*hf_attn_ext.cli probe"):
        run(dataclasses.replace(config, processes=2))


def test_models_without_heads_to_tell_apart_and_empty_choices(config):
    with pytest.raises(AttnExtError, match="no layer matches 7"):
        run(dataclasses.replace(config, layers=[7]))
    with pytest.raises(AttnExtError, match="holds no transformers model"):
        run(config, torch.nn.Linear(2, 2))
    with pytest.raises(AttnExtError, match="'tiny' has no tokenizer"):
        run_statistics(planted.small_bert(), None, config)


def test_parquet_has_the_rows(config, tmp_path):
    statistics = run(config).statistics
    write_rows(statistics, tmp_path / "rows.parquet")
    rows = pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    for read, written in zip(rows, statistics.rows(), strict=True):
        assert read.keys() == written.keys() and read["name"] == written["name"] and read["head"] == written["head"]
        assert np.array_equal(read["value"], written["value"], equal_nan=True)


def test_settings_from_yaml_and_their_command(tmp_path):
    path = tmp_path / "probe.yaml"
    path.write_text("model: m\ntexts: [a b.txt]\nout: o\nwords: 90\npercents: [1, 2.5]\ncontrols: []\n")
    config = load_probe_config(path, ["seed=3"], {"out": "p"})
    assert (config.words, config.percents, config.seed, config.out) == (90, [1.0, 2.5], 3, "p")
    command = "hf-attn-ext probe m --texts 'a b.txt' --out p --words 90 --percents 1,2.5 --set controls=[] --seed 3"
    assert config.command().replace("'controls=[]'", "controls=[]") == command
    assert ProbeConfig(**config.to_dict()) == config
    for content, said in {
        "model: m\ntexts: [a]\nout: o\nmax_lenght: 3\n": "unknown field 'max_lenght'. Did you mean 'max_length'",
        "model: m\ntexts: []\nout: o\n": "texts names no file",
        "model: m\nout: o\n": "field 'texts' is missing",
        "model: m\ntexts: [a]\nout: o\nwords: 0\n": "words must be a whole number of at least 1",
        "model: [": "no|not valid YAML",
    }.items():
        path.write_text(content)
        with pytest.raises(AttnExtError, match=said):
            load_probe_config(path)
    with pytest.raises(AttnExtError, match="--texts FILE is missing"):
        load_probe_config(given={"model": "m", "out": "o"})


def test_the_example_configuration_has_every_field():
    path = Path(__file__).parents[2] / "configs/probe/sotu_minilm.yaml"
    assert set(yaml.safe_load(path.read_text())) == {field.name for field in dataclasses.fields(ProbeConfig)}
    load_probe_config(path)


def test_the_written_json_reads_back(config, tmp_path):
    statistics = run(config).statistics
    statistics.to_json(tmp_path / "statistics.json")
    assert ProbeStatistics.from_json(tmp_path / "statistics.json").to_json() == json.dumps(
        statistics.to_dict(), allow_nan=False
    )


def test_documents_are_cut_to_exactly_so_many_tokens(config):
    found = run(dataclasses.replace(config, tokens=12))
    counts = found.statistics.counts
    assert found.config.max_length == 12 and found.config.truncation
    assert counts["tokens"] == 10 * len(found.corpus) and counts["padding"] == 0 and counts["texts"] > 0
    assert "--tokens 12" in found.config.command()
    for fields, said in ({"words": 3}, "by words .3. or by tokens .12., not both"), ({"max_length": 9}, "leave max"):
        with pytest.raises(AttnExtError, match=said):
            dataclasses.replace(config, tokens=12, **fields)


def test_the_control_of_shuffled_tokens(config):
    plain = run(config).statistics
    other = dataclasses.replace(config, shuffle_tokens=True, out=config.out + "-shuffled")
    found = run(other)
    mixed = found.statistics
    counts = [{k: v for k, v in table.counts.items() if k != "sampled"} for table in (plain, mixed)]
    assert counts[0] == counts[1]
    assert "each one's tokens are shuffled" in provenance(found, planted.small_bert())["texts"]
    chance = [table.get("within_sentence").chance for table in (plain, mixed)]
    assert np.allclose(*chance)  # sentences have stayed
    assert not np.allclose(*[table.get("within_sentence").values for table in (plain, mixed)])


def test_segments_in_place_of_sentences(config):
    other = dataclasses.replace(config, boundaries=["word1 ", "word2 "], out=config.out + "-segments")
    found = run(other)
    assert "segments that end with word1  word2 " in provenance(found, planted.small_bert())["sentences"]
