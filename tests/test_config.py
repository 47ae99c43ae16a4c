"""Configurations from plain mappings: every wrong name, type and value is named."""

import dataclasses
from typing import Literal

import pytest

import hf_attn_ext as hax
from hf_attn_ext._util.settings import from_mapping
from hf_attn_ext.errors import AttnExtError, suggest


@dataclasses.dataclass
class Inner:
    steps: int = 1
    rate: float = 0.1
    mode: Literal["fast", "slow"] = "fast"


@dataclasses.dataclass
class Outer:
    name: str
    inner: Inner = dataclasses.field(default_factory=Inner)
    layers: list[int] | None = None
    options: dict[str, float] = dataclasses.field(default_factory=dict)
    flag: bool = False


def test_nested_mapping_is_built():
    built = from_mapping(Outer, {"name": "a", "inner": {"steps": 3, "rate": 1}, "layers": [0, 2], "options": {"x": 2}})
    assert built == Outer("a", Inner(3, 1.0), [0, 2], {"x": 2.0})
    assert isinstance(built.inner.rate, float)


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"name": "a", "inner": {"stepps": 3}}, ["'inner.stepps'", "Did you mean 'steps'?"]),
        ({"name": "a", "inner": {"steps": "3"}}, ["'inner.steps'", "'3'"]),
        ({"name": "a", "inner": {"steps": True}}, ["'inner.steps'", "True"]),
        ({"name": "a", "inner": {"rate": "1e-3"}}, ["'inner.rate'", "1.0e-3"]),
        ({"name": "a", "inner": {"mode": "slw"}}, ["'inner.mode'", "'slw'", "Did you mean 'slow'?"]),
        ({"name": "a", "inner": 3}, ["inner", "3"]),
        ({"name": "a", "layers": [0, "x"]}, ["'layers[1]'", "'x'"]),
        ({"name": "a", "layers": 3}, ["'layers'", "3"]),
        ({"name": "a", "options": {"x": "y"}}, ["'options.x'", "'y'"]),
        ({"name": "a", "flag": 1}, ["'flag'", "true or false"]),
        ({}, ["'name'", "missing"]),
        ([], ["mapping"]),
    ],
)
def test_mistakes_are_named(mapping, words):
    with pytest.raises(AttnExtError) as caught:
        from_mapping(Outer, mapping, "my.yaml")
    message = str(caught.value)
    assert message.startswith("my.yaml: ") and all(word in message for word in words) and "\n" not in message


def test_config_round_trip():
    config = hax.AttnExtConfig(kernel="flexformer_n", num_features=8, layers=[2, 0], kernel_options={"rho": 0.2})
    assert config.layers == [0, 2]
    assert hax.AttnExtConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kernel": "flexformr_p"}, ["Did you mean 'flexformer_p'?"]),
        ({"num_features": 0}, ["num_features", "0"]),
        ({"layers": []}, ["layers", "empty"]),
        ({"layers": [-1]}, ["-1"]),
        ({"layers": [1, 1]}, ["twice"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"seed": 2**32}, ["seed", "4294967296"]),
        ({"kernel": ["hedgehog"]}, ["['hedgehog']"]),
        ({"num_features": 10**9}, ["65536", "1000000000"]),
        ({"layers": 3}, ["layers", "3"]),
        ({"layers": "all"}, ["layers", "'all'", "None for all"]),
        ({"kernel_options": None}, ["options", "None"]),
        ({"kernel": "flexformer_c", "kernel_options": {"rho": "x"}}, ["'rho'", "finite number", "'x'"]),
        ({"kernel": "flexformer_c", "kernel_options": {"rho": float("nan")}}, ["'rho'", "nan"]),
        ({"kernel": "flexformer_c", "kernel_options": {"rho": True}}, ["'rho'", "True"]),
        ({"kernel_options": {"affine": "no"}}, ["'affine'", "true or false", "'no'"]),
        ({"kernel_options": {"spread": "wide"}}, ["'spread'", "or None", "'wide'"]),
        ({"kernel": "flexformer_c", "kernel_options": {"rh": 1}}, ["'rh'", "Did you mean 'rho'?"]),
    ],
)
def test_config_values_are_checked(fields, words):
    with pytest.raises(AttnExtError) as caught:
        hax.AttnExtConfig(**fields)
    assert all(word in str(caught.value) for word in words)


def test_an_unquoted_no_in_yaml_is_the_word_where_that_is_an_option():
    @dataclasses.dataclass
    class Precision:
        mode: Literal["no", "bf16"] | None = None

    assert from_mapping(Precision, {"mode": False}).mode == "no"
    with pytest.raises(AttnExtError, match="'mode'"):
        from_mapping(Precision, {"mode": True})


def test_suggest():
    assert suggest("flexformer", ["flexformer_s", "hedgehog"]) == " Did you mean 'flexformer_s'?"
    assert suggest("zzz", ["hedgehog"]) == ""
