"""``python -m benchmarks.speed COMMAND``: how fast, how much memory, and from which length a kernel pays."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_attn_ext.errors import AttnExtError

Lengths = Annotated[str, typer.Option("--lengths", help="Tokens, increasing, with commas.")]
Contexts = Annotated[str, typer.Option("--contexts", help="Tokens before the timed ones, increasing, with commas.")]
Kernels = Annotated[str, typer.Option("--kernels", help="Names with commas, or `all`; see `hf-attn-ext list kernels`.")]
Heads = Annotated[int, typer.Option("--heads", min=1, help="Attention heads.")]
HeadDim = Annotated[int, typer.Option("--head-dim", min=1, help="Width of a head.")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Sequences.")]
FeatureDim = Annotated[int, typer.Option("--feature-dim", min=1, help="Features, at least, where one may choose.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Default: torch's own number.")]
Repeats = Annotated[int, typer.Option("--repeats", min=1, help="Timed calls of a contestant at most.")]
Budget = Annotated[float, typer.Option("--budget-seconds", help="Seconds of timed calls, a contestant and length.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda; auto takes CUDA where there is one.")]
Dtype = Annotated[str, typer.Option("--dtype", help="float32, float64, bfloat16 or float16.")]
Out = Annotated[Path, typer.Option("--out", help="The folder for the JSON file and the picture.")]


def attention(
    lengths: Lengths = "256,512,1024,2048,4096,8192,16384",
    kernels: Kernels = "all",
    causal: Annotated[
        bool | None, typer.Option("--causal/--bidirectional", help="Only this direction; default: both.")
    ] = None,
    heads: Heads = 12,
    head_dim: HeadDim = 64,
    batch: Batch = 1,
    feature_dim: FeatureDim = 128,
    threads: Threads = None,
    repeats: Repeats = 15,
    budget: Budget = 3.0,
    eager_limit: Annotated[int, typer.Option("--eager-limit", min=1, help="The longest length for eager.")] = 8192,
    skip_memory: Annotated[bool, typer.Option("--skip-memory", help="Only times.")] = False,
    device: Device = "auto",
    dtype: Dtype = "float32",
    out: Out = Path("runs/bench"),
) -> None:
    """Time one layer's attention and its peak memory, forward and backward, against sdpa, eager and performer-pytorch.

    All contestants take turns in one run. Prints where each kernel becomes faster than sdpa, slow cases included, and
    writes attention.json and attention.png.
    """
    chosen = parse_lengths(lengths, "--lengths")

    from benchmarks.speed.attention.bench import DIRECTIONS, AttentionBench, bench_attention
    from benchmarks.speed.attention.contestants import Workload
    from benchmarks.speed.attention.plot import draw_attention
    from benchmarks.speed.attention.report import attention_tables, check_folder, write_report

    work = Workload(batch, heads, head_dim, feature_dim, dtype, device)
    settings = AttentionBench(
        lengths=chosen,
        kernels=None if kernels == "all" else parse_names(kernels),
        directions=DIRECTIONS if causal is None else ("causal",) if causal else ("bidirectional",),
        workload=work,
        threads=threads,
        repeats=repeats,
        budget=budget,
        memory=not skip_memory,
        eager_limit=eager_limit,
    )
    file = check_folder(out) / "attention.json"
    report = bench_attention(settings, _progress, lambda report: write_report(report, file))
    draw_attention(report, file.with_suffix(".png"))
    _show(report, attention_tables(report), file)


def decode(
    contexts: Contexts = "512,1024,2048,4096,8192,16384",
    kernels: Kernels = "flexformer_p",
    layers: Annotated[int, typer.Option("--layers", min=1, help="Layers of the model.")] = 12,
    heads: Heads = 12,
    head_dim: HeadDim = 64,
    batch: Batch = 1,
    feature_dim: FeatureDim = 128,
    threads: Threads = None,
    repeats: Repeats = 15,
    budget: Budget = 10.0,
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", min=0, help="Tokens generated after a short prompt; 0 leaves that out.")
    ] = 32,
    prompt: Annotated[int, typer.Option("--prompt", min=1, help="Tokens of the short prompt.")] = 32,
    device: Device = "auto",
    dtype: Dtype = "float32",
    out: Out = Path("runs/bench"),
) -> None:
    """Time decoding per token at growing contexts, for converted models and the base model with its default cache.

    The model has GPT-2's shape and random weights. Writes decode.json and decode.png.
    """
    chosen = parse_lengths(contexts, "--contexts")

    from benchmarks.speed.attention.contestants import Workload
    from benchmarks.speed.attention.decode import DecodeBench, bench_decode
    from benchmarks.speed.attention.plot import draw_decode
    from benchmarks.speed.attention.report import check_folder, decode_tables, write_report
    from hf_attn_ext.attention import list_kernels
    from hf_attn_ext.cli.models import quiet

    settings = DecodeBench(
        contexts=chosen,
        kernels=list_kernels() if kernels == "all" else parse_names(kernels),
        layers=layers,
        workload=Workload(batch, heads, head_dim, feature_dim, dtype, device),
        threads=threads,
        repeats=repeats,
        budget=budget,
        prompt=prompt,
        new_tokens=new_tokens,
    )
    quiet()
    file = check_folder(out) / "decode.json"
    report = bench_decode(settings, _progress, lambda report: write_report(report, file))
    draw_decode(report, file.with_suffix(".png"))
    _show(report, decode_tables(report), file)


def hasse(
    lengths: Annotated[
        str, typer.Option("--lengths", help="Positions of dense masks, increasing, with commas.")
    ] = "512,1024,2048,4096,8192",
    packed: Annotated[
        str, typer.Option("--packed", help="Positions of masks given as bit rows, increasing, with commas; or `none`.")
    ] = "16384,32768",
    masks: Annotated[str, typer.Option("--masks", help="Names with commas, or `all`.")] = "all",
    networkx_limit: Annotated[
        int, typer.Option("--networkx-limit", min=0, help="The longest length for networkx.")
    ] = 512,
    threads: Threads = None,
    repeats: Repeats = 15,
    budget: Annotated[float, typer.Option("--budget-seconds", help="Seconds of timed calls, a mask and length.")] = 3.0,
    skip_memory: Annotated[bool, typer.Option("--skip-memory", help="Only times.")] = False,
    skip_families: Annotated[bool, typer.Option("--skip-families", help="No joint tasks.")] = False,
    out: Annotated[Path, typer.Option("--out", help="The folder for the JSON file.")] = Path("runs/bench"),
) -> None:
    """Time the order behind a mask (classes, down-sets, covers) and its peak memory, against networkx at 512 positions.

    Also derives two joint tasks and proves them. Prints how times grow, says which bars are met, and writes hasse.json.
    """
    chosen = parse_lengths(lengths, "--lengths")
    chosen_packed = () if packed == "none" else parse_lengths(packed, "--packed")

    from benchmarks.speed.attention.report import check_folder, write_report
    from benchmarks.speed.orders.hasse import NAMES, HasseBench, bench_hasse
    from benchmarks.speed.orders.hasse_report import hasse_heading, hasse_notes, hasse_tables

    settings = HasseBench(
        lengths=chosen,
        packed=chosen_packed,
        masks=NAMES if masks == "all" else parse_names(masks),
        networkx_limit=networkx_limit,
        threads=threads,
        repeats=repeats,
        budget=budget,
        memory=not skip_memory,
        families=not skip_families,
    )
    file = check_folder(out) / "hasse.json"
    report = bench_hasse(settings, _progress, lambda report: write_report(report, file))
    _print(hasse_heading(report), hasse_tables(report), hasse_notes(report))
    typer.echo(f"report: {file}")


def order(
    lengths: Annotated[
        str, typer.Option("--lengths", help="Positions, increasing, with commas.")
    ] = "1024,2048,4096,8192,16384",
    masks: Annotated[
        str, typer.Option("--masks", help="causal, block_two_stream, butterfly, with commas; or `all`.")
    ] = "all",
    block_size: Annotated[int, typer.Option("--block-size", min=1, help="Of block two-stream.")] = 8,
    kernel: Annotated[str, typer.Option("--kernel", help="See `hf-attn-ext list kernels`.")] = "flexformer_p",
    heads: Heads = 12,
    head_dim: HeadDim = 64,
    batch: Batch = 1,
    feature_dim: FeatureDim = 128,
    threads: Threads = None,
    repeats: Repeats = 15,
    budget: Budget = 3.0,
    sdpa_limit: Annotated[int, typer.Option("--sdpa-limit", min=0, help="The longest length for sdpa.")] = 8192,
    skip_memory: Annotated[bool, typer.Option("--skip-memory", help="Only times.")] = False,
    device: Device = "auto",
    dtype: Dtype = "float32",
    out: Out = Path("runs/bench"),
) -> None:
    """Time linear attention over the orders of masks, forward and backward, against sdpa with the dense mask.

    Both take turns in one run. Prints how time and memory grow, says which bars are met, and writes order.json and
    order.png.
    """
    chosen = parse_lengths(lengths, "--lengths")

    from benchmarks.speed.attention.contestants import Workload
    from benchmarks.speed.attention.report import check_folder, heading, write_report
    from benchmarks.speed.orders.order import NAMES, OrderBench, bench_order
    from benchmarks.speed.orders.order_report import draw_order, order_notes, order_tables

    settings = OrderBench(
        lengths=chosen,
        masks=NAMES if masks == "all" else parse_names(masks),
        block_size=block_size,
        kernel=kernel,
        workload=Workload(batch, heads, head_dim, feature_dim, dtype, device),
        threads=threads,
        repeats=repeats,
        budget=budget,
        memory=not skip_memory,
        sdpa_limit=sdpa_limit,
    )
    file = check_folder(out) / "order.json"
    report = bench_order(settings, _progress, lambda report: write_report(report, file))
    draw_order(report, file.with_suffix(".png"))
    _print(heading(report), order_tables(report), order_notes(report))
    typer.echo(f"report: {file}\npicture: {file.with_suffix('.png')}")


def probe(
    layers: Annotated[int, typer.Option("--layers", min=1, help="Layers of the model.")] = 12,
    heads: Heads = 12,
    head_dim: HeadDim = 64,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Texts.")] = 8,
    length: Annotated[int, typer.Option("--length", help="Tokens of a text.")] = 128,
    threads: Threads = None,
    repeats: Repeats = 15,
    budget: Annotated[float, typer.Option("--budget-seconds", help="Seconds of timed calls, a contestant.")] = 20.0,
    out: Annotated[Path, typer.Option("--out", help="The folder for the JSON file.")] = Path("runs/bench"),
) -> None:
    """Time and peak memory of the context similarity probe over a plain forward pass, by default of BERT-base's shape.

    Against TransformerLens, where it is installed. Says which bars are met, and writes probe.json.
    """
    from benchmarks.speed.attention.report import check_folder, write_report
    from hf_attn_ext.cli.models import quiet

    from .probe import ProbeBench, bench_probe, probe_heading, probe_notes, probe_tables

    settings = ProbeBench(layers, heads, head_dim, batch, length, threads, repeats, budget)
    quiet()
    file = check_folder(out) / "probe.json"
    report = bench_probe(settings, _progress)
    write_report(report, file)
    _print(probe_heading(report), probe_tables(report), probe_notes(report))
    typer.echo(f"report: {file}")


def start(
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Fresh processes per contestant.")] = 5,
    out: Annotated[Path, typer.Option("--out", help="The folder for the JSON file.")] = Path("runs/bench"),
) -> None:
    """Time `import hf_attn_ext` against torch and Transformers' auto classes, and the quick commands, in CPU time.

    Every time is of a fresh process. Says which bars are met, and writes start.json.
    """
    from benchmarks.speed.attention.report import check_folder, write_report

    from .start import StartBench, bench_start, start_heading, start_notes, start_tables

    file = check_folder(out) / "start.json"
    report = bench_start(StartBench(repeats), _progress)
    write_report(report, file)
    _print(start_heading(report), start_tables(report), start_notes(report))
    typer.echo(f"report: {file}")


def parse_lengths(text: str, option: str) -> tuple[int, ...]:
    """Return the numbers in ``"256,512"``.

    Raises:
        AttnExtError: a part that is no whole number from 1, or one that is not larger than the one before.
    """
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise AttnExtError(f"{option} must be whole numbers such as '256,512', got {text!r}") from None
    for before, number in zip((0, *numbers), numbers, strict=False):
        if number < 1:
            raise AttnExtError(f"{option} must be at least 1, got {number}")
        if number <= before:
            raise AttnExtError(f"{option} must increase, got {number} after {before}")
    return numbers


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names in ``"hedgehog,performer"``."""
    return tuple(part.strip() for part in text.split(","))


def _progress(text: str) -> None:
    print(f"[bench] {text}", file=sys.stderr, flush=True)


def _show(report: dict[str, Any], tables: list[Any], file: Path) -> None:
    from benchmarks.speed.attention.report import heading, notes

    _print(heading(report), tables, notes(report))
    typer.echo(f"report: {file}\npicture: {file.with_suffix('.png')}")


def _print(heading: str, tables: list[Any], notes: list[str]) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(heading, highlight=False)
    for table in tables:
        title, table.title = table.title, None  # a title of the table's own breaks at the table's width
        console.print(f"\n{title}", style="bold", highlight=False, markup=False)
        console.print(table)
    for line in notes:
        console.print(line, highlight=False, markup=False)


app = typer.Typer(
    help="Measure speed and memory against softmax, performer-pytorch and networkx.", rich_markup_mode=None
)
for command in (attention, decode, hasse, order, probe, start):
    app.command()(command)
