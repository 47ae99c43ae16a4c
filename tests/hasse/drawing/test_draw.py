"""Pictures and text: the same bytes each time, nothing overlaps, every line ends at its boxes, groups where many."""

import itertools

import matplotlib
import numpy as np
import pytest
import torch

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec, Poset, masks
from hf_attn_ext.hasse.drawing.diagram import MOST_NODES, Diagram
from hf_attn_ext.hasse.drawing.draw import _strength, colour_of, draw, figure
from hf_attn_ext.hasse.drawing.layout import lay_out
from hf_attn_ext.hasse.text import class_title, hasse_text, mask_text, tile_shares


def random_order(size, share, seed=0):
    mask = torch.rand(size, size, generator=torch.Generator().manual_seed(seed)) < share
    return MaskSpec.from_mask(mask.tril() | torch.eye(size, dtype=torch.bool), name="random order")


def random_digraph(size, share, seed=0):
    return MaskSpec.from_mask(torch.rand(size, size, generator=torch.Generator().manual_seed(seed)) < share)


SPECS = [
    masks.causal(1),
    masks.causal(9),
    masks.causal(100),
    masks.butterfly(6),
    masks.butterfly(30, window=3),
    masks.block_two_stream(7, 3),
    masks.block_diffusion(8, 4),
    masks.bidirectional(5),
    masks.document([3, 5, 1]),
    MaskSpec.from_mask(torch.eye(200), name="antichain"),
    random_order(60, 0.08),
    random_order(200, 0.015),
    random_digraph(60, 0.03),
    random_order(400, 0.01),
    masks.butterfly(300),
]
IDS = [f"{spec.name}-{len(spec)}" for spec in SPECS]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
@pytest.mark.parametrize("what", ["both", "mask", "hasse"])
def test_the_same_bytes_whatever_the_users_style(tmp_path, suffix, what):
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    draw(masks.butterfly(5, window=2), first, what)
    with matplotlib.rc_context({"font.size": 20, "lines.linewidth": 5, "svg.hashsalt": "mine", "savefig.dpi": 30}):
        draw(masks.butterfly(5, window=2), second, what)
        assert matplotlib.rcParams["font.size"] == 20
    assert first.read_bytes() == second.read_bytes()
    assert b"matplotlib" not in first.read_bytes().split(b"<defs>")[0].lower()  # no program, no version, no date
    assert sorted(path.name for path in tmp_path.iterdir()) == [first.name, second.name]


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_boxes_do_not_overlap_and_lines_cut_none(spec):
    poset = Poset.from_mask(spec)
    diagram = Diagram.of(spec, poset)
    half = [len(node.title) / 2 + 0.45 for node in diagram.nodes]
    for (a, wide), (b, other) in itertools.combinations(zip(diagram.nodes, half, strict=True), 2):
        assert a.y != b.y or abs(a.x - b.x) >= wide + other - 1e-6, (a, b)
    for node, wide in zip(diagram.nodes, half, strict=True):
        assert node.x - wide >= -1e-6 and node.x + wide <= diagram.width + 1e-6
        assert 0 <= node.y < diagram.rows
    rows = {y: [(n.x, w) for n, w in zip(diagram.nodes, half, strict=True) if n.y == y] for y in range(diagram.rows)}
    for points, jump in diagram.lines:
        for (x, y), (to_x, to_y) in itertools.pairwise(points):
            # Inside a row's band of boxes a line is upright, and next to them; between the bands it may slant.
            row = round((y + to_y) / 2)
            if abs(y - to_y) <= 2 * diagram.half + 1e-9 and abs((y + to_y) / 2 - row) < 1e-9 and not jump:
                assert x == to_x
                assert all(abs(x - middle) >= wide - 1e-6 for middle, wide in rows[row])


@pytest.mark.parametrize("spec", SPECS[:-2], ids=IDS[:-2])
def test_small_diagrams_have_every_class_and_every_cover(spec):
    poset = Poset.from_mask(spec)
    diagram = Diagram.of(spec, poset)
    assert [node.title for node in diagram.nodes] == [class_title(c, spec.names) for c in poset.classes]
    # Lines leave a box at its top and arrive at one's bottom: as many of each as there are covers.
    tops = {(node.x, node.y + diagram.half) for node in diagram.nodes}
    bottoms = {(node.x, node.y - diagram.half) for node in diagram.nodes}
    assert sum(way[0] in tops for way, _ in diagram.lines) == len(poset.covers)
    assert sum(way[-1] in bottoms for way, _ in diagram.lines) == len(poset.covers)


def test_many_classes_are_drawn_in_groups():
    for spec in SPECS[-2:]:
        poset = Poset.from_mask(spec)
        diagram = Diagram.of(spec, poset)
        assert len(poset.classes) > MOST_NODES >= 4 * len(diagram.nodes)
        assert f"{len(poset.classes)} classes in {len(diagram.nodes)} groups" in diagram.caption.replace(",", "")
        assert not diagram.marks


def test_groups_that_see_each_other_are_one():
    size = 300
    spec = MaskSpec.from_mask(
        torch.ones(size, size).tril(), roles=["even" if i % 2 else "odd" for i in range(size)], name="two roles"
    )
    diagram = Diagram.of(spec, Poset.from_mask(spec))
    assert 1 <= len(diagram.nodes) <= 60


