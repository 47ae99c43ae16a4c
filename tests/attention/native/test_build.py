"""Build, find and switch off the native op, and the mistakes that one can make with it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_attn_ext import AttnExtError, build_native_op
from hf_attn_ext.attention import describe_native_op, linear_attention, make_feature_map, native_op_loaded
from hf_attn_ext.attention.native import build, library, operators


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A cache in which nothing is built."""
    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    return tmp_path


def test_nothing_is_compiled_by_a_call(empty, monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    x = torch.randn(1, 2, 9, 4)
    linear_attention(x, x, x, make_feature_map("flexformer_p", 2, 4, 4), causal=True)
    assert not native_op_loaded() and list(empty.iterdir()) == []
    assert "not built" in describe_native_op() and "hf-attn-ext build" in describe_native_op()


def test_it_is_built_once_and_found(calls, monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    lines = []
    path = build_native_op(lines.append)
    assert path == library.library_path() and path.is_file() and lines == []
    assert native_op_loaded() and describe_native_op() == f"built, {path}"
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("value", ["0", "off", "False"])
def test_the_switch(calls, monkeypatch, value):
    monkeypatch.setenv(library.SWITCH, value)
    assert not native_op_loaded() and "switched off" in describe_native_op()


def test_without_a_compiler(empty, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(empty))
    with pytest.raises(AttnExtError, match=r"no C\+\+ compiler: none of c\+\+, g\+\+, clang\+\+ is found; install"):
        build_native_op()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(AttnExtError, match="CXX names 'no-such-compiler'"):
        build_native_op()


def test_a_compiler_that_fails(empty, monkeypatch):
    script = empty / "compiler"
    script.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('x.cpp:1: error: unknown option\\nmore')\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(AttnExtError) as caught:
        build_native_op()
    assert "error: unknown option" in str(caught.value) and "\n" not in str(caught.value)
    assert not library.library_path().exists()


def test_a_compiler_that_makes_wrong_numbers(built, empty, monkeypatch):
    good, run = next((built / "hf_attn_ext").iterdir()), operators._run

    def wrong(name, causal, factor, tensors):
        run(name, causal, factor, tensors)
        if name == "backward":
            tensors["grad_shift"] += 1e-3

    monkeypatch.setattr(operators, "_run", wrong)
    monkeypatch.setattr(build, "_compile", lambda compiler, target: shutil.copy(good, target))
    with pytest.raises(AttnExtError, match=r"wrong numbers in torch.float64"):
        build_native_op()
    assert not library.library_path().exists() and list(library.library_path().parent.iterdir()) == []


def _unreadable(monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)


def _homeless(monkeypatch):
    def refuse():
        raise RuntimeError("Could not determine home directory.")

    for name in library._PATH_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", refuse)


FOLDERS = [
    (_unreadable, "no folder for the native op .Permission denied: .*TORCH_EXTENSIONS_DIR"),
    (_homeless, "no folder for the native op .Could not determine home.*TORCH_EXTENSIONS_DIR"),
    (lambda monkeypatch: monkeypatch.setenv("CXXFLAGS", '-DNAME="'), "CXXFLAGS='-DNAME=\"' cannot be read .No closing"),
]


@pytest.mark.parametrize(("change", "message"), FOLDERS)
def test_without_a_folder_for_the_op_attention_runs_without_it(empty, monkeypatch, change, message):
    change(monkeypatch)
    library._load.cache_clear()
    x = torch.randn(1, 2, 9, 4)
    linear_attention(x, x, x, make_feature_map("flexformer_p", 2, 4, 4), causal=True)
    assert not native_op_loaded() and "not built" in describe_native_op()
    with pytest.raises(AttnExtError, match=message):
        build_native_op()


def test_a_folder_that_cannot_be_made(empty, monkeypatch):
    (empty / "file").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(empty / "file"))
    assert not native_op_loaded()
    with pytest.raises(AttnExtError, match=r"no folder for the native op .Not a directory"):
        build_native_op()


def test_a_library_that_does_not_load(empty):
    path = library.library_path()
    path.parent.mkdir()
    path.write_bytes(b"no library")
    library._load.cache_clear()
    with pytest.raises(AttnExtError, match="hf-attn-ext build") as caught:
        native_op_loaded()
    assert str(path) in str(caught.value)


def test_a_graph_that_outlives_the_op_says_so(calls, monkeypatch):
    x = torch.randn(1, 2, 9, 4, requires_grad=True)
    out = linear_attention(x, x, x, make_feature_map("flexformer_p", 2, 4, 4), causal=True)
    monkeypatch.setenv(library.SWITCH, "0")
    with pytest.raises(AttnExtError, match="needs the native op"):
        out.sum().backward()


def test_the_command(built, empty, monkeypatch, capsys):
    from hf_attn_ext.cli.main import main

    monkeypatch.setenv("CXX", "no-such-compiler")
    assert main(["build"]) == 2
    assert "CXX names 'no-such-compiler'" in capsys.readouterr().err
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(built))
    assert main(["build"]) == 0
    assert capsys.readouterr().out.strip() == str(library.library_path())


def test_the_benchmark_shows_both_forms(calls, monkeypatch):
    from benchmarks.speed.attention.contestants import BOTH, FORWARD, PLAIN, Workload, contestants, make_call
    from benchmarks.speed.attention.operations import operations

    work = Workload(heads=2, head_dim=8, feature_dim=16)
    rows = {c.name: c for c in contestants(work, ["flexformer_p", "hedgehog"])}
    fast, plain = rows["flexformer_p"], rows["flexformer_p" + PLAIN]
    assert fast.compiled and not plain.compiled and "hedgehog" + PLAIN not in rows
    for causal in (False, True):
        calls.clear()
        make_call(plain.build(work, causal), work.tensors(20), BOTH)()
        assert calls == []
        make_call(fast.build(work, causal), work.tensors(20), BOTH)()
        assert calls == ["forward", "backward"]
        counts = [operations(row, work, 20, causal, FORWARD).products for row in (fast, plain)]
        assert counts[0] < counts[1] if causal else counts[0] == counts[1]
    monkeypatch.setenv(library.SWITCH, "0")
    (alone,) = (c for c in contestants(work, ["flexformer_p"]) if c.family == "flexformer")
    assert not alone.compiled and "hf-attn-ext build" in alone.note
