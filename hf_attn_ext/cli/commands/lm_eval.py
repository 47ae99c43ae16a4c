"""``hf-attn-ext lm-eval``: EleutherAI's lm-evaluation-harness, started after this package was imported.

The harness opens models with plain ``AutoModelForCausalLM``; the import is what makes it know converted folders.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hf_attn_ext.errors import AttnExtError

if TYPE_CHECKING:
    from argparse import Namespace

HF_BACKENDS = ("hf", "hf-auto", "huggingface")
"""The harness's names for the one of its backends that opens models with transformers, in this process."""

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""The settings under which the command line leaves the harness's arguments alone."""

# How the harness begins what it says of its user's mistakes, as ValueErrors among others, and what we add.
_MISTAKES = {
    "Tasks not found": " (tasks of your own need --include_path; hf-attn-ext lm-eval ls tasks)",
    "No tasks specified": "",
    "Attempted to load model": "",
    "Specify --output_path": "",
}


def lm_eval(context: typer.Context) -> None:
    """Evaluate a language model, converted or not, with EleutherAI's lm-evaluation-harness.

    All arguments go to the harness unchanged: `hf-attn-ext lm-eval --model hf --model_args pretrained=FOLDER --tasks
    NAME`. Its own help: `hf-attn-ext lm-eval run --help`. It comes with `pip install "hf-attn-ext[lm-eval]"`.
    """
    code = run_harness(context.args)
    if code:
        raise typer.Exit(code)


def run_harness(arguments: Sequence[str]) -> int:
    """Run the harness's own command line in this process and return its exit code.

    Args:
        arguments: the words after ``lm_eval``.

    Raises:
        AttnExtError: the harness is not installed; no task, or one that it doesn't know; no such folder; a converted
            folder that is no causal language model, or one given to a backend that would not run its kernels.

    Example:
        >>> run_harness(["--model", "hf", "--model_args", "pretrained=converted", "--tasks", "lambada_openai"])
        ... # doctest: +SKIP
        0
    """
    try:
        import lm_eval  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "lm_eval":
            raise
        raise AttnExtError('lm_eval is not installed: pip install "hf-attn-ext[lm-eval]"') from error
    from lm_eval.__main__ import cli_evaluate
    from lm_eval._cli import HarnessCLI

    before, sys.argv = sys.argv, ["lm-eval", *arguments]
    try:
        check(HarnessCLI().parse_args())
        cli_evaluate()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except ValueError as error:
        hint = next((hint for begin, hint in _MISTAKES.items() if str(error).startswith(begin)), None)
        if hint is None:
            raise
        raise AttnExtError(f"lm_eval: {error}{hint}") from error
    finally:
        sys.argv = before
    return 0


def check(arguments: Namespace) -> None:
    """Look for the most ordinary mistakes in the harness's parsed arguments, before it loads anything.

    What a file given with ``--config`` says is left to the harness.
    """
    if arguments.command != "run":
        return
    if not arguments.tasks and not arguments.config:
        raise AttnExtError("no task is named: --tasks NAME (hf-attn-ext lm-eval ls tasks)")
    if arguments.include_path and not Path(arguments.include_path).is_dir():
        raise AttnExtError(f"--include_path: there is no folder {arguments.include_path!r}")
    options = arguments.model_args or {}
    backend = arguments.model or "hf"
    name = options.get("pretrained")
    if backend not in HF_BACKENDS:
        _check_other_backend(str(name), backend)
    elif name is None:
        if not arguments.config:
            raise AttnExtError("no model is named: --model_args pretrained=FOLDER")
    elif not {"subfolder", "gguf_file"} & options.keys():
        code = bool(options.get("trust_remote_code") or getattr(arguments, "trust_remote_code", False))
        _check_model(str(name), options, code)


def _check_other_backend(name: str, backend: str) -> None:
    from hf_attn_ext._util.files import read_json_object

    file = Path(name) / "config.json"
    if file.is_file() and isinstance(read_json_object(file).get("attn_ext"), dict):
        raise AttnExtError(f"--model {backend} would not run the kernels of the converted {name!r}; use --model hf")


def _check_model(name: str, options: dict[str, Any], code: bool) -> None:
    """Check that there is such a model, and that a converted one is a language model; say on stderr what it is."""
    from hf_attn_ext.cli.models import read_config
    from hf_attn_ext.hub.facts import layers_text, names_of

    config = read_config(name, revision=str(options.get("revision", "main")), trust_remote_code=code).to_dict()
    if "tokenizer" not in options:
        _check_tokenizer(Path(name))
    kernel = config.get("attn_ext")
    if not isinstance(kernel, dict):
        return
    if names_of(config).auto_class != "AutoModelForCausalLM":
        architecture = (config.get("architectures") or ["model without a head"])[0]
        raise AttnExtError(f"{name!r} is a {architecture}; the harness evaluates causal language models")
    typer.echo(f"{name}: {kernel.get('kernel')} in {layers_text(config)}", err=True)


def _check_tokenizer(folder: Path) -> None:
    """Check for a tokenizer: without one Transformers makes an empty one, and every perplexity is 1."""
    from hf_attn_ext.hub.files import TOKENIZER_FILES

    if folder.is_dir() and not any((folder / file).is_file() for file in TOKENIZER_FILES):
        raise AttnExtError(
            f"{str(folder)!r} has no tokenizer; save one into it, or name one: --model_args tokenizer=NAME"
        )
