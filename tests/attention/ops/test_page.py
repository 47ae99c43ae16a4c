"""What docs/evidence/linear-attention-over-orders.md says is run."""

import doctest
import importlib
import re
from pathlib import Path

import pytest
import torch
import typer

from benchmarks.speed import commands as benchmarks
from hf_attn_ext.attention import make_feature_map
from hf_attn_ext.hasse import masks
from hf_attn_ext.hasse.decomposition import chain_decomposition

DOCS = Path(__file__).resolve().parents[3] / "docs" / "evidence"
PAGE = (DOCS / "linear-attention-over-orders.md").read_text(encoding="utf-8")


def test_the_pages_code_runs():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    assert len(blocks) == 3
    names: dict = {}
    for block in blocks:
        exec(block, names)


def test_the_pages_pictures_are_there_and_small():
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", PAGE)
    assert len(pictures) == 3
    for picture in pictures:
        assert 0 < (DOCS / picture).stat().st_size < 150_000


def test_the_pages_command_is_one():
    command = re.search(r"^    python -m benchmarks.speed (order) ((?:--\S+ \S+ ?)+)", PAGE, re.M)
    order = typer.main.get_command(benchmarks.app).commands[command.group(1)]
    known = {name for parameter in order.params for name in parameter.opts}
    assert set(re.findall(r"--\S+", command.group(2))) <= known


def test_the_pages_table_of_chains():
    found = {
        "causal": masks.causal(9),
        "prefix_lm": masks.prefix_lm(9, 4),
        "bidirectional": masks.bidirectional(9),
        "block_two_stream": masks.block_two_stream(9, 4),
        "block_diffusion": masks.block_diffusion(9, 4),
        "butterfly": masks.butterfly(9),
    }
    chains = {name: len(chain_decomposition(spec).chains) for name, spec in found.items()}
    rows = re.findall(r"^\| (`.*?) \| (\d)(?: per document)?", PAGE, re.M)
    told = {name: int(count) for names, count in rows for name in re.findall(r"`(\w+)`", names)}
    assert told.pop("document") == 1 and told == chains


@pytest.mark.parametrize("name", ["linear", "order.order_attention", "order.plan", "order.product", "order.batched"])
def test_docstrings(name):
    module = importlib.import_module(f"hf_attn_ext.attention.ops.{name}")
    names = {"torch": torch, "masks": masks, "make_feature_map": make_feature_map}
    assert doctest.testmod(module, extraglobs=names).failed == 0
