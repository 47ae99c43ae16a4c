"""The python blocks of the documentation run, block after block per page, and print what the page shows."""

import re
from pathlib import Path

import pytest

from hf_attn_ext.attention.registry import _KERNELS
from hf_attn_ext.hasse.registry import _MASKS
from hf_attn_ext.probe.statistics.registry import _STATISTICS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FOLDERS = ("guides", "concepts", "extending")
PAGES = [
    ROOT / "README.md",
    DOCS / "index.md",
    DOCS / "quick-start.md",
    *(page for folder in FOLDERS for page in sorted((DOCS / folder).iterdir())),
]
BLOCK = re.compile(
    r"(?P<skip><!-- not run -->\n)?^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"(\d+\.\d+|\d+(?=%))")

needs_assets = pytest.mark.skipif(
    not all((ROOT / ".assets" / name).is_dir() for name in ("minilm-roberta", "mgm", "sapiens-vh", "sotu")),
    reason="python examples/assets.py minilm mgm sapiens sotu",
)


@pytest.fixture(autouse=True)
def _registries():
    """What a page registers is gone afterwards."""
    tables = [(table, dict(table)) for table in (_KERNELS, _MASKS, _STATISTICS)]
    yield
    for table, before in tables:
        table.clear()
        table.update(before)


def assert_alike(printed: str, shown: str) -> None:
    """Words and whole numbers are the same; decimals may differ by 0.05 or 5% between machines, percentages by 2."""
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    for here, there in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        least = 2 if "." not in there else 0.05
        assert float(here) == pytest.approx(float(there), rel=0.05, abs=least)


@pytest.mark.real
@needs_assets
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    (tmp_path / ".assets").symlink_to(ROOT / ".assets")
    monkeypatch.chdir(tmp_path)
    blocks = list(BLOCK.finditer(page.read_text(encoding="utf-8")))
    assert blocks, f"{page.name} shows no code"
    names = {"__name__": "__main__"}
    for block in blocks:
        if block["skip"]:
            continue
        capsys.readouterr()
        exec(compile(block["code"], str(page), "exec"), names)
        printed = capsys.readouterr().out
        if block["shown"] is not None:
            assert_alike(printed.strip(), block["shown"].strip())
