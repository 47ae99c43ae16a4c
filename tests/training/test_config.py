"""Configuration files: every field documented, every mistake one line that names the field."""

import dataclasses
import re
import typing
from pathlib import Path

import pytest
import yaml

from hf_attn_ext import AttnExtError
from hf_attn_ext._util.run_folder import difference
from hf_attn_ext.training import DistillConfig, TrainConfig, load_config
from hf_attn_ext.training import config as config_module

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "configs" / "distill").glob("*.yaml"))
MINIMAL = {"model": {"name": "roberta-base"}, "output": {"folder": "runs/x"}, "data": {"path": "glue/sst2"}}


def write(tmp_path, mapping, extra=""):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(mapping) + extra)
    return path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_configs_load(path):
    assert load_config(path).model.name


def test_the_commented_config_shows_every_field():
    written = yaml.safe_load((ROOT / "configs/distill/reviews.yaml").read_text())
    full = load_config(ROOT / "configs/distill/reviews.yaml").to_dict()
    assert set(written) == set(full)
    for section, fields in full.items():
        if isinstance(fields, dict) and written[section]:
            assert set(written[section]) == set(fields), section


def sections():
    return [
        kind
        for kind in vars(config_module).values()
        if dataclasses.is_dataclass(kind) and kind.__module__ == config_module.__name__
    ]


@pytest.mark.parametrize("kind", sections(), ids=lambda kind: kind.__name__)
def test_every_field_is_documented(kind):
    documented = "".join(base.__doc__ or "" for base in kind.__mro__ if dataclasses.is_dataclass(base))
    for field in dataclasses.fields(kind):
        assert re.search(rf"^        {field.name}: ", documented, re.M), f"{kind.__name__}.{field.name}"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["stage1.stepz=3"], ["'stage1.stepz'", "'steps'"]),
        (["stage1.steps=many"], ["'stage1.steps'", "'many'"]),
        (["stage1.lr=true"], ["'stage1.lr'", "True"]),
        (["stage1.batch_size=0"], ["'stage1.batch_size'", "at least 1", "0"]),
        (["stage2.schedule=cosin"], ["'stage2.schedule'", "'cosin'", "'cosine'"]),
        (["stage2.distillation=1.5"], ["'stage2.distillation'", "between 0 and 1", "1.5"]),
        (["data.max_length=3"], ["'data.max_length'", "at least 4"]),
        (["data.labels=[1, 2]"], ["data.labels[0]", "1"]),
        (["kernel.kernel=hedgehg"], ["'hedgehg'", "'hedgehog'"]),
        (["kernel.num_features=0"], ["num_features", "0"]),
        (["output=here"], ["output", "'here'"]),
        (["stage1.cross_entropy=0", "stage1.output_error=0"], ["stage1.cross_entropy", "nothing to learn"]),
        (["trakking.trackers=[x]"], ["'trakking'", "'tracking'"]),
        (["mixed_precision=bf61"], ["'mixed_precision'", "'bf61'", "'bf16'"]),
        (["seed=-1"], ["'seed'", "-1"]),
        (["stage1.lr=.inf"], ["'stage1.lr'", "finite", "inf"]),
        (["stage1.lr=.nan"], ["'stage1.lr'", "nan"]),
        (["kernel.kernel=flexformer_n", "kernel.kernel_options={rho: x}"], ["'rho'", "'x'"]),
        (["processes=0"], ["'processes'", "0"]),
        (["stage1"], ["'stage1'", "section.field=value"]),
        (["seed.deep=1"], ["seed", "not a section"]),
    ],
)
def test_mistakes_are_one_line_with_the_field_and_the_value(tmp_path, settings, said):
    base = {**MINIMAL, "seed": 0}
    with pytest.raises(AttnExtError) as caught:
        load_config(write(tmp_path, base), settings)
    message = str(caught.value)
    assert "\n" not in message
    for part in said:
        assert part in message


def test_a_missing_file_and_a_broken_one(tmp_path):
    with pytest.raises(AttnExtError, match=r"no-such.yaml.*does not exist"):
        load_config(tmp_path / "no-such.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("model: {name: x\n")
    with pytest.raises(AttnExtError, match=r"broken.yaml is not valid YAML"):
        load_config(broken)
    with pytest.raises(AttnExtError, match=r"'seed' is given twice.*line"):
        load_config(write(tmp_path, MINIMAL, "seed: 1\nseed: 2\n"))
    with pytest.raises(AttnExtError, match=r"'model.name' is missing"):
        load_config(write(tmp_path, {**MINIMAL, "model": {}}))


def test_files_that_are_no_config(tmp_path):
    with pytest.raises(AttnExtError, match="is a folder"):
        load_config(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_bytes("model: {name: caf\xe9}".encode("latin-1"))
    with pytest.raises(AttnExtError, match=r"config.yaml.*UTF-8"):
        load_config(path)
    path.write_text("? [a, b]\n: 3\n")
    with pytest.raises(AttnExtError, match=r"\['a', 'b'\] in line 1 is not a name"):
        load_config(path)


def test_mixed_precision_no_may_go_unquoted(tmp_path):
    assert load_config(write(tmp_path, MINIMAL), ["mixed_precision=no"]).mixed_precision == "no"


def test_numbers_as_people_write_them(tmp_path):
    path = write(tmp_path, MINIMAL, "stage1: {lr: 1e-3, steps: 10}\nstage2: {lr: 2E-5, weight_decay: 0}\n")
    config = load_config(path, ["stage1.beta1=.5", "stage2.temperature=1e0"])
    assert config.stage1.lr == 1e-3 and config.stage2.lr == 2e-5 and config.stage2.weight_decay == 0.0
    assert config.stage1.beta1 == 0.5 and config.stage2.temperature == 1.0


def test_settings_win_and_make_sections(tmp_path):
    config = load_config(write(tmp_path, MINIMAL), ["stage1.steps=7", "kernel.layers=[1, 0]", "stage2.steps=null"])
    assert config.stage1.steps == 7 and config.kernel.layers == [0, 1] and config.stage2.steps is None


def test_round_trip(tmp_path):
    config = load_config(write(tmp_path, MINIMAL), ["stage1_data.train=x.txt"])
    assert DistillConfig.from_dict(config.to_dict()) == config


def test_difference_names_the_first_field_that_differs():
    old = DistillConfig.from_dict(MINIMAL).to_dict()
    new = DistillConfig.from_dict({**MINIMAL, "stage2": {"lr": 1.0}}).to_dict()
    assert difference(old, new) == ("stage2.lr", 2e-5, 1.0)
    assert difference(old, old) is None


def test_limits_name_fields_that_exist():
    known = {"data": config_module.DataConfig, "model": config_module.ModelConfig, "train": TrainConfig}
    hints = typing.get_type_hints(DistillConfig)
    for dotted in config_module._LIMITS:
        section, field = dotted.split(".")
        kind = known.get(section) or hints[section]
        assert field in {entry.name for entry in dataclasses.fields(kind)}, dotted
