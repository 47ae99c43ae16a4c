"""``hf-attn-ext mask show | analyze | derive``: look at a mask, at the order behind it, derive one from tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_attn_ext.errors import AttnExtError, suggest

if TYPE_CHECKING:
    from hf_attn_ext.hasse import MaskSpec

MOST_LINES = 40  # of a Hasse diagram as text
MOST_POSITIONS = 1 << 15  # what reaches what, a byte a pair, takes a gigabyte

Layers = Annotated[int | None, typer.Option("--layers", min=1, help="The model's layers: are they enough?")]
Out = Annotated[
    Path | None, typer.Option("--out", help="A picture (.png, .svg) or the mask (.npy, .pt, .json, .csv) to write.")
]
What = Annotated[str, typer.Option("--what", help="In a picture: both, mask or hasse.")]


def show(
    name: Annotated[str, typer.Argument(help="A mask; `hf-attn-ext list masks` names them.")],
    n: Annotated[int | None, typer.Option("--n", help="Tokens.")] = None,
    p: Annotated[int | None, typer.Option("--p", help="prefix_lm: tokens of the prefix.")] = None,
    w: Annotated[int | None, typer.Option("--w", help="sliding_window: tokens in the window.")] = None,
    b: Annotated[int | None, typer.Option("--b", help="block_diffusion: tokens of a block.")] = None,
    block_size: Annotated[int | None, typer.Option("--block-size", help="block_two_stream: tokens of a block.")] = None,
    context: Annotated[str | None, typer.Option("--context", help="block_two_stream: token or block.")] = None,
    starts: Annotated[str | None, typer.Option("--starts", help="block_two_stream: boundary or every.")] = None,
    window: Annotated[int | None, typer.Option("--window", help="butterfly: neighbours seen on each side.")] = None,
    perm: Annotated[str | None, typer.Option("--perm", help="xlnet_two_stream: an order such as 2,0,1.")] = None,
    lengths: Annotated[str | None, typer.Option("--lengths", help="document: lengths such as 3,5.")] = None,
    causal: Annotated[
        bool | None, typer.Option("--causal/--no-causal", help="document: the default is causal.")
    ] = None,
    visible: Annotated[str | None, typer.Option("--visible", help="masked_autoencoder: tokens such as 0,2,5.")] = None,
    layers: Layers = None,
    out: Out = None,
    what: What = "both",
) -> None:
    """Print a mask, its Hasse diagram and what its check finds; write a picture or the mask itself.

    Options that are left out are those of a small example.
    """
    write = _writer(out, what)
    from hf_attn_ext.hasse.masks import mask_entry

    given = {
        "n": n,
        "p": p,
        "w": w,
        "b": b,
        "block_size": block_size,
        "context": context,
        "starts": starts,
        "window": window,
        "perm": _numbers("--perm", perm),
        "lengths": _numbers("--lengths", lengths),
        "causal": causal,
        "visible": _numbers("--visible", visible),
    }
    given = {option: value for option, value in given.items() if value is not None}
    entry = mask_entry(name)
    _refuse_others(name, given, list(entry.options))
    spec = _make(name, entry.example, given)
    if len(spec) > MOST_POSITIONS:
        raise AttnExtError(f"{spec.title} has {len(spec)} positions; mask show orders at most {MOST_POSITIONS}")
    typer.echo(f"{spec.title}: {len(spec)} positions for {spec.tokens} tokens\n")
    typer.echo(spec.text() + "\n")
    _report(spec, layers, write)


def analyze(
    file: Annotated[Path, typer.Argument(help="A mask: .npy, .pt (weights only), .json or .csv; 1 = may attend.")],
    labels: Annotated[
        str | None, typer.Option("--labels", help="What must be predicted where: position:token, such as 0:1,1:2.")
    ] = None,
    layers: Layers = None,
    out: Out = None,
    what: What = "both",
) -> None:
    """Print the order behind a mask in a file (classes, covers, height, width, depth) and what its check finds.

    Exit code 2 where the check finds an error: a prediction that can see its target, or a row that sees nothing.
    """
    write = _writer(out, what)
    from hf_attn_ext.hasse.files.files import read_mask_file

    spec = read_mask_file(file, labels=_pairs("--labels", labels))
    typer.echo(f"{file}\n")
    _report(spec, layers, write)


def derive(
    file: Annotated[Path, typer.Argument(help="A family of tasks, .json: see the guide to masks in docs/.")],
    window: Annotated[
        int | None, typer.Option("--window", min=1, help="Cut the mask to pairs at most so many covers apart.")
    ] = None,
    layers: Layers = None,
    out: Out = None,
    what: What = "both",
) -> None:
    """Print the minimal joint task of a family of tasks; write its mask or a picture with --out.

    A task: {"inputs": [["the", 0], ["cat", 1]], "labels": {"1": ["sat", 2]}, "mask": "causal"}; the mask may also be
    rows of 0 and 1, "bidirectional", or {"groups": [1, 2]}. The file: a list of tasks.
    """
    write = _writer(out, what)
    from hf_attn_ext.hasse import minimal_joint_task
    from hf_attn_ext.hasse.files.files import input_text, read_tasks_file, spec_of_task

    joint = minimal_joint_task(read_tasks_file(file))
    verified = joint.verify()
    if window is not None:
        joint = joint.sparsify(window, within="full")
    spec = spec_of_task(joint, name=f"joint task of {input_text(file.name)}")
    nodes = sum(len(task.inputs) for task in joint.tasks)
    typer.echo(f"{len(joint.tasks)} tasks with {nodes} positions -> {len(joint)} positions\n")
    typer.echo(f"{'position':9} {'input':14} {'label':14} from task:position")
    for position, (entry, sources) in enumerate(zip(joint.inputs, joint.sources, strict=True)):
        label = input_text(joint.labels[position]) if position in joint.labels else ""
        places = [f"{task}:{place}" for task, place in sources]
        listed = " ".join(places[:8]) + (f" ... ({len(places)})" if len(places) > 8 else "")
        typer.echo(f"{position:<9} {input_text(entry):14} {label:14} {listed}")
    typer.echo("\n" + spec.text() + "\n")
    if not verified:
        raise RuntimeError(f"the joint task is not the smallest common supergraph: {verified.problems}")
    typer.echo("verified: a common supergraph, and none is smaller\n")
    _report(spec, layers, write)


def _report(spec: MaskSpec, layers: int | None, write: Callable[[MaskSpec], None]) -> None:
    """Numbers, diagram, findings; then the file; then the first error, if there is one."""
    from hf_attn_ext.hasse import Poset
    from hf_attn_ext.hasse.checks import refuse
    from hf_attn_ext.hasse.summary import summarise
    from hf_attn_ext.hasse.text import hasse_text

    poset = Poset.from_mask(spec)
    typer.echo(str(summarise(spec, poset)))
    lines = hasse_text(poset, spec.names).splitlines()
    typer.echo("\nHasse diagram\n" + "\n".join(lines[:MOST_LINES]))
    if len(lines) > MOST_LINES:
        typer.echo(f"  ... {len(lines) - MOST_LINES} more lines")
    typer.echo("")
    findings = spec.check(num_layers=layers)
    for finding in findings:
        typer.echo(str(finding))
    write(spec)
    refuse(spec, findings)


def _writer(out: Path | None, what: str) -> Callable[[MaskSpec], None]:
    """What writes ``--out``; mistakes in it are found here, before any work."""
    from hf_attn_ext.hasse.drawing.draw import PARTS, SUFFIXES, draw
    from hf_attn_ext.hasse.files.files import MASK_SUFFIXES, write_mask_file

    if what not in PARTS:
        raise AttnExtError(f"--what must be one of {', '.join(PARTS)}, got {what!r}.{suggest(what, PARTS)}")
    if out is None:
        return lambda spec: None
    if out.suffix.lower() not in (*SUFFIXES, *MASK_SUFFIXES):
        raise AttnExtError(f"--out must end in {', '.join((*SUFFIXES, *MASK_SUFFIXES))}, got {out.name!r}")
    if not out.parent.is_dir():
        raise AttnExtError(f"--out: the folder {str(out.parent)!r} does not exist; make it first")
    if out.is_dir():
        raise AttnExtError(f"--out {str(out)!r} is a folder; name a file")

    def write(spec: MaskSpec) -> None:
        if out.suffix.lower() in SUFFIXES:
            draw(spec, out, what)
        else:
            write_mask_file(spec, out)
        typer.echo(f"\nwritten: {out}")

    return write


def _refuse_others(name: str, given: dict[str, Any], known: list[str]) -> None:
    for option in given:
        if option not in known:
            listed = ", ".join(_flag(one) for one in known)
            raise AttnExtError(f"mask {name!r} has no option {_flag(option)}; its options: {listed}")


def _make(name: str, example: Mapping[str, Any], given: dict[str, Any]) -> MaskSpec:
    from hf_attn_ext.hasse.masks import make_mask

    try:
        return make_mask(name, **{**example, **given})
    except AttnExtError as error:
        for option, value in example.items():
            if option not in given and f"{name}: {option}" in str(error):
                raise AttnExtError(f"{error}; {_flag(option)} was left out, {value} is the example's") from None
        raise


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


def _numbers(option: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        raise AttnExtError(f"{option} must be whole numbers with commas, such as 2,0,1, got {text!r}") from None


def _pairs(option: str, text: str | None) -> dict[int, int] | None:
    if text is None:
        return None
    read: dict[int, int] = {}
    for part in text.split(","):
        position, colon, label = part.partition(":")
        try:
            key, value = int(position), int(label)
        except ValueError:
            raise AttnExtError(f"{option} must be position:token with commas, such as 0:1,1:2, got {part!r}") from None
        if not colon or key in read:
            raise AttnExtError(f"{option}: position {key} has two labels in {text!r}")
        read[key] = value
    return read
