"""``bench decode`` at a tiny size: the report, and that the models really decode from their caches."""

import json

import pytest
import torch

from benchmarks.speed.attention import decode
from benchmarks.speed.attention.contestants import Workload
from benchmarks.speed.attention.decode import DecodeBench, bench_decode

TINY = ("--layers", 2, "--heads", 2, "--head-dim", 4, "--feature-dim", 8, "--repeats", 2, "--threads", 1)


@pytest.fixture(autouse=True)
def _small_vocabulary(monkeypatch):
    monkeypatch.setattr(decode, "VOCABULARY", 50)


def test_the_report(run, tmp_path):
    words = ("--contexts", "8,16,600", "--kernels", "flexformer_p,cosformer", "--new-tokens", 3, "--prompt", 4)
    done = run("bench", "decode", *TINY, *words, "--out", tmp_path)
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "decode.json").read_text())
    assert report["complete"] and [row["name"] for row in report["rows"]] == ["sdpa", "flexformer_p", "cosformer"]
    for row in report["rows"]:
        assert len(row["seconds"]) == 3 and all(x["median"] > 0 for x in row["seconds"])
        assert (row["crossover"] is None) == (row["name"] == "sdpa")
        assert row["note"]
    stock, ours, _ = (row["state_bytes"] for row in report["rows"])
    tokens = [8 + 3, 16 + 3, 600 + 3]  # a warm-up and two timed steps
    assert stock == [2 * 2 * 2 * 4 * 4 * n for n in tokens]  # layers, keys and values, heads, width, bytes
    assert ours[0] == ours[1] == ours[2] > 0
    assert [row["name"] for row in report["short"]["rows"]] == ["sdpa", "flexformer_p", "cosformer"]
    assert (tmp_path / "decode.png").read_bytes().startswith(b"\x89PNG")
    for part in ("state, MiB", "faster from", "3 tokens after a prompt of 4", "DynamicCache", "LinearCache"):
        assert part in done.out


def test_steps_continue_the_text_that_filled_the_cache():
    work = Workload(heads=2, head_dim=4, feature_dim=8)
    settings = DecodeBench((700,), layers=2, workload=work, repeats=2)
    decoder = decode._decoders(settings)["flexformer_p"]
    seen = []
    forward = decoder.model.forward
    decoder.model.forward = lambda **inputs: seen.append(inputs["input_ids"]) or forward(**inputs)
    decoder.fill(700)
    decoder.step()
    assert [x.shape[1] for x in seen] == [512, 188, 1] and decoder.cache.get_seq_length() == 701
    with torch.no_grad():
        logits = forward(input_ids=torch.cat(seen, 1), use_cache=False).logits
    assert torch.equal(logits[:, -1:].argmax(-1), decoder.token)
    assert torch.equal(logits[:, -2:-1].argmax(-1), seen[-1])


def test_both_models_have_the_same_weights_and_generate_asks_for_all_tokens():
    settings = DecodeBench((8,), layers=1, workload=Workload(heads=2, head_dim=4, feature_dim=8), repeats=1)
    stock, ours = decode._decoders(settings).values()
    state = ours.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in stock.model.state_dict().items())
    counted = []
    for decoder in (stock, ours):
        generate = decoder.model.generate
        decoder.model.generate = lambda *a, generate=generate, **k: counted.append(generate(*a, **k).shape)
        decoder.generate(torch.ones(1, 3, dtype=torch.long), 5)
    assert counted == [(1, 8), (1, 8)]


def test_a_cache_that_is_fuller_than_the_next_context_stays_as_it_is():
    work = Workload(heads=1, head_dim=4, feature_dim=8)
    report = bench_decode(DecodeBench((4, 5, 6), ("elu",), 1, work, repeats=3, new_tokens=0))
    assert report["short"] is None and report["rows"][0]["state_bytes"] == [2 * 4 * 4 * n for n in (8, 12, 16)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--contexts", "8,4"], ["--contexts must increase, got 4 after 8"]),
        (["--contexts", "0"], ["--contexts must be at least 1"]),
        (["--kernels", "flexformer"], ["'flexformer'", "'flexformer_"]),
        (["--kernels", "elu,elu"], ["named twice"]),
        (["--device", "cuda"], ["no CUDA device"]),
        (["--layers", "0"], ["layers"]),
        (["--new-tokens", "-1"], ["new-tokens"]),
    ],
)
def test_mistakes_are_one_line(run, tmp_path, monkeypatch, words, said):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    message = run("bench", "decode", *words, "--out", tmp_path / "out").mistake()
    for part in said:
        assert part in message
