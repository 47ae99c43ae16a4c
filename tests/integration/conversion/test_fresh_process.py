"""What another process sees: every head class of every family, bit for bit, and the shim."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AlbertConfig, AlbertForMaskedLM, RobertaForMaskedLM

from hf_attn_ext import integration as hax
from hf_attn_ext.integration.base_models.families import auto_classes, head_classes
from tests.integration import tiny

ROOT = Path(__file__).parents[3]

READER = """
import json, sys
import torch, transformers
from tests.integration import tiny
from transformers.utils import logging
logging.disable_progress_bar()
import hf_attn_ext
from hf_attn_ext.integration import register_model_type
register_model_type("albert")  # a model outside the table
for job in json.load(open(sys.argv[1])):
    auto = getattr(transformers.models.auto.modeling_auto, job["auto"])
    model, info = auto.from_pretrained(job["folder"], output_loading_info=True, **job["kwargs"])
    assert type(model).__name__ == job["cls"], (type(model).__name__, job["cls"])
    assert not any(info.values()), info
    saved = torch.load(job["folder"] + "/expected.pt")
    found = tiny.logits_of(model(**tiny.inputs(model)))
    assert len(found) == len(saved)
    assert all(torch.equal(x, y) for x, y in zip(found, saved)), job
    state = torch.load(job["folder"] + "/state.pt")
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(x, state[name]) for name, x in model.state_dict().items()), job
print("read", sys.argv[1])
"""


def read_elsewhere(tmp_path, jobs):
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    (tmp_path / "reader.py").write_text(READER)
    return subprocess.run(
        [sys.executable, "reader.py", "jobs.json"],
        cwd=tmp_path,
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
        },
        capture_output=True,
        text=True,
    )


def write(model, folder, auto, kwargs=None, **save):
    model.save_pretrained(folder, **save)
    torch.save(tiny.logits_of(model(**tiny.inputs(model))), folder / "expected.pt")
    torch.save(model.state_dict(), folder / "state.pt")
    return {"folder": str(folder), "auto": auto, "cls": type(model).__name__, "kwargs": kwargs or {}}


def auto_of(model_type, cls):
    return next(name for name, classes in head_classes(model_type).items() if cls in classes)


def test_every_head_class_is_equal_bit_for_bit_in_a_fresh_process(tmp_path):
    jobs = []
    for model_type, cls in tiny.head_class_pairs():
        model = hax.convert(tiny.tiny_model(cls), tiny.KERNEL)
        jobs.append(write(model, tmp_path / cls.__name__, auto_of(model_type, cls)))
    assert len(jobs) >= 35
    for i, (kernel, layers, dtype, shard) in enumerate(
        [
            ("flexformer_s", None, torch.float32, "4KB"),
            ("flexformer_n", [1], torch.float16, "50GB"),
            ("flexformer_sq", None, torch.bfloat16, "4KB"),
            ("hedgehog", [0], torch.float64, "4KB"),
            ("performer", None, torch.float16, "4KB"),
            ("uniform", None, torch.bfloat16, "50GB"),
        ]
    ):
        model = tiny.tiny_model(RobertaForMaskedLM).to(dtype)
        model = hax.convert(model, kernel=kernel, num_features=4, layers=layers)
        hax.calibrate(model, [tiny.inputs()])
        jobs.append(write(model, tmp_path / str(i), "AutoModelForMaskedLM", max_shard_size=shard))
    jobs.append(write(albert(), tmp_path / "albert", "AutoModelForMaskedLM"))
    result = read_elsewhere(tmp_path, jobs)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "UNEXPECTED" not in result.stderr and "MISSING" not in result.stderr


def albert():
    sizes = {"embedding_size": 12, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = AlbertForMaskedLM(
        AlbertConfig(vocab_size=40, intermediate_size=24, max_position_embeddings=40, **sizes)
    ).eval()
    with pytest.warns(UserWarning, match="untested"):
        return hax.convert(model, tiny.KERNEL)


def run_plain(tmp_path, code, **environment):
    """Run ``code`` in a process that neither imports nor finds the package, unless the environment says where."""
    (tmp_path / "plain.py").write_text(code)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "plain.py"],
        cwd=tmp_path,
        env={**clean, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules"), **environment},
        capture_output=True,
        text=True,
    )


SHIM_READER = """
import sys, torch, transformers
for name in ("roberta", "albert"):
    assert "hf_attn_ext.integration" not in sys.modules or name == "albert"
    model = transformers.AutoModelForMaskedLM.from_pretrained(name, trust_remote_code=True)
    expected = torch.load(name + "/expected.pt")
    batch = torch.load("batch.pt")
    assert torch.equal(model(**batch).logits, expected[0]), name
    model.save_pretrained(name + "-again")
    print(type(model).__name__)
