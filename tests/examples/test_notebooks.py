"""Every notebook runs from its first cell to its last on the real assets, and keeps its outputs, short."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from benchmarks import ROOT
from benchmarks.assets import ensure

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["convert_and_distil", "masks", "probe"]


@pytest.mark.real
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_offline(path, tmp_path, monkeypatch):
    for name in ("minilm", "reviews", "mgm"):
        ensure(name)
    folder = tmp_path / "examples" / "notebooks"
    folder.mkdir(parents=True)
    (tmp_path / ".assets").symlink_to(ensure("minilm").parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("MPLBACKEND", raising=False)  # figures are displayed, as for a reader
    notebook = nbformat.read(path, 4)
    stored = [bool(cell.get("outputs")) for cell in notebook.cells]
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    assert [bool(cell.get("outputs")) for cell in notebook.cells] == stored


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_stored_executed_and_small(path):
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs and not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)
    assert Path(path).stat().st_size < 200_000
    assert all(len(cell.source.splitlines()) <= 32 for cell in notebook.cells)
