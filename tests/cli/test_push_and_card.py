"""``hf-attn-ext push`` and ``card`` on a really converted folder."""

import hashlib
import json
import os
import subprocess
import sys

from tests.hub.double import TOKEN, HubDouble

RESULTS = {"scores": {"stage2": {"accuracy": 0.75}}, "data": {"name": "reviews"}, "base_model": "org/base"}


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_dry_run_lists_names_sizes_and_digests_and_sends_nothing(run, converted):
    (converted / "optimizer.pt").write_bytes(b"never")
    done = run("push", converted, "me/it", "--dry-run")
    assert done.code == 0 and done.err == ""
    lines = [line.split() for line in done.out.splitlines()[:-1]]
    names = {name for name, _, _ in lines}
    assert names >= {"config.json", "model.safetensors", "attn_ext_manifest.json", "modeling_attn_ext.py"}
    assert names >= {"tokenizer.json", "tokenizer_config.json"} and "optimizer.pt" not in names
    for name, size, sha256 in lines:
        assert int(size.replace(",", "")) == (converted / name).stat().st_size
        assert sha256 == digest(converted / name)
    assert "nothing was sent" in done.out.splitlines()[-1]


def test_mistakes(run, converted, masked_lm, tmp_path):
    assert "'no-such'" in run("push", "no-such", "me/it", "--dry-run").mistake()
    assert "'me/a b'" in run("push", converted, "me/a b", "--dry-run").mistake()
    assert "base model" in run("push", masked_lm, "me/it", "--dry-run").mistake()
    weights = converted / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    assert str(weights) in run("push", converted, "me/it", "--dry-run").mistake()


def test_offline_is_one_line(run, converted):
    """The tests run with HF_HUB_OFFLINE=1: the command must say that, not print a traceback."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_TOKEN": "hf_x", "PYTHONPATH": os.getcwd()}
    words = ["push", str(converted), "me/it"]
    code = "from hf_attn_ext_launcher import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment, timeout=180
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "'me/it'" in done.stderr, done.stderr
    assert "offline" in done.stderr.lower()


def test_what_the_command_uploads_opens_again_and_gives_the_same_logits(run, converted, tmp_path):
    """Up through the double, down by name through the double, in fresh processes."""
    with HubDouble() as hub:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_"))}
        environment |= {
            "HF_ENDPOINT": hub.url,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(tmp_path / "hf-home"),
            "HF_TOKEN": TOKEN,
            "PYTHONPATH": os.getcwd(),
        }

        def process(code, *words):
            done = subprocess.run(
                [sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment, timeout=240
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        listed = run("push", converted, "me/it", "--dry-run").out.splitlines()[:-1]
        out = process("from hf_attn_ext_launcher import run; run()", "push", str(converted), "me/it", "--private")
        assert out.splitlines()[:-1] == listed and f"{hub.url}/me/it/commit/" in out.splitlines()[-1]
        stored = hub.repos["me/it"]
        assert sorted(stored) == sorted(line.split()[0] for line in listed)
        for name, content in stored.items():
            assert content == (converted / name).read_bytes()
        folder = tmp_path / "stored"
        folder.mkdir()
        for name, content in stored.items():
            (folder / name).write_bytes(content)
        load = (
            "import json, sys, torch{0}; from transformers import AutoModelForMaskedLM as Auto\n"
            "for name in sys.argv[1:]:\n"
            "    model = Auto.from_pretrained(name{1}).eval(); assert model.config.attn_ext\n"
            "    print(json.dumps(model(input_ids=torch.tensor([[2, 5, 6, 3]])).logits.flatten().tolist()))"
        )
        names = (str(converted), str(folder), "me/it")
        first, *others = process(load.format(", hf_attn_ext", ""), *names).splitlines()
        others += process(load.format("", ", trust_remote_code=True"), "me/it").splitlines()
        assert json.loads(first) and others == [first] * 3


def test_card_from_a_runs_results(run, converted, tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    done = run("card", converted)
    assert done.code == 0 and str(converted / "README.md") in done.out
    card = (converted / "README.md").read_text()
    assert "0.7500" in card and "base_model: org/base" in card
    shown = run("card", converted, "--show", "--results", tmp_path / "results.json")
    assert shown.out.rstrip() == card.rstrip()
    assert run("card", converted, "--out", tmp_path / "card.md").code == 0
    assert (tmp_path / "card.md").read_text() == card


def test_card_without_results_says_so(run, converted):
    done = run("card", converted)
    assert done.code == 0 and "without measured numbers" in done.out
    assert "Nothing was measured" in (converted / "README.md").read_text()


def test_card_mistakes_keep_the_old_card(run, converted, masked_lm, tmp_path):
    (converted / "README.md").write_text("old")
    bad = tmp_path / "bad.json"
    bad.write_text('{"scores": {"stage2": {"accuracy": "high"}}}')
    assert "'high'" in run("card", converted, "--results", bad).mistake()
    bad.write_text("{")
    assert str(bad) in run("card", converted, "--results", bad).mistake()
    assert "no-such.json" in run("card", converted, "--results", tmp_path / "no-such.json").mistake()
    assert "no-such/card.md" in run("card", converted, "--out", tmp_path / "no-such" / "card.md").mistake()
    assert "base model" in run("card", masked_lm).mistake()
    assert (converted / "README.md").read_text() == "old"
