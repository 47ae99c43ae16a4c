"""An assets folder with a tiny model and generated sentences under the names of the real ones."""

import pytest
from transformers.utils import logging

from tests.training import small, small_gpt

logging.disable_progress_bar()


@pytest.fixture
def tiny_assets(tmp_path, monkeypatch):
    """Make every example find the tiny model and texts where it looks for the real ones; return the folder."""
    root = tmp_path / ".assets"
    small.save_model(root / "minilm-roberta", max_position_embeddings=140)
    for seed, (name, count) in enumerate((("train", 120), ("validation", 60), ("test", 60))):
        rows = small.rows(count, seed=seed, regression=True)
        rows = [{**row, "movie": f"{name}-{i % 3}"} for i, row in enumerate(rows)]  # enough of a film to fill a page
        small.save_csv(root / "reviews" / f"{name}.csv", rows)
    monkeypatch.setenv("HF_ATTN_EXT_ASSETS", str(root))
    monkeypatch.chdir(tmp_path)
    return root


@pytest.fixture
def tiny_texts(tmp_path, monkeypatch):
    """Small documents and a tiny GPT under the names of the real ones."""
    root = tmp_path / ".assets"
    for seed, (name, count) in enumerate((("train", 60), ("validation", 12), ("test", 12))):
        small_gpt.save_jsonl(root / "sotu" / f"{name}.jsonl", small_gpt.documents(count, seed))
    small_gpt.save_model(root / "mgm", n_positions=96, vocab_size=24, bos_token_id=1, eos_token_id=2, pad_token_id=3)
    small_gpt.save_tokenizer(root / "mgm", bos_token="<bos>", eos_token="<eos>", pad_token="<pad>")
    monkeypatch.setenv("HF_ATTN_EXT_ASSETS", str(root))
    monkeypatch.chdir(tmp_path)
    return root
