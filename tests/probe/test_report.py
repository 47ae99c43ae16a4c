"""The report: one file that needs nothing else, with the statistics' own numbers in it."""

import base64
import html
import json
import re

import numpy as np
import planted
import pytest
import torch

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe import ContextSimilarityProbe, findings, write_report
from hf_attn_ext.probe.counting.high_pairs import high_pairs
from hf_attn_ext.probe.counting.similarity import pairs_of
from hf_attn_ext.probe.report import report as report_module
from hf_attn_ext.probe.report.browser import browse, choose_texts
from hf_attn_ext.probe.report.figures import draw, save_figures
from hf_attn_ext.probe.streaming import stream

TEXTS = planted.make_texts(24)


@pytest.fixture(scope="module")
def probe():
    with ContextSimilarityProbe(planted.small_bert(), planted.word_tokenizer(), sample=1) as probe:
        probe.feed(TEXTS)
    return probe


@pytest.fixture(scope="module")
def drawings(probe):
    return draw(probe.statistics())


@pytest.fixture(scope="module")
def browsed(probe):
    return browse(probe.model, probe.tokenizer, ["</script><script>alert(1)</script> " + TEXTS[0], TEXTS[1]])


@pytest.fixture(scope="module")
def page(probe, drawings, browsed, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    given = {"model": "a <b>model</b>", "command": "hf-attn-ext probe m"}
    write_report(probe.statistics(), path, browser=browsed, provenance=given, title="T & T", drawings=drawings)
    return path.read_text(encoding="utf-8")


def test_the_report_needs_nothing_else(page):
    assert not re.search(r"""https?:|["'(]//|@import|url\(""", page)
    sources = re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)""", page)
    assert sources and all(source.startswith(("data:image/svg+xml;base64,", "#")) for source in sources)
    assert len(page.encode()) < report_module.LIMIT
    assert "a &lt;b&gt;model&lt;/b&gt;" in page and "T &amp; T" in page and "<script>alert" not in page
    targets = set(re.findall(r'id="([^"]+)"', page))
    assert all(source[1:] in targets for source in sources if source.startswith("#"))
    assert set(re.findall(r'at\("([^"]+)"\)', page)) <= targets


def test_findings_stand_in_it(page, probe):
    text = html.unescape(page)
    for one in findings(probe.statistics()):
        assert one.text in text and one.claim in text


def test_the_browser_has_the_matrices(page, probe, browsed):
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1))
    assert data["layers"] == [0, 1] and data["heads"] == [0, 1] and len(data["texts"]) == 2
    shown = data["texts"][1]
    with ContextSimilarityProbe(probe.model, probe.tokenizer, keep=("matrices",)) as kept:
        kept.feed([TEXTS[1]])
    length = len(shown["tokens"])
    assert length == 32 and shown["sentences"] == sorted(shown["sentences"]) and max(shown["sentences"]) == 3
    assert not shown["shortened"] and shown["tokens"][-1] == "."
    flat = pairs_of(length)[2]
    values = np.frombuffer(base64.b64decode(shown["values"]), dtype=np.uint8).reshape(2, 2, len(flat))
    high = np.frombuffer(base64.b64decode(shown["high"]), dtype="<u2").reshape(2, 2, shown["highCount"])
    for layer in range(2):
        matrix = kept.matrices(layer)[0, :, 1:-1, 1:-1].reshape(2, -1).numpy()[:, flat]
        scale = np.array(shown["scales"][layer])[:, None]
        roots = (values[layer].astype(float) - 128) / 127
        assert np.abs(roots * np.abs(roots) - matrix / scale).max() < 0.01
        for head in range(2):
            best = set(np.argsort(-matrix[head])[: shown["highCount"]].tolist())
            assert set(high[layer, head].tolist()) == best


@torch.no_grad()
def test_the_browser_breaks_ties_as_the_statistics_do(tokenizer, monkeypatch):
    model = planted.small_bert()
    for layer in model.encoder.layer:  # every token's output is the same
        layer.attention.self.value.weight.zero_()
        layer.attention.self.value.bias.fill_(1.0)
    counted = []
    monkeypatch.setattr(stream, "high_pairs", lambda *given: counted.append(high_pairs(*given)) or counted[-1])
    with ContextSimilarityProbe(model, tokenizer, percents=(1,), controls=(), seed=3) as probe:
        probe.feed([TEXTS[0]])
    shown = browse(model, tokenizer, [TEXTS[0]], seed=3)[0]
    assert np.array_equal(shown.high, np.sort(np.stack(counted), axis=2))


def test_browsed_texts_fit_the_budget(probe):
    small = browse(probe.model, probe.tokenizer, TEXTS[:4], budget=3000)
    assert all(one.shortened for one in small)
    assert sum(len(one.to_dict()["values"]) for one in small) <= 3000
    assert browse(probe.model, probe.tokenizer, TEXTS[:2], budget=10) == []
    for wrong, message in (({"boundaries": []}, "boundaries must be"), ({"percent": 0}, "percents must be numbers")):
        with pytest.raises(AttnExtError, match=message):
            browse(probe.model, probe.tokenizer, TEXTS[:1], **wrong)


def test_texts_are_chosen_evenly_and_with_sentences():
    texts = ["One sentence."] * 3 + ["Two here. Yes."] + ["One sentence again."] * 3 + ["Two. More."]
    assert choose_texts(texts, 2) == ["Two here. Yes.", "Two. More."]
    assert choose_texts(["A."], 3) == ["A."] and choose_texts(["A. B."], 0) == []


def test_figures_are_the_same_bits_again(probe, drawings, tmp_path):
    again = draw(probe.statistics())
    assert [one.name for one in again] == [one.name for one in drawings]
    assert {"map-within_sentence", "curve-distance", "controls-within_sentence", "distances"} <= {d.name for d in again}
    few = [one for one in again if one.name in ("map-noise", "curve-noise", "distances")]
    assert all(one.svg == next(d for d in drawings if d.name == one.name).svg for one in few)
    written = save_figures(few[:1], tmp_path / "figures")
    assert [path.suffix for path in written] == [".png", ".svg"] and all(path.stat().st_size > 2000 for path in written)
    first = written[0].read_bytes()
    save_figures(few[:1], tmp_path / "figures")
    assert written[0].read_bytes() == first


def test_a_browser_that_is_too_large_is_left_out_and_said(probe, drawings, browsed, tmp_path, monkeypatch):
    monkeypatch.setattr(report_module, "LIMIT", 100)
    path = write_report(probe.statistics(), tmp_path / "r.html", browser=browsed, drawings=drawings[:1])
    assert 'id="data"' not in path.read_text() and "left out" in path.read_text()


def test_report_of_a_probe(probe, tmp_path, monkeypatch):
    monkeypatch.setattr(report_module, "draw", lambda statistics: [])
    path = probe.report(tmp_path / "r.html", TEXTS[:1], title="Mine")
    assert "<title>Mine</title>" in path.read_text() and 'id="data"' in path.read_text()
    assert probe.statistics().counts["texts"] == len(TEXTS)
    with probe, pytest.raises(AttnExtError, match="after the block"):
        probe.report(tmp_path / "r.html", TEXTS[:1])
    with pytest.raises(AttnExtError, match="cannot write"):
        probe.report(tmp_path / "none" / "r.html")
