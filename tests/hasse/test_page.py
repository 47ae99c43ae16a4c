"""What the documents say about masks is run: the page's code and commands, its pictures, and every docstring."""

import doctest
import importlib
import json
import pkgutil
import re
import shlex
from pathlib import Path

import pytest

from hf_attn_ext import hasse
from hf_attn_ext.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGE, CONCEPTS, GUIDE = [
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("evidence/hasse.md", "concepts/masks-as-orders.md", "guides/masks.md")
]
MODULES = ["hf_attn_ext.hasse"] + [m.name for m in pkgutil.walk_packages(hasse.__path__, "hf_attn_ext.hasse.")]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    names = {"torch": importlib.import_module("torch"), "np": importlib.import_module("numpy")}
    result = doctest.testmod(module, extraglobs=names)
    assert result.failed == 0, result


def test_every_mask_says_what_it_is():
    for name in hasse.masks.list_masks():
        text = hasse.masks.mask_entry(name).make.__doc__
        for part in ("Source: arXiv", "Position ids", "role", "label", "erived from", "Args:", "Raises:", "Example:"):
            assert part in text, (name, part)


@pytest.mark.parametrize("name", hasse.masks.list_masks())
def test_drawings_in_docstrings_are_the_masks(name):
    """The rows of ``#`` and ``.`` are a mask of that kind: the one that its note names, or the smallest that fits."""
    text = hasse.masks.mask_entry(name).make.__doc__
    rows = re.findall(r"^ +([A-Za-z]\d)((?: +[#.])+) *(?:.*)$", text, re.M)
    names = [row[0] for row in rows]
    drawn = [[cell == "#" for cell in row[1].split()] for row in rows]
    size = len(names)
    note = re.search(r"# +((?:p|w|b|block_size|perm|visible|lengths) = [^\n]+)$", text, re.M)
    options = {}
    if note:
        key, value = note.group(1).split(" = ")
        options[key] = json.loads(value)
    if name not in ("document", "xlnet_two_stream"):
        tokens = {"block_diffusion": size // 2, "block_two_stream": size // 2, "butterfly": (size + 2) // 3}
        options["n"] = tokens.get(name, size)
    spec = hasse.masks.make_mask(name, **options)
    assert [row[:size] for row in drawn] == spec.dense().tolist()
    assert names == list(spec.names)


def test_the_pages_code_runs():
    blocks = re.findall(r"^```python\n(.*?)^```", CONCEPTS + PAGE, re.M | re.S)
    assert len(blocks) >= 4
    names: dict = {}
    for block in blocks:
        exec(block, names)


def test_the_pages_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tasks = re.search(r"^cat > tasks.json <<'JSON'\n(.*?)^JSON", GUIDE, re.M | re.S)
    (tmp_path / "tasks.json").write_text(tasks.group(1))
    commands = re.findall(r"^hf-attn-ext (mask .*)$", GUIDE, re.M)
    assert [command.split()[1] for command in commands] == ["show", "show", "analyze", "derive"]
    for command in commands:
        assert main(shlex.split(command)) == 0, capsys.readouterr().err
    assert {"butterfly.png", "mask.npy", "joint.json"} <= {path.name for path in tmp_path.iterdir()}
    # The readme's picture is what its command makes.
    assert (tmp_path / "butterfly.png").read_bytes()[:4] == (
        ROOT / "docs" / "evidence" / "hasse-butterfly.png"
    ).read_bytes()[:4]


def test_the_pages_pictures_are_there_and_small():
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", PAGE)
    assert len(pictures) == 7
    for picture in pictures:
        assert 0 < (ROOT / "docs" / "evidence" / picture).stat().st_size < 150_000


def test_every_mask_is_in_the_pages_table():
    table = GUIDE.partition("## The masks")[2].partition("## Set a mask")[0]
    assert set(re.findall(r"^\| `(\w+)\(", table, re.M)) == set(hasse.masks.list_masks())
