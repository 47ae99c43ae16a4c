"""``bench decode``: time per token at growing contexts, of converted models and the base model with its own cache."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

from benchmarks.speed.measuring.figures import crossover, growth, ratio
from benchmarks.speed.measuring.machine import describe_machine, set_threads, synchronizer
from benchmarks.speed.measuring.timing import measure
from hf_attn_ext.config import AttnExtConfig
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration import convert
from hf_attn_ext.integration.base_models.families import cache_argument
from hf_attn_ext.integration.linear.cache import LinearCache

from .bench import check_lengths, check_limits, check_workload
from .contestants import DTYPES, SOFTMAX, Workload, check_kernels, family_of, family_rank, fit_width, kernel_options

CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384)
STOCK = "sdpa"
PREFILL = 512  # tokens a piece
VOCABULARY = 50257


@dataclasses.dataclass(frozen=True)
class DecodeBench:
    """What is measured: a model of GPT-2's shape with random weights, batch 1 unless ``workload`` says otherwise.

    Attributes:
        contexts: tokens before the timed ones, increasing; the timed ones themselves lengthen it a little.
        kernels: names; each is a converted model next to the softmax one.
        layers: of the model; its width is heads x head_dim of ``workload``.
        workload: sizes, dtype, device ("auto" is resolved) and the width asked of the kernels.
        threads: None leaves torch's number.
        repeats, budget: timed steps at most, and their seconds, for a model at a context.
        prompt, new_tokens: of the short ``generate()``; no new tokens leaves it out.

    Raises:
        AttnExtError: a value that makes no sense, an unknown kernel or device.
    """

    contexts: Sequence[int] = CONTEXTS
    kernels: Sequence[str] = ("flexformer_p",)
    layers: int = 12
    workload: Workload = dataclasses.field(default_factory=Workload)
    threads: int | None = None
    repeats: int = 15
    budget: float = 10.0
    prompt: int = 32
    new_tokens: int = 32

    def __post_init__(self) -> None:
        check_lengths(self.contexts, "contexts")
        check_limits(self.repeats, self.budget, self.threads)
        check_kernels(self.kernels)
        for name, value, least in (
            ("layers", self.layers, 1),
            ("prompt", self.prompt, 1),
            ("new_tokens", self.new_tokens, 0),
        ):
            if value < least:
                raise AttnExtError(f"{name} must be at least {least}, got {value}")
        object.__setattr__(self, "workload", check_workload(self.workload))


def bench_decode(
    settings: DecodeBench,
    progress: Callable[[str], None] = lambda text: None,
    save: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """Run the benchmark and return its report.

    Returns:
        A dictionary fit for JSON: ``machine``, ``settings``, ``rows`` (a model each: ``seconds`` a token and
        ``state_bytes`` a context, ``speed_to_sdpa``, ``crossover``, ``growth``) and ``short`` (whole ``generate()``
        calls after a short prompt).
    """
    set_threads(settings.threads)
    report: dict[str, Any] = {
        "benchmark": "decode",
        "complete": False,
        "machine": describe_machine(settings.workload.device),
        "settings": dataclasses.asdict(settings),
        "rows": [],
        "short": None,
    }
    progress("models")
    decoders = _decoders(settings)
    if settings.new_tokens:
        progress("generate() after a short prompt")
        report["short"] = _short(settings, decoders)
    measured = {name: ([], []) for name in decoders}
    for context in settings.contexts:
        for name, decoder in decoders.items():
            progress(f"{context} tokens: filling {name}")
            decoder.fill(context)
        progress(f"{context} tokens: steps")
        steps = {name: decoder.step for name, decoder in decoders.items()}
        timings, failed = measure(steps, settings.repeats, settings.budget, synchronizer(settings.workload.device))
        for name, decoder in decoders.items():
            seconds, sizes = measured[name]
            seconds.append(timings[name].as_dict() if name not in failed else None)
            sizes.append(decoder.state_bytes())
        report["rows"] = _rows(settings, decoders, measured)
        save(report)
    report["complete"] = True
    save(report)
    return report


class Decoder:
    """A model in the middle of a text.

    Args:
        model: converted or not.
        cache: its cache, empty.
        batch: rows.
        family, note: for the report.
    """

    def __init__(self, model: Any, cache: Any, batch: int, family: str, note: str = "") -> None:
        self.model, self.cache, self.batch, self.family, self.note = model, cache, batch, family, note
        self.argument = cache_argument(inspect.signature(type(model).forward).parameters)
        self.token = torch.zeros(batch, 1, dtype=torch.long, device=model.device)

    def fill(self, context: int) -> None:
        """Bring the cache to ``context`` tokens, through the model, a piece at a time; a fuller one stays as it is."""
        generator = torch.Generator().manual_seed(context)
        missing = context - self.cache.get_seq_length()
        for start in range(0, missing, PREFILL):
            size = (self.batch, min(PREFILL, missing - start))
            self._forward(torch.randint(VOCABULARY, size, generator=generator).to(self.model.device))

    def step(self) -> None:
        """Decode one token greedily."""
        self._forward(self.token)

    def generate(self, prompt: Tensor, new_tokens: int) -> None:
        """Decode ``new_tokens`` after ``prompt`` (batch, length), greedily, with a cache of the model's own making."""
        self.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=VOCABULARY - 1,
        )

    def state_bytes(self) -> int:
        """Bytes that the cache holds."""
        return self.cache.nbytes

    @torch.no_grad()
    def _forward(self, tokens: Tensor) -> None:
        inputs = {"input_ids": tokens, self.argument: self.cache, "use_cache": True, "logits_to_keep": 1}
        self.token = self.model(**inputs).logits[:, -1].argmax(-1, keepdim=True)


