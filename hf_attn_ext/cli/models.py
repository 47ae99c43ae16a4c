"""Open models and tokenizers for the commands, with one line for every failure."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_attn_ext._util.files import read_json_object
from hf_attn_ext.errors import AttnExtError, first_line
from hf_attn_ext.hub.facts import names_of
from hf_attn_ext.hub.files import TOKENIZER_FILES


def quiet() -> None:
    """Silence Transformers' progress bars and warnings: a command prints what matters itself, in one line."""
    from huggingface_hub.utils import disable_progress_bars
    from transformers.utils import logging as transformers_logging

    disable_progress_bars()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")


def looks_local(name: str) -> bool:
    """Return whether ``name`` can only be a path: it exists, or is written as one."""
    return os.path.exists(name) or name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name


def read_config(name: str, **options: Any) -> Any:
    """Return the configuration of a local folder or a hub id.

    Args:
        options: what ``AutoConfig.from_pretrained`` also takes, such as ``revision``.

    Raises:
        AttnExtError: no such folder, no configuration in it, an unknown model type, or a hub that cannot be reached.
    """
    from transformers import AutoConfig

    _check_local(name)
    with _one_line_errors(name):
        return AutoConfig.from_pretrained(name, **options)


def load_model(name: str) -> tuple[Any, list[str]]:
    """Load a model with the head that its checkpoint was saved with.

    Returns:
        The model in evaluation mode, and the names of parameters that the checkpoint lacks (new, random).

    Raises:
        AttnExtError: as :func:`read_config`, and for weights that cannot be read.
    """
    import transformers

    config = read_config(name)
    architecture = (getattr(config, "architectures", None) or [None])[0]
    auto = getattr(transformers, architecture, None) if architecture else None
    with _one_line_errors(name):
        model, info = (auto or transformers.AutoModel).from_pretrained(name, config=config, output_loading_info=True)
    return model.eval(), sorted(info.get("missing_keys") or [])


def load_tokenizer(name: str) -> Any | None:
    """Return the tokenizer that comes with ``name``, or None where there is none."""
    from transformers import AutoTokenizer

    if os.path.isdir(name) and not any((Path(name) / file).is_file() for file in TOKENIZER_FILES):
        return None
    with _one_line_errors(name, "the tokenizer of "):
        return AutoTokenizer.from_pretrained(name)


def load_converted(folder: str) -> Any:
    """Load a converted folder with the head class that it was saved with.

    Raises:
        AttnExtError: the folder holds no converted model, or a damaged one.
    """
    from hf_attn_ext.hub.files import check_folder
    from hf_attn_ext.integration import register_model_type
    from hf_attn_ext.integration.base_models.families import stock_type

    path, config = check_folder(folder)
    # Families are registered by the import; a folder of another type says itself which one it needs.
    register_model_type(stock_type(str(config.get("model_type"))))
    auto = _auto_class_of(config)
    with _one_line_errors(folder):
        return auto.from_pretrained(path).eval()


def load_any(name: str, head: bool = True) -> Any:
    """Load a converted model or a base model, from a folder or the hub, with the head that it was saved with.

    Args:
        head: False where the head is not used: then it may be new, and a pooler too.
    """
    _check_local(name)
    folder = Path(name).expanduser()
    if folder.is_dir() and isinstance(read_json_object(folder / "config.json").get("attn_ext"), dict):
        return load_converted(name)
    model, missing = load_model(name)
    if not head:
        prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
        missing = [one for one in missing if one.startswith(prefix) and "pooler." not in one]
    if missing:
        whose = "of its own head, " if head else ""
        raise AttnExtError(f"{name!r} lacks parameters {whose}such as {missing[0]!r}: train it first")
    return model


def _auto_class_of(config: dict) -> Any:
    """Return the AutoModel class of a saved folder, by its head (``AttnExtRobertaForMaskedLM``)."""
    import transformers

    return getattr(transformers, names_of(config).auto_class, None) or transformers.AutoModel


def _check_local(name: str) -> None:
    if not looks_local(name):
        return
    path = Path(name).expanduser()
    if not path.exists():
        raise AttnExtError(f"there is no model folder {name!r}")
    if not path.is_dir():
        raise AttnExtError(f"{name!r} is a file; name the folder of a model")
    if not (path / "config.json").is_file():
        raise AttnExtError(f"folder {name!r} holds no model: config.json is missing")
    read_json_object(path / "config.json")


@contextlib.contextmanager
def _one_line_errors(name: str, what: str = "") -> Iterator[None]:
    """Turn Transformers' loading errors of many lines into one line that names the model."""
    from safetensors import SafetensorError

    try:
        yield
    except AttnExtError:
        raise
    except SafetensorError as error:
        raise AttnExtError(
            f"{what}{name!r}: the weights cannot be read (truncated or damaged file): {error}"
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        if not os.path.isdir(name) and isinstance(error, OSError):
            raise AttnExtError(
                f"{what}{name!r} is no folder here, and could not be fetched from the hub (wrong name, no access, or "
                "offline)"
            ) from error
        raise AttnExtError(f"{what}{name!r} cannot be opened: {first_line(error)}") from error