def test_a_tall_chain_goes_on_in_further_columns():
    spec = masks.causal(200)
    diagram = Diagram.of(spec, Poset.from_mask(spec))
    assert diagram.rows <= 30 and sum(jump for _, jump in diagram.lines) == 200 // diagram.rows
    spec = masks.butterfly(60)  # too many lines would be cut
    assert Diagram.of(spec, Poset.from_mask(spec)).rows == 60


def test_layout_keeps_chains_straight_and_untangled():
    # Two chains of four, and one node over both.
    levels = [0, 1, 2, 3, 0, 1, 2, 3, 4]
    edges = [(0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7), (3, 8), (7, 8)]
    layout = lay_out(levels, edges, [4.0] * 9, [*"aaaabbbb", "c"])
    assert max(layout.x[:4]) - min(layout.x[:4]) < 1 and max(layout.x[4:8]) - min(layout.x[4:8]) < 1
    assert layout.row == levels
    middle = (layout.x[3] + layout.x[7]) / 2
    assert abs(layout.x[8] - middle) < 1


def test_strength_says_direct_later_never():
    strength = _strength(masks.sliding_window(5, 2), 1)
    assert (np.diag(strength) == 1).all() and (np.triu(strength, 1) == 0).all()
    assert strength[2, 1] == 1 > strength[2, 0] > strength[3, 0] > strength[4, 0] > 0
    assert set(np.unique(_strength(masks.causal(6), 1))) == {0, 1}


def test_tiles_are_shares():
    spec = masks.prefix_lm(11, 4)
    shares = tile_shares(spec, 4)
    dense = spec.dense().float()
    assert shares.shape == (3, 3)
    for i, j in itertools.product(range(3), range(3)):
        assert torch.isclose(shares[i, j], dense[4 * i : 4 * i + 4, 4 * j : 4 * j + 4].mean())


def test_every_position_is_named_in_a_small_picture():
    spec = masks.butterfly(5)
    picture = figure(spec, "mask")
    (axes,) = picture.axes
    assert [text.get_text() for text in axes.get_xticklabels()] == list(spec.names)
    assert [text.get_text() for text in axes.get_yticklabels()] == list(spec.names)
    said = {text.get_text() for text in axes.texts}
    assert said == {f"→ {k}" for k in range(5)}
    assert len(figure(spec, "both").axes) == 2


def test_dollars_are_no_formulas(tmp_path):
    spec = MaskSpec.from_mask([[1, 0], [1, 1]], names=["$a_{", "b$"], name="$\\frac$")
    draw(spec, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size > 1000


def test_colours_of_unknown_roles_differ():
    roles = ["token", "red herring", "ghost"]
    assert len({colour_of(role, roles) for role in roles}) == 3


@pytest.mark.parametrize(
    ("path", "what", "said"),
    [
        ("a.pdf", "both", r"ending in .png or .svg, got 'a.pdf'"),
        ("none/a.png", "both", "does not exist"),
        ("a.png", "hass", "what must be one of both, mask, hasse, got 'hass'. Did you mean 'hasse'?"),
    ],
)
def test_bad_arguments(tmp_path, path, what, said):
    with pytest.raises(AttnExtError, match=said):
        draw(masks.causal(3), tmp_path / path, what)
    assert not list(tmp_path.iterdir())


def test_text_of_a_mask():
    assert mask_text(masks.block_two_stream(2, 1)) == "\n".join(
        [
            "   w0 w1 m0 m1",
            "w0  #  .  .  .  clean",
            "w1  #  #  .  .  clean",
            "m0  .  .  #  .  mask  -> 0",
            "m1  #  .  .  #  mask  -> 1",
        ]
    )
    assert mask_text(masks.causal(30)).splitlines()[1] == "w1  # #" + " ." * 28 + "  token -> 2"
    coarse = mask_text(masks.causal(130)).splitlines()
    assert "3 x 3" in coarse[0] and len(coarse) == 1 + 44
    assert coarse[1].split() == ["w0", "+" + "." * 43, "token"] and coarse[2].split()[1] == "#+" + "." * 42


def test_text_of_a_diagram():
    spec = masks.block_diffusion(4, 2)
    assert hasse_text(Poset.from_mask(spec), spec.names).splitlines() == [
        "level 1",
        "  x2,x3         over w0,w1",
        "  w2,w3         over w0,w1",
        "level 0",
        "  x0,x1",
        "  w0,w1",
    ]


def test_text_of_a_diagram_with_many_covers():
    mask = torch.eye(21, dtype=torch.bool)
    mask[20] = True
    line = hasse_text(Poset.from_mask(mask), tuple(map(str, range(21)))).splitlines()[1]
    assert line.split("over ")[1] == "0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | ... (20)"


@pytest.mark.parametrize(
    ("members", "title"),
    [((1,), "w1"), ((0, 1), "w0,w1"), ((0, 1, 2, 5), "w0..w2,w5"), ((0, 2, 4, 6, 8), "w0,w2,w4,... (5)")],
)
def test_titles(members, title):
    assert class_title(members, tuple(f"w{i}" for i in range(9))) == title
