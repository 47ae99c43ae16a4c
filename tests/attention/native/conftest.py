"""The native op, built once for all of these tests, and a list of the calls that it computes."""

import os
import shutil

import pytest

from hf_attn_ext.attention import build_native_op
from hf_attn_ext.attention.native import build, library, operators


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A cache folder with the native op in it, shared by parallel workers."""
    if not any(map(shutil.which, build.COMPILERS)):
        pytest.skip("there is no C++ compiler here")
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "native-op"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(library.SWITCH, raising=False)
        patch.setenv("TORCH_EXTENSIONS_DIR", str(folder))
        build_native_op()
    return folder


@pytest.fixture
def calls(built, monkeypatch):
    """Switch the native op on; list the functions that were called."""
    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(built))
    taken, run = [], operators._run

    def counted(name, *arguments):
        taken.append(name)
        run(name, *arguments)

    monkeypatch.setattr(operators, "_run", counted)
    return taken
