"""The fetched weights and texts are what they claim to be, and a failure is one line that leaves nothing behind."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertModel

from benchmarks import assets
from benchmarks.assets import __main__ as command
from benchmarks.assets import packages
from benchmarks.assets.rxnfp import unmapped

ROOT = Path(__file__).parents[2]


def read(name):
    with open(assets.ensure("reviews") / f"{name}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.real
def test_reviews_are_split_by_film_and_rated_from_minus_to_plus_four():
    parts = {name: read(name) for name in ("train", "validation", "test")}
    films = {name: {row["movie"] for row in rows} for name, rows in parts.items()}
    assert not films["train"] & films["test"] and not films["train"] & films["validation"]
    assert not films["validation"] & films["test"]
    assert [len(rows) for rows in parts.values()] == [7278, 1048, 2128]
    texts = [row["text"] for rows in parts.values() for row in rows]
    assert len(set(texts)) == len(texts) and all(text.strip() == text != "" for text in texts)
    ratings = [float(row["label"]) for rows in parts.values() for row in rows]
    assert min(ratings) >= -4 and max(ratings) <= 4 and abs(sum(ratings) / len(ratings)) < 0.1


@pytest.mark.real
@torch.no_grad()
def test_minilm_is_the_same_function_as_the_bert_it_came_from():
    """Built back into BERT's classes (without the row of positions that RoBERTa keeps for padding): no difference."""
    folder = assets.ensure("minilm")
    roberta, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    same = {name: getattr(roberta.config, name) for name in ("vocab_size", "hidden_size", "num_hidden_layers")}
    same |= {
        name: getattr(roberta.config, name) for name in ("num_attention_heads", "intermediate_size", "layer_norm_eps")
    }
    bert = BertModel(BertConfig(**same, max_position_embeddings=512)).eval()
    weights = dict(roberta.state_dict())
    positions = weights["embeddings.position_embeddings.weight"]
    assert not positions[0].any()
    weights["embeddings.position_embeddings.weight"] = positions[1:]
    bert.load_state_dict(weights)
    batch = tokenizer(["A man is playing a guitar.", "x", "One more sentence, longer than both."], padding=True)
    assert batch.keys() == {"input_ids", "attention_mask"}
    assert batch["input_ids"][0][:2] == [101, 1037]
    batch = {name: torch.tensor(rows) for name, rows in batch.items()}
    real = batch["attention_mask"].bool()
    assert torch.equal(roberta(**batch).last_hidden_state[real], bert(**batch).last_hidden_state[real])


