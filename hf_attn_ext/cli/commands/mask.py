"""``hf-attn-ext mask show | analyze | derive``: show a mask, the order behind it, or derive one from tasks."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from hf_attn_ext._util.docstrings import argument_texts
from hf_attn_ext.errors import AttnExtError, suggest

if TYPE_CHECKING:
    from hf_attn_ext.hasse import MaskSpec
    from hf_attn_ext.hasse.registry import MaskEntry

MOST_LINES = 40  # of a Hasse diagram as text
MOST_POSITIONS = 1 << 15  # the reachability of so many positions takes a gigabyte

Layers = Annotated[
    int | None, typer.Option("--layers", min=1, help="Layers of the model, to compare with the mask's depth.")
]
Out = Annotated[
    Path | None, typer.Option("--out", help="A picture (.png, .svg) or the mask (.npy, .pt, .json, .csv) to write.")
]
What = Annotated[str, typer.Option("--what", help="What a picture shows: both, mask or hasse.")]
COMMON: dict[str, tuple[Any, Any]] = {"layers": (Layers, None), "out": (Out, None), "what": (What, "both")}


class _ShowGroup(TyperGroup):
    """``mask show``: one command per registered mask, made when it is asked for."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from hf_attn_ext.hasse.masks import list_masks

        names = [word for word in args if word in list_masks()]
        if names and args[0].startswith("-"):  # options before the name
            args = [names[0], *(word for word in args if word != names[0])]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        from hf_attn_ext.hasse.masks import list_masks

        return list_masks()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from hf_attn_ext.hasse.masks import list_masks

        if cmd_name not in list_masks() and Path(cmd_name).is_file():
            raise AttnExtError(
                f"mask show takes the name of a mask, got the file {cmd_name!r}; use mask analyze for it"
            )
        return _show_command(cmd_name)