"""


def test_the_shim_opens_folders_without_our_import(tmp_path):
    write(hax.convert(tiny.tiny_model(RobertaForMaskedLM), tiny.KERNEL), tmp_path / "roberta", "AutoModelForMaskedLM")
    write(albert(), tmp_path / "albert", "AutoModelForMaskedLM")
    torch.save(tiny.inputs(), tmp_path / "batch.pt")
    threads = str(torch.get_num_threads())
    result = run_plain(tmp_path, SHIM_READER, PYTHONPATH=str(ROOT), OMP_NUM_THREADS=threads)
    assert result.stdout.split() == ["AttnExtRobertaForMaskedLM", "AttnExtAlbertForMaskedLM"], result.stderr[-3000:]
    for name in ("roberta-again", "albert-again"):
        assert sorted(file.name for file in (tmp_path / name).iterdir()) == [
            "attn_ext_manifest.json", "config.json", "model.safetensors", "modeling_attn_ext.py",
        ]  # fmt: skip


# The code in folders that were saved before integration/ had rooms.
OLD_SHIM = """
try:
    from hf_attn_ext.integration import models as _models
except ImportError as error:
    raise ImportError("install it: pip install hf-attn-ext") from error


def __getattr__(name):
    return getattr(_models, name)
"""


def test_a_folder_with_the_shim_of_an_older_version_opens(tmp_path):
    write(hax.convert(tiny.tiny_model(RobertaForMaskedLM), tiny.KERNEL), tmp_path / "roberta", "AutoModelForMaskedLM")
    (tmp_path / "roberta" / "modeling_attn_ext.py").write_text(OLD_SHIM)
    torch.save(tiny.inputs(), tmp_path / "batch.pt")
    code = SHIM_READER.replace('("roberta", "albert")', '("roberta",)')
    result = run_plain(tmp_path, code, PYTHONPATH=str(ROOT), OMP_NUM_THREADS=str(torch.get_num_threads()))
    assert result.stdout.split() == ["AttnExtRobertaForMaskedLM"], result.stderr[-3000:]


def test_without_trust_or_without_the_package_the_reason_is_said(tmp_path):
    hax.convert(tiny.tiny_model(RobertaForMaskedLM), tiny.KERNEL).save_pretrained(tmp_path / "model")
    code = (
        "import sys, transformers\n"
        "sys.modules['hf_attn_ext'] = None  # as where the package is not installed\n"
        "for trust in (False, True):\n"
        "    try:\n"
        "        transformers.AutoModelForMaskedLM.from_pretrained('model', trust_remote_code=trust)\n"
        "    except (ImportError, ValueError) as error:\n"
        "        print(type(error).__name__, str(error).replace(chr(10), ' '))\n"
    )
    lines = run_plain(tmp_path, code).stdout.splitlines()
    assert len(lines) == 2 and "trust_remote_code=True" in lines[0]
    assert lines[1].startswith("ImportError") and "install it as its model card says" in lines[1]


def test_importing_registers_once_and_again_changes_nothing():
    from hf_attn_ext.integration.conversion import model_classes as models

    before = {name: dict(auto._model_mapping._extra_content) for name, auto in auto_classes().items()}
    models.register_families()
    hax.convert(tiny.tiny_model(RobertaForMaskedLM), tiny.KERNEL)
    after = {name: dict(auto._model_mapping._extra_content) for name, auto in auto_classes().items()}
    assert before == after
    assert [cls for name in before for cls in before[name].values()]