@pytest.mark.real
def test_addresses_are_split_by_year():
    parts = {}
    for name in ("train", "validation", "test"):
        lines = (assets.ensure("sotu") / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        parts[name] = [json.loads(line) for line in lines]
    assert [len(rows) for rows in parts.values()] == [214, 13, 22]
    years = [{row["year"] for row in rows} for rows in parts.values()]
    assert [len(part) for part in years] == [196, 11, 22] and len(set.union(*years)) == 229
    assert len({row["address"] for rows in parts.values() for row in rows}) == 249
    assert all(row["text"].strip() == row["text"] and len(row["text"]) > 2000 for row in parts["test"])
    assert [sum(len(row["text"]) for row in rows) // 100_000 for rows in parts.values()] == [102, 6, 12]


@pytest.mark.real
@torch.no_grad()
def test_mgm_predicts_genera_and_knows_the_beginning_and_the_end():
    model, tokenizer = (auto.from_pretrained(assets.ensure("mgm")) for auto in (AutoModelForCausalLM, AutoTokenizer))
    text = "g__Bacteroides g__Faecalibacterium g__Roseburia g__Blautia g__Ruminococcus"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert ids[0, 0] == model.config.bos_token_id == 2 and ids[0, -1] == model.config.eos_token_id == 3
    assert tokenizer.decode(ids[0], skip_special_tokens=True) == text
    losses = [float(model.eval()(x, labels=x).loss) for x in (ids, (ids * 7919) % 9669)]
    assert losses[0] < 6 < losses[1]  # genera that live together, and as many drawn by a formula; log 9669 is 9.2


def test_an_asset_that_is_there_is_not_built_again(tmp_path, monkeypatch):
    calls = []

    def build(folder):
        calls.append(folder)
        (folder / "file").write_text("content")

    monkeypatch.setenv("HF_ATTN_EXT_ASSETS", str(tmp_path))
    monkeypatch.setitem(assets.BUILDERS, "toy", ("toy-folder", build))
    assert assets.ensure("toy") == assets.ensure("toy") == tmp_path / "toy-folder"
    assert len(calls) == 1 and (tmp_path / "toy-folder" / "file").read_text() == "content"


def test_an_interrupted_build_leaves_nothing_behind(tmp_path, monkeypatch):
    def build(folder):
        (folder / "half").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setenv("HF_ATTN_EXT_ASSETS", str(tmp_path))
    monkeypatch.setitem(assets.BUILDERS, "toy", ("toy-folder", build))
    with pytest.raises(KeyboardInterrupt):
        assets.ensure("toy")
    assert list(tmp_path.iterdir()) == []


def test_the_slower_of_two_builders_takes_the_other_s_folder(tmp_path, monkeypatch):
    def build(folder):
        (folder / "mine").touch()
        (tmp_path / "toy-folder").mkdir()
        (tmp_path / "toy-folder" / "theirs").touch()

    monkeypatch.setenv("HF_ATTN_EXT_ASSETS", str(tmp_path))
    monkeypatch.setitem(assets.BUILDERS, "toy", ("toy-folder", build))
    assert [path.name for path in assets.ensure("toy").iterdir()] == ["theirs"]
    assert [path.name for path in tmp_path.iterdir()] == ["toy-folder"]


def test_a_changed_archive_is_refused(tmp_path, monkeypatch):
    def pip(command, **_):
        Path(command[command.index("--dest") + 1], "toy-1.0-py3-none-any.whl").write_bytes(b"not what was asked for")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(packages.subprocess, "run", pip)
    with pytest.raises(assets.AssetError, match=r"toy 1.0, but its sha256 is not 0123"):
        packages.download(packages.Package("toy", "1.0", "0123" * 16), tmp_path)


def test_a_registry_out_of_reach_is_one_line(tmp_path):
    environment = {**os.environ, "HF_ATTN_EXT_ASSETS": str(tmp_path / "assets"), "PIP_INDEX_URL": "http://127.0.0.1:9/"}
    environment |= {"PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INPUT": "1"}
    environment.pop("PIP_EXTRA_INDEX_URL", None)
    arguments = [sys.executable, "-m", "benchmarks.assets", "sapiens"]
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "sapiens 1.0.2" in done.stderr and "connection" in done.stderr
    assert list((tmp_path / "assets").iterdir()) == []


def test_an_unknown_asset_is_one_line(capsys):
    assert command.main(["minilmm"]) == 2
    known = ", ".join(assets.BUILDERS)
    assert capsys.readouterr().err == f"assets: unknown asset 'minilmm'; there are: {known}\n"


@pytest.mark.parametrize(
    ("mapped", "bare"),
    [
        ("[OH:5][CH3:1]>>[O-:5][c:2]1[nH:3]cccc1", "OC>>[O-]c1[nH]cccc1"),
        ("Br[CH2:1][C@@H:2]([Cl:3])[N+:14](=[O:15])[O-:16]", "BrC[C@@H](Cl)[N+](=O)[O-]"),
        ("[Si:26]([CH3:27])[13CH3:9].[NH3:40].[Mg+]", "[Si](C)[13CH3].N.[Mg+]"),
        ("[n:4][pH:3][s:1]", "n[pH]s"),
    ],
)
def test_map_numbers_are_taken_away(mapped, bare):
    assert unmapped(mapped) == bare


@pytest.mark.real
@torch.no_grad()
def test_the_reaction_model_knows_what_is_hidden():
    """Where it was fetched: no unknown token, and of the masked tokens nine in ten are guessed."""
    folder = assets.assets_root() / "rxnfp"
    if not folder.is_dir():
        pytest.skip("python -m benchmarks.assets rxnfp fetches it")
    model, tokenizer = (auto.from_pretrained(folder) for auto in (AutoModelForMaskedLM, AutoTokenizer))
    reactions = (folder / "reactions.txt").read_text(encoding="utf-8").splitlines()
    assert len(reactions) == len(set(reactions)) == 47449 and all(one.count(">>") == 1 for one in reactions)
    torch.manual_seed(0)
    right = masked = 0
    for reaction in reactions[::1500]:
        ids = tokenizer(reaction, return_tensors="pt")["input_ids"]
        assert tokenizer.unk_token_id not in ids
        hidden = torch.rand(ids.shape) < 0.15
        hidden[:, 0] = hidden[:, -1] = False
        guessed = model.eval()(ids.masked_fill(hidden, tokenizer.mask_token_id)).logits.argmax(-1)
        right, masked = right + int((guessed == ids)[hidden].sum()), masked + int(hidden.sum())
    assert right / masked > 0.88


def test_large_assets_are_fetched_only_by_name(monkeypatch):
    asked = []
    monkeypatch.setattr(command, "ensure", lambda name: asked.append(name))
    assert command.main([]) == 0 and asked == ["minilm", "reviews", "sapiens", "sotu", "mgm"]
    assert command.main(["rxnfp"]) == 0 and asked[-1] == "rxnfp"