class StockDecoder(Decoder):
    """The base model under sdpa with ``generate()``'s default cache, filled with random keys and values at once."""

    def fill(self, context: int) -> None:
        """Read a context of that many tokens."""
        config = self.model.config
        missing = context - self.cache.get_seq_length()
        if missing <= 0:
            return
        generator = torch.Generator().manual_seed(context)
        size = (2, self.batch, config.n_head, missing, config.n_embd // config.n_head)
        for layer in range(config.n_layer):
            keys, values = torch.randn(size, generator=generator).to(self.model.device, self.model.dtype)
            self.cache.update(keys, values, layer)

    def state_bytes(self) -> int:
        """Return the bytes of the cache."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.cache.layers)


def _decoders(settings: DecodeBench) -> dict[str, Decoder]:
    work = settings.workload
    timed = (settings.repeats + 1) * len(settings.contexts)
    longest = max(settings.contexts[-1] + timed, settings.prompt + settings.new_tokens)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_layer=settings.layers,
        n_head=work.heads,
        n_embd=work.heads * work.head_dim,
        n_positions=longest,
        attn_implementation="sdpa",
    )

    def model() -> Any:
        torch.manual_seed(work.seed)
        return GPT2LMHeadModel(config).eval()

    def place(model: Any) -> Any:
        return model.to(work.device, DTYPES[work.dtype])

    stock = place(model())
    decoders: dict[str, Decoder] = {
        STOCK: StockDecoder(stock, DynamicCache(config=stock.config), work.batch, SOFTMAX, "DynamicCache")
    }
    for name in sorted(settings.kernels, key=family_rank):
        num_features, width = fit_width(name, work.head_dim, work.feature_dim)
        options = kernel_options(name, longest)
        kernel = AttnExtConfig(kernel=name, num_features=num_features, seed=work.seed, kernel_options=options)
        converted = place(convert(model(), kernel))
        note = f"LinearCache, feature_dim {width}"
        decoders[name] = Decoder(converted, LinearCache(converted.config), work.batch, family_of(name), note)
    return decoders


def _short(settings: DecodeBench, decoders: dict[str, Decoder]) -> dict[str, Any]:
    work = settings.workload
    generator = torch.Generator().manual_seed(work.seed)
    prompt = torch.randint(VOCABULARY, (work.batch, settings.prompt), generator=generator).to(work.device)
    calls = {name: partial(decoder.generate, prompt, settings.new_tokens) for name, decoder in decoders.items()}
    timings, failed = measure(calls, settings.repeats, settings.budget, synchronizer(work.device))
    medians = {name: None if name in failed else timings[name].median for name in decoders}
    rows = [
        {
            "name": name,
            "seconds": None if name in failed else timings[name].as_dict(),
            "speed_to_sdpa": ratio(medians[STOCK], medians[name]),
        }
        for name in decoders
    ]
    return {"prompt": settings.prompt, "new_tokens": settings.new_tokens, "rows": rows}


def _rows(
    settings: DecodeBench, decoders: dict[str, Decoder], measured: dict[str, tuple[list, list]]
) -> list[dict[str, Any]]:
    """A row a model; contexts not yet measured are None."""
    contexts = settings.contexts
    missing = [None] * (len(contexts) - len(measured[STOCK][0]))
    medians = {name: [x["median"] if x else None for x in seconds] + missing for name, (seconds, _) in measured.items()}
    return [
        {
            "name": name,
            "family": decoder.family,
            "note": decoder.note,
            "seconds": measured[name][0] + missing,
            "state_bytes": measured[name][1] + missing,
            "speed_to_sdpa": [ratio(a, b) for a, b in zip(medians[STOCK], medians[name], strict=True)],
            "crossover": None
            if name == STOCK
            else dataclasses.asdict(crossover(contexts, medians[name], medians[STOCK])),
            "growth": growth(contexts, medians[name]),
        }
        for name, decoder in decoders.items()
    ]
