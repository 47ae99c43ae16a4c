"""The compiled kernel, built once for all of these tests, and a count of the calls that it takes."""

import os
import shutil

import pytest

from hf_attn_ext.attention import build_kernels
from hf_attn_ext.attention.native import build, operators


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A cache folder with the kernel in it, shared by parallel workers."""
    if not any(map(shutil.which, build.COMPILERS)):
        pytest.skip("there is no C++ compiler here")
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "compiled-kernel"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(build.SWITCH, raising=False)
        patch.setenv("TORCH_EXTENSIONS_DIR", str(folder))
        build_kernels()
    return folder


@pytest.fixture
def calls(built, monkeypatch):
    """Switches the kernel on; lists what it was asked for."""
    monkeypatch.delenv(build.SWITCH, raising=False)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(built))
    taken, run = [], operators._run

    def counted(name, *arguments):
        taken.append(name)
        run(name, *arguments)

    monkeypatch.setattr(operators, "_run", counted)
    return taken
