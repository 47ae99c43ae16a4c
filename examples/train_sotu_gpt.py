"""A small GPT trained on real English from scratch: softmax, every kernel, and a control that sees the last 8 tokens.

    python examples/train_sotu_gpt.py                                       # one seed of everything
    python examples/train_sotu_gpt.py --kernels flexformer_c,hedgehog,elu --seeds 0,1,2

The text: the State of the Union addresses, 1790 to 2026, split by year (``examples/assets.py``). A byte-level BPE
vocabulary is trained on the training years. Every run has the same data in the same order, the same steps, the same
initial weights and the same number of parameters: what a kernel's feature maps hold is taken off the MLPs' width.

``softmax`` is the stock model, a GPT with rotary positions (the host's Llama classes); ``--positions learned`` takes
GPT-2, which needs several times as many steps until it looks anywhere. ``last-8`` is the same with windows in its
attention, layer by layer so narrow that a prediction depends on the last 8 tokens and on nothing before them. What
softmax gains over it is what looking back is worth here, and a kernel shall keep it. The linear models are converted
before training (``hf_attn_ext.convert``) and trained whole; their maps may learn faster (``--map-lr-factor``).

The library's training loop runs all of it (``hf_attn_ext.training``), so a stopped run goes on when the same command is
given again; a finished one is read. Writes OUT/results.json, .md and .png; the models are in OUT/NAME/seed-SEED/model.
"""

from __future__ import annotations

import argparse
import bisect
import dataclasses
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from assets import AssetError, ensure  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from hf_attn_ext.errors import AttnExtError, suggest  # noqa: E402

END = "<|endoftext|>"  # begins every address
KERNELS = ["flexformer_c", "hedgehog", "elu", "flexformer_n", "flexformer_s", "flexformer_sq", "performer", "rfa"]
KERNELS += ["cosformer", "polaformer"]
OURS = "flexformer"
WINDOWED = "sotu_windows"  # the attention function of the control


# -- vocabulary and models -----------------------------------------------------------------------------------------


def train_tokenizer(folder: Path, texts: list[str], vocabulary: int) -> Any:
    """Train a byte-level BPE on ``texts`` and save it to ``folder``, where it is read from the next time."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not (folder / "tokenizer.json").is_file():
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
        )
        backend.train_from_iterator(texts, trainer)
        made = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=END, eos_token=END, pad_token=END)
        made.model_input_names = ["input_ids", "attention_mask"]
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = folder.with_name(f".{folder.name}.part")
        made.save_pretrained(beside)
        os.replace(beside, folder)
    return AutoTokenizer.from_pretrained(folder)


def mlp_width(options: argparse.Namespace) -> int:
    """The stock models' MLP width: both kinds then have about as many parameters in it."""
    return 4 * options.hidden if options.positions == "learned" else 8 * options.hidden // 3


def stock_model(options: argparse.Namespace, vocabulary: int, end: int, seed: int, inner: int | None = None) -> Any:
    """An untrained GPT-2, or with rotary positions a Llama; no dropout: the text is passed over only once or so."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)  # the same initial weights for all, as far as the MLPs' widths are the same
    tokens = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "vocab_size": vocabulary}
    inner = inner or mlp_width(options)
    if options.positions == "learned":
        sizes = {"n_embd": options.hidden, "n_layer": options.layers, "n_head": options.heads, "n_inner": inner}
        off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        # GPT-2's activation, in one pass
        config = GPT2Config(
            **tokens, **sizes, **off, n_positions=options.context, activation_function="gelu_pytorch_tanh"
        )
        return GPT2LMHeadModel(config)
    config = LlamaConfig(
        **tokens,
        hidden_size=options.hidden,
        intermediate_size=inner,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        max_position_embeddings=options.context,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def num_features_for(kernel: str, head_dim: int, feature_dim: int) -> int:
    """The most features whose ``feature_dim`` is not above the wanted one (kernels of one width have that)."""
    from hf_attn_ext.attention import make_feature_map

    def too_wide(n: int) -> bool:
        return make_feature_map(kernel, 1, head_dim, n).feature_dim > feature_dim

    return max(1, bisect.bisect_left(range(1, feature_dim + 1), True, key=too_wide))


def build_model(name: str, options: argparse.Namespace, vocabulary: int, end: int, seed: int) -> nn.Module:
    """The model of one run: ``softmax``, ``last-8`` or a kernel's, all of the same number of parameters."""
    import hf_attn_ext as hax

    def stock(inner: int | None = None) -> nn.Module:
        return stock_model(options, vocabulary, end, seed, inner)

    if name == "softmax":
        return stock()
    if name == control_name(options):
        model = stock()
        register_windows()
        model.config.attention_windows = windows(options.layers, options.window)
        model.set_attn_implementation(WINDOWED)
        return model
    head_dim = options.hidden // options.heads
    kernel = {"kernel": name, "num_features": num_features_for(name, head_dim, options.feature_dim), "seed": seed}
    if name == "cosformer":
        kernel["kernel_options"] = {"max_length": options.context}
    model = hax.convert(stock(), kernel)
    maps = sum(p.numel() for layer in hax.converted_layers(model) for p in layer.feature_map.parameters())
    unit = 2 * options.hidden + 1 if options.positions == "learned" else 3 * options.hidden  # of an MLP's width
    narrower, width = math.ceil(maps / (options.layers * unit)), mlp_width(options)
    if narrower >= width:
        raise AttnExtError(f"kernel {name!r} has {maps} parameters, more than the MLPs: take a smaller --feature-dim")
    return hax.convert(stock(width - narrower), kernel) if narrower else model