class _ShowCommand(TyperCommand):
    """``mask show NAME``; an unknown option is reported with those of the mask."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if not hasattr(error, "possibilities"):  # click's NoSuchOption, whose module depends on typer's version
                raise
            known = ", ".join(_flag(parameter.name) for parameter in self.params if parameter.name not in COMMON)
            raise AttnExtError(
                f"mask {self.name!r} has no option {getattr(error, 'option_name', '')}; its options: {known}"
            ) from None


show = typer.Typer(cls=_ShowGroup, rich_markup_mode=None, subcommand_metavar="NAME [OPTIONS]")


@show.callback(invoke_without_command=True)
def _show(context: typer.Context) -> None:
    """Print a mask, its Hasse diagram and the findings of its check; write a picture or the mask.

    Every mask has its own options: see `hf-attn-ext mask show NAME --help`. Options that are left out are those of a
    small example.
    """
    if context.invoked_subcommand is None:
        raise AttnExtError("mask show needs the name of a mask; `hf-attn-ext list masks` lists them")


def _show_command(name: str) -> Any:
    """Return the command that shows a mask; its options are the parameters of the function that makes the mask."""
    from hf_attn_ext.hasse.masks import mask_entry

    entry = mask_entry(name)
    kinds = {option: _kind(parameter, entry.example.get(option)) for option, parameter in _parameters(entry).items()}
    for option in kinds:
        if option in COMMON:
            raise AttnExtError(f"mask {name!r} has an option {option!r}, which mask show needs; rename it")

    def command(layers: int | None, out: Path | None, what: str, **chosen: Any) -> None:
        write = _writer(out, what)
        given = {
            option: _numbers(_flag(option), value) if kinds[option] is list else value
            for option, value in chosen.items()
            if value is not None
        }
        spec = _make(name, entry, given)
        if len(spec) > MOST_POSITIONS:
            raise AttnExtError(f"{spec.title} has {len(spec)} positions; mask show orders at most {MOST_POSITIONS}")
        typer.echo(f"{spec.title}: {len(spec)} positions for {spec.tokens} tokens\n")
        typer.echo(spec.text() + "\n")
        _report(spec, layers, write)

    texts = argument_texts(entry.make)
    own = {option: (_option(option, kind, texts.get(option, ""), entry), None) for option, kind in kinds.items()}
    keyword = inspect.Parameter.KEYWORD_ONLY
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # read by typer
        [inspect.Parameter(o, keyword, default=default, annotation=a) for o, (a, default) in (own | COMMON).items()]
    )
    command.__annotations__ = {}
    made = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    made.command(name, cls=_ShowCommand, help=(inspect.getdoc(entry.make) or "").partition("\n")[0])(command)
    return typer.main.get_command(made)


def _parameters(entry: MaskEntry) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(entry.make, eval_str=True).parameters)
    except NameError:  # an annotation that only a type checker can resolve
        return entry.options


def _kind(parameter: inspect.Parameter, example: Any) -> type:
    """Return the type of an option: int, float, str or bool, or list for numbers with commas between."""
    annotation = parameter.annotation
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kinds = [typing.get_origin(kind) or kind for kind in (typing.get_args(annotation) if union else [annotation])]
    if any(isinstance(kind, type) and issubclass(kind, Sequence) and kind is not str for kind in kinds):
        return list
    known = [kind for kind in kinds if kind in (bool, int, float, str)]
    default = parameter.default if example is None else example
    kind = known[0] if known else type(default)
    return list if kind in (tuple, range) else kind if kind in (bool, int, float, str, list) else str


def _option(option: str, kind: type, text: str, entry: MaskEntry) -> Any:
    """Return the annotation of an option; left out, it has the example's value or the signature's default."""
    value = entry.example.get(option, entry.options[option].default)
    shown = ",".join(map(str, value)) if isinstance(value, list | tuple | range) else value
    default = "" if value in (None, inspect.Parameter.empty) else f" Default: {shown}."
    flag = f"{_flag(option)}/--no-{_flag(option)[2:]}" if kind is bool else _flag(option)
    help_text = (text[:1].upper() + text[1:]).replace("``", "") + default
    return Annotated[str if kind is list else kind, typer.Option(flag, help=help_text.strip())]


def analyze(
    file: Annotated[Path, typer.Argument(help="A mask: .npy, .pt (weights only), .json or .csv; 1 = may attend.")],
    labels: Annotated[
        str | None, typer.Option("--labels", help="What is predicted where: position:token, such as 0:1,1:2.")
    ] = None,
    layers: Layers = None,
    out: Out = None,
    what: What = "both",
) -> None:
    """Print the order behind a mask in a file (classes, covers, height, width, depth) and the findings of its check.

    The exit code is 2 if the check finds an error: a prediction that can see its target, or a row that sees nothing.
    """
    write = _writer(out, what)
    from hf_attn_ext.hasse.files.read import read_mask_file

    spec = read_mask_file(file, labels=_pairs("--labels", labels))
    typer.echo(f"{file}\n")
    _report(spec, layers, write)


def derive(
    file: Annotated[Path, typer.Argument(help="A task family, .json: see the guide to masks in docs/.")],
    window: Annotated[
        int | None,
        typer.Option("--window", min=1, help="Cut the mask to pairs at most so many covers apart."),
    ] = None,
    layers: Layers = None,
    out: Out = None,
    what: What = "both",
) -> None:
    """Print the minimal joint task of a task family; write its mask or a picture with --out.

    A task: {"inputs": [["the", 0], ["cat", 1]], "labels": {"1": ["sat", 2]}, "mask": "causal"}; the mask may also be
    rows of 0 and 1, "bidirectional", or {"groups": [1, 2]}. The file: a list of tasks.
    """
    write = _writer(out, what)
    from hf_attn_ext.hasse import minimal_joint_task
    from hf_attn_ext.hasse.files.read import read_tasks_file
    from hf_attn_ext.hasse.inputs import input_text
    from hf_attn_ext.hasse.tasks.as_spec import spec_of_task

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
        pairs = [f"{task}:{source}" for task, source in sources]
        listed = " ".join(pairs[:8]) + (f" ... ({len(pairs)})" if len(pairs) > 8 else "")
        typer.echo(f"{position:<9} {input_text(entry):14} {label:14} {listed}")
    typer.echo("\n" + spec.text() + "\n")
    if not verified:
        raise RuntimeError(f"the joint task is not the smallest common supergraph: {verified.problems}")
    typer.echo("verified: a common supergraph, and none is smaller\n")
    _report(spec, layers, write)


def _report(spec: MaskSpec, layers: int | None, write: Callable[[MaskSpec], None]) -> None:
    """Print numbers, diagram and findings; write the file; raise the first error of the check, if there is one."""
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
    """Return what writes ``--out``; mistakes in it are reported before any work."""
    from hf_attn_ext.hasse.drawing.draw import PARTS, SUFFIXES, draw
    from hf_attn_ext.hasse.files.write import MASK_SUFFIXES, write_mask_file

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


def _make(name: str, entry: MaskEntry, given: dict[str, Any]) -> MaskSpec:
    from hf_attn_ext.hasse.masks import make_mask

    try:
        return make_mask(name, **{**entry.example, **given})
    except AttnExtError as error:
        for option, value in entry.example.items():
            if option not in given and f"{name}: {option}" in str(error):
                raise AttnExtError(f"{error}; {_flag(option)} was left out, {value} is the example's") from None
        raise


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


def _numbers(option: str, text: str) -> list[int]:
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
