"""A mask defined in this file alone reaches everything that a mask can reach, with its own option, role and colour."""

import json

import matplotlib.colors
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import hf_attn_ext as hax
from hf_attn_ext.cli.main import main
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import masks, roles
from hf_attn_ext.hasse.drawing.draw import figure
from hf_attn_ext.hasse.files.read import read_mask_file
from hf_attn_ext.hasse.registry import _MASKS
from tests.hasse.masks import test_masks as table

COLOUR = "#7a2e5d"


MODULE = '''
import hf_attn_ext as hax

@hax.register_mask("own", example={"n": 6, "steps": 3})
def own(n, steps):
    """Every token sees the first tokens and itself.

    Args:
        n: tokens.
        steps: tokens that are seen.
    """
    return hax.MaskSpec.of_text(n, name="own", form=lambda q, kv: (kv < steps) | (q == kv), labels={})
'''


def define():
    @hax.register_mask(
        "toy",
        example={"n": 8, "own_option": 3},
        prefix_stable=True,
        clipped="own_option",
        roles={"anchor": roles.Role("A", COLOUR)},
    )
    def toy(n: int, own_option: int) -> hax.MaskSpec:
        """Every token sees the earlier anchors and itself.

        Args:
            n: tokens.
            own_option: distance from one anchor to the next,
                at least 1.
        """
        return hax.MaskSpec.of_text(
            n,
            name="toy",
            form=lambda q, kv: (kv <= q) & ((kv % own_option == 0) | (q == kv)),
            roles=["token" if i % own_option else "anchor" for i in range(n)],
            labels={i: i + 1 for i in range(n - 1)},
        )

    return toy


@pytest.fixture(autouse=True)
def toy():
    yield define()
    del _MASKS["toy"]
    roles.declare_roles("toy", {})


def run(capfd, *words):
    assert main([*words]) == 0, capfd.readouterr().err
    return capfd.readouterr().out


def test_lists(capfd):
    assert "toy" in hax.list_masks() and "toy" in run(capfd, "list", "masks").split()
    assert "toy " in run(capfd, "mask", "show", "--help")


def test_the_command_has_its_option_with_type_default_and_help(capfd, tmp_path):
    text = " ".join(run(capfd, "mask", "show", "toy", "--help").split())
    assert "Every token sees the earlier anchors and itself." in text
    assert "--own-option <int> Distance from one anchor to the next, at least 1. Default: 3." in text
    out = run(capfd, "mask", "show", "toy", "--n", "5", "--own-option", "2", "--out", str(tmp_path / "x.png"))
    assert out.startswith("toy(n=5, own_option=2): 5 positions") and "A4" in out and "Hasse diagram" in out
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert main(["mask", "show", "toy", "--own-option", "x"]) == 2 and "--own-option" in capfd.readouterr().err
    assert main(["mask", "show", "toy", "--w", "1"]) == 2
    assert "its options: --n, --own-option" in capfd.readouterr().err


def test_a_module_of_the_users_brings_its_masks_to_the_command(capfd, tmp_path, monkeypatch):
    (tmp_path / "my_masks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        out = run(capfd, "--import", "my_masks", "mask", "show", "own", "--steps", "2", "--n", "4")
        assert out.startswith("own(n=4, steps=2): 4 positions")
        text = " ".join(run(capfd, "--import", "my_masks", "mask", "show", "own", "--help").split())
        assert "--steps <int> Tokens that are seen. Default: 3." in text
    finally:
        _MASKS.pop("own", None)


def test_files_and_analyze(capfd, tmp_path, toy):
    file = tmp_path / "toy.json"
    run(capfd, "mask", "show", "toy", "--out", str(file))
    assert torch.equal(read_mask_file(file).dense(), toy(8, 3).dense())
    assert json.loads(file.read_text())["roles"][:2] == ["anchor", "token"]
    out = run(capfd, "mask", "analyze", str(file), "--out", str(tmp_path / "again.svg"))
    assert "A6" in out and "depth      1 layer" in out
    assert COLOUR in (tmp_path / "again.svg").read_text()


def test_the_figure_has_its_colour_and_the_legend(toy):
    picture = figure(toy(5, 2))
    (legend,) = picture.legends
    marks = dict(zip([text.get_text() for text in legend.texts], legend.legend_handles, strict=True))
    assert {"anchor", "token"} <= set(marks) and matplotlib.colors.to_hex(marks["anchor"].get_color()) == COLOUR
    ticks = {text.get_text(): text.get_color() for text in picture.axes[0].get_xticklabels()}
    assert ticks["A0"] == COLOUR != ticks["w1"]


def test_a_model_saves_it_and_opens_with_it(tmp_path, toy):
    torch.manual_seed(0)
    config = GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=32, vocab_size=50)
    model = GPT2LMHeadModel(config).eval()
    hax.set_mask(model, "toy", own_option=2)
    ids = torch.arange(7)[None]
    model.save_pretrained(tmp_path)
    again = GPT2LMHeadModel.from_pretrained(tmp_path, attn_implementation="hasse").eval()
    for copy in (model, again):
        weights = copy(ids, output_attentions=True).attentions[0]
        assert torch.equal(weights[0, 0] > 0, toy(7, 2).dense())
    with torch.no_grad():
        assert torch.equal(model(ids).logits, again(ids).logits)
        # Declared as stable and clipped: a cache grows under it, and a call shorter than the option is served.
        first = again(ids[:, :4], use_cache=True)
        rest = again(ids[:, 4:], past_key_values=first.past_key_values, use_cache=True)
        torch.testing.assert_close(rest.logits, again(ids).logits[:, 4:])
        hax.set_mask(again, "toy", own_option=20)
        assert again(ids).logits.shape == (1, 7, 50)


def test_the_shared_table_takes_it():
    entry = masks.mask_entry("toy")
    table.test_laws_of_every_mask(entry)
    table.test_block_masks_are_those_of_torch(entry, 4)
    table.test_declared_as_stable_is_stable(entry)


def test_a_role_has_one_meaning():
    with pytest.raises(AttnExtError, match=r"role 'mask' is Role.*in mask 'block_two_stream'.*use that or"):
        hax.register_mask("toy2", example={}, roles={"mask": roles.Role("M", COLOUR)})(lambda n: None)
    with pytest.raises(AttnExtError, match="no option 'w' to clip; its options: n"):
        hax.register_mask("toy2", example={}, clipped="w")(lambda n: None)
    assert "toy2" not in hax.list_masks()