# -- the control ---------------------------------------------------------------------------------------------------


def control_name(options: argparse.Namespace) -> str:
    return f"last-{options.window}"


def windows(layers: int, sight: int) -> list[int]:
    """Each layer's window, itself included, such that all together see ``sight`` tokens: [3, 3, 3, 2] for 4 and 8."""
    steps = [(sight - 1) // layers + (i < (sight - 1) % layers) for i in range(layers)]
    return [step + 1 for step in steps]


def register_windows() -> None:
    """Enter the control's attention function, and the mask function that has to go with it, in the host's tables."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(WINDOWED, windowed_attention)
    # Padding stands on the right, where no window reaches.
    AttentionMaskInterface.register(WINDOWED, lambda *arguments, **keywords: None)


def windowed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None = None, **keywords: Any
) -> tuple[Tensor, None]:
    """Exact softmax over the last few tokens of each query, as many as the layer's window holds."""
    place = torch.arange(query.shape[2], device=query.device)
    age = place[:, None] - place
    band = (age >= 0) & (age < module.config.attention_windows[module.layer_idx])
    out = nn.functional.scaled_dot_product_attention(query, key, value, band, scale=keywords.get("scaling"))
    return out.transpose(1, 2).contiguous(), None


# -- one run -------------------------------------------------------------------------------------------------------


class Corpus:
    """The vocabulary, and the addresses as sequences: what all runs share."""

    def __init__(self, options: argparse.Namespace):
        from hf_attn_ext.training import DataConfig
        from hf_attn_ext.training.data import load_task_data
        from hf_attn_ext.training.encoding import Collator, EncodedSplit, encode_documents

        files = {split: f"{split}.jsonl" for split in ("train", "validation", "test")}
        data = load_task_data(DataConfig(path=str(ensure("sotu")), task="language_modeling", **files))
        folder = Path(options.out) / f"tokenizer-{options.vocabulary}"
        self.tokenizer = train_tokenizer(folder, data.train.texts, options.vocabulary)
        self.collate = Collator(self.tokenizer, "language_modeling")

        def encoded(split: Any, most: int | None = None) -> EncodedSplit:
            whole = encode_documents(split, self.tokenizer, options.context)
            if most is None or most >= len(whole):
                return whole
            rows = np.linspace(0, len(whole) - 1, most).round().astype(int)  # of every address
            return EncodedSplit([whole[row]["input_ids"] for row in rows], None, None)

        self.train = encoded(data.train)
        self.validation = encoded(data.validation, options.validation_sequences)
        self.test = encoded(data.test, options.test_sequences)

    @property
    def end(self) -> int:
        return self.tokenizer.eos_token_id

    def __str__(self) -> str:
        sizes = ", ".join(
            f"{name} {(getattr(self, name).lengths - 1).sum():,}" for name in ("train", "validation", "test")
        )
        return f"{len(self.tokenizer)} words; predicted tokens: {sizes}"


# What a run's numbers depend on, beside its name and seed.
SETTINGS = (
    "layers",
    "heads",
    "hidden",
    "positions",
    "context",
    "vocabulary",
    "feature_dim",
    "steps",
    "batch_size",
    "lr",
)
SETTINGS += ("map_lr_factor", "window", "weight_decay", "validation_sequences", "test_sequences", "precision")


def run(name: str, seed: int, options: argparse.Namespace, corpus: Corpus, accelerator: Any) -> dict[str, Any]:
    """Train one model and measure it on the test addresses; a finished run is read from its file."""
    import hf_attn_ext as hax
    from hf_attn_ext.training import Stage2Config, metrics
    from hf_attn_ext.training.files import new_folder, read_json, remove, write_json
    from hf_attn_ext.training.finetune import TaskStage, predict, score_logits
    from hf_attn_ext.training.journal import Journal
    from hf_attn_ext.training.loop import train

    folder = Path(options.out) / name / f"seed-{seed}"
    settings = {field: getattr(options, field) for field in SETTINGS}
    for path in (folder / "settings.json", folder / "result.json"):
        known = read_json(path).get("settings", {}) if path.is_file() else settings
        changed = next((field for field in settings if known.get(field) != settings[field]), None)
        if changed:
            raise AttnExtError(
                f"{folder} holds a run with another {changed}: {known.get(changed)!r}, not {settings[changed]!r}; "
                "choose another --out"
            )
    if (folder / "result.json").is_file():
        return read_json(folder / "result.json")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "settings.json", {"settings": settings})

    model = build_model(name, options, len(corpus.tokenizer), corpus.end, seed)
    layers = hax.converted_layers(model)
    config = Stage2Config(
        steps=options.steps,
        batch_size=options.batch_size,
        lr=options.lr,
        feature_map_lr=options.lr * options.map_lr_factor,
        weight_decay=options.weight_decay,
        beta2=0.95,
        schedule="cosine",
        warmup=0.1,
        max_grad_norm=1.0,
        evaluate_every=math.ceil(options.steps / 4),
    )
    stage = TaskStage(
        name,
        model,
        config,
        "language_modeling",
        "perplexity",
        corpus.validation,
        corpus.collate,
        accelerator,
        feature_maps=[parameter for layer in layers for parameter in layer.feature_map.parameters()],
    )
    start = time.perf_counter()
    validation = train(
        stage,
        config,
        corpus.train,
        corpus.collate,
        accelerator,
        steps=options.steps,
        folder=folder / "checkpoints",
        journal=Journal(folder / "metrics.jsonl", accelerator),
        seed=seed,
        log_every=max(1, options.steps // 40),
        progress=True,
    )
    seconds = time.perf_counter() - start
    model, _ = stage.release()
    rows = predict(model, corpus.test, corpus.collate, accelerator, task="language_modeling")
    result = {
        "name": name,
        "seed": seed,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "feature_dim": layers[0].feature_map.feature_dim if layers else None,
        "scores": score_logits(rows, None, "language_modeling"),
        "standard_errors": metrics.standard_errors(None, rows, "language_modeling"),
        "validation": validation,
        "seconds": round(seconds, 1),
        "settings": settings,
    }
    if name != control_name(options):  # its folder would open as plain softmax: windows are no part of a GPT-2
        with new_folder(folder / "model") as target:
            model.save_pretrained(target)
            corpus.tokenizer.save_pretrained(target)
    np.save(folder / "losses.npy", rows)
    write_json(folder / "result.json", result)
    remove(folder / "checkpoints")
    return result


# -- the report ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Row:
    """All seeds of one model: mean losses (nats a token), and the mean's distance from softmax on the same tokens."""

    name: str
    runs: list[dict[str, Any]]

    @property
    def perplexities(self) -> np.ndarray:
        return np.array([run["scores"]["perplexity"] for run in self.runs])

    @property
    def loss(self) -> float:
        return float(np.mean([run["scores"]["loss"] for run in self.runs]))

    @property
    def spread(self) -> float:
        """Standard deviation over seeds; of one seed the bootstrap standard error over sequences."""
        if len(self.runs) > 1:
            return float(self.perplexities.std(ddof=1))
        return self.runs[0]["standard_errors"]["perplexity"]


def table(rows: list[Row], options: argparse.Namespace) -> list[str]:
    """The results as Markdown: softmax, the control, then the kernels from the best."""
    by_name = {row.name: row for row in rows}
    softmax, control = by_name["softmax"], by_name[control_name(options)]
    gap = control.loss - softmax.loss
    out = [
        "| model | features | parameters | perplexity | against softmax | of the gap | seeds | minutes a run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        first, mean = row.runs[0], row.perplexities.mean()
        closed = f"{(control.loss - row.loss) / gap:.0%}" if gap > 0 else "-"
        cells = [
            f"**{row.name}**" if row.name.startswith(OURS) else row.name,
            str(first["feature_dim"] or "-"),
            f"{first['parameters']:,}",
            f"{mean:.2f} ± {row.spread:.2f}",
            f"{mean / softmax.perplexities.mean() - 1:+.1%}",
            closed,
            str(len(row.runs)),
            f"{np.mean([run['seconds'] for run in row.runs]) / 60:.1f}",
        ]
        out.append(f"| {' | '.join(cells)} |")
    out += [
        "",
        "Test addresses. ±: standard deviation over seeds, or for one seed the bootstrap standard error over sequences "
        "(the runs share the text, so their differences are surer than that). The gap is that in loss between "
        f"{control.name} and softmax: {gap:.3f} nats a token.",
    ]
    return out


def draw(rows: list[Row], options: argparse.Namespace, path: Path) -> None:
    """Bars of the perplexity, softmax and the control as lines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = {"softmax": ("#1f4fa3", "--"), control_name(options): ("#b23b3b", ":")}
    bars = [row for row in rows if row.name not in lines]
    figure, axis = plt.subplots(figsize=(8, 1.4 + 0.34 * max(1, len(bars))), layout="constrained")
    means = [row.perplexities.mean() for row in bars]
    colors = ["#2a7f62" if row.name.startswith(OURS) else "#8a8f98" for row in bars]
    axis.barh(range(len(bars)), means, xerr=[row.spread for row in bars], color=colors)
    axis.set_yticks(range(len(bars)), [row.name for row in bars])
    axis.invert_yaxis()
    for row in rows:
        if row.name in lines:
            color, style = lines[row.name]
            axis.axvline(row.perplexities.mean(), color=color, linestyle=style, label=row.name)
    everything = [row.perplexities.mean() for row in rows]
    margin = 0.15 * (max(everything) - min(everything)) + 0.5
    axis.set_xlim(min(everything) - margin, max(everything) + margin)
    axis.set_xlabel("perplexity on the test addresses (the axis does not begin at 0)")
    axis.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def report(results: list[dict[str, Any]], options: argparse.Namespace, corpus: Corpus) -> None:
    """Write and print what the runs came to."""
    from hf_attn_ext.training.files import write_json
    from hf_attn_ext.training.results import versions

    names = list(dict.fromkeys(result["name"] for result in results))
    rows = [Row(name, [result for result in results if result["name"] == name]) for name in names]
    rows[2:] = sorted(rows[2:], key=lambda row: row.loss)
    out = Path(options.out)
    lines = table(rows, options)
    settings = {field: getattr(options, field) for field in SETTINGS}
    content = {"settings": settings, "corpus": str(corpus), "runs": results, "versions": versions()}
    write_json(out / "results.json", content)
    (out / "results.md.part").write_text("\n".join(lines) + "\n", encoding="utf-8")
    os.replace(out / "results.md.part", out / "results.md")
    draw(rows, options, out / "results.png")
    print(f"sotu: {corpus}")
    print("\n".join(lines))
    print(f"written: {out}/results.json, .md, .png")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default=",".join(KERNELS), help="with commas; none: the two baselines alone")
    parser.add_argument("--seeds", default="0", help="with commas; each is a run of every model")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--positions", default="rotary", choices=("learned", "rotary"), help="GPT-2, or Llama's")
    parser.add_argument("--context", type=int, default=256, help="tokens of a sequence")
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--feature-dim", type=int, default=64, help="features of a head; some kernels have their own")
    parser.add_argument("--window", type=int, default=8, help="tokens that the control sees")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument(
        "--batch-size", type=int, default=4, help="small: a young model learns from the number of steps"
    )
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--map-lr-factor", type=float, default=1.0, help="learning rate of the feature maps, over --lr")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--validation-sequences", type=int, default=128, help="they choose the checkpoint")
    parser.add_argument("--test-sequences", type=int, default=None, help="default: all")
    parser.add_argument("--precision", default="no", choices=("no", "bf16"))
    parser.add_argument("--out", default="runs/sotu")
    return parser


def check(options: argparse.Namespace) -> tuple[list[str], list[int]]:
    """Return the models' names and the seeds; raise AttnExtError for what does not fit."""
    from hf_attn_ext.attention import list_kernels

    kernels = [name for name in options.kernels.split(",") if name and name != "none"]
    for name in kernels:
        if name not in list_kernels():
            raise AttnExtError(f"unknown kernel {name!r}.{suggest(name, list_kernels())}")
    seeds = options.seeds.split(",")
    wrong = next((seed for seed in seeds if not seed.isdigit()), None)
    if wrong is not None:
        raise AttnExtError(f"--seeds takes whole numbers with commas, got {wrong!r}")
    for name, value in vars(options).items():
        if isinstance(value, int) and value < 1:
            raise AttnExtError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if options.hidden % options.heads:
        raise AttnExtError(f"--hidden {options.hidden} is no multiple of --heads {options.heads}")
    if options.vocabulary < 300:
        raise AttnExtError(f"--vocabulary {options.vocabulary} is too small: 256 bytes, and some words")
    return ["softmax", control_name(options), *kernels], [int(seed) for seed in seeds]


def main(arguments: list[str] | None = None) -> int:
    options = build_parser().parse_args(arguments)
    try:
        names, seeds = check(options)
        from accelerate import Accelerator
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        accelerator = Accelerator(mixed_precision=options.precision)
        corpus = Corpus(options)
        results = []
        for name in names:
            for seed in seeds:
                result = run(name, seed, options, corpus, accelerator)
                perplexity, minutes = result["scores"]["perplexity"], result["seconds"] / 60
                print(f"[sotu] {name} seed {seed}: {perplexity:.2f}, {minutes:.1f} min", file=sys.stderr, flush=True)
                results.append(result)
        report(results, options, corpus)
    except (AttnExtError, AssetError) as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
