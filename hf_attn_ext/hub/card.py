"""Write a model card: the template filled with a folder's configuration and what a run measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_attn_ext._util.files import write_text
from hf_attn_ext.errors import AttnExtError

from . import facts
from .files import check_folder

TEMPLATE = "model_card.md.j2"


def write_card(
    folder: str | Path,
    results: Mapping[str, Any],
    *,
    base_model: str | None = None,
    license: str | None = None,
    language: str | list[str] | None = None,
    out: str | Path | None = None,
) -> Path:
    """Write ``README.md`` for a converted model's folder.

    Args:
        folder: the converted model, as ``save_pretrained`` wrote it.
        results: what ``results.json`` of a run holds; ``{}`` writes a card that says nothing was measured.
        base_model, license, language: override what the results say, such as the hub id of a base model that was
            opened from a local folder.
        out: another file to write; default ``README.md`` in ``folder``.

    Returns:
        The path of the card.

    Raises:
        AttnExtError: the folder holds no converted model, or the results are not in the form described at
            :func:`render_card`.

    Example:
        >>> write_card("runs/reviews/model", results)  # doctest: +SKIP
        PosixPath('runs/reviews/model/README.md')
    """
    path, config = check_folder(folder)
    text = render_card(config, results, base_model=base_model, license=license, language=language)
    target = Path(out) if out is not None else path / "README.md"
    if not target.parent.is_dir():
        raise AttnExtError(f"cannot write the card to {str(target)!r}: there is no folder {str(target.parent)!r}")
    write_text(target, text)
    return target


def render_card(
    config: Mapping[str, Any],
    results: Mapping[str, Any],
    *,
    repo_id: str | None = None,
    base_model: str | None = None,
    license: str | None = None,
    language: str | list[str] | None = None,
) -> str:
    """Return the card's text.

    Args:
        config: the converted model's configuration as a dictionary.
        results: a run's measurements; every field may be missing. ``scores``: step (``teacher``, ``control``,
            ``converted``, ``stage1``, ``stage2``) to metric to number; ``transfer``: step to ``output_error`` and
            ``kl``; ``standard_errors`` like ``scores``; ``metric``, ``gap_closed``, ``gap_is_clear``, ``base_model``,
            ``data``, ``seed``, ``steps``, ``seconds``, ``device``, ``versions``.
        repo_id: named in the loading examples; None: ``"user/name"``.
        base_model, license, language: override what the results say.

    Raises:
        AttnExtError: a configuration without ``attn_ext``, or results of another form.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    kernel = config.get("attn_ext")
    if not isinstance(kernel, Mapping):
        raise AttnExtError(f"a {config.get('model_type')!r} configuration has no 'attn_ext': not a converted model")
    names = facts.names_of(config)
    base = base_model or facts.base_model_of(results)
    metrics, rows = facts.score_table(results)
    title = f"{facts.shown_name(base).split('/')[-1] or names.stock_class} with {kernel['kernel']} attention"
    front_matter = _front_matter(title, base, names, metrics, results, license, language)
    environment = Environment(
        loader=PackageLoader("hf_attn_ext.hub", "templates"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template(TEMPLATE).render(
        front_matter=front_matter,
        title=title,
        base_model_text=f"`{facts.shown_name(base)}`" if base else f"A `{names.stock_class}`",
        layers_text=facts.layers_text(config),
        kernel=kernel["kernel"],
        num_features=kernel["num_features"],
        feature_dim=results.get("feature_dim"),
        kernel_seed=kernel.get("seed", 0),
        kernel_options=kernel.get("kernel_options") or None,
        score_intro=_score_intro(results),
        score_metrics=metrics,
        score_rows=rows,
        gap_text=_gap_text(results),
        transfer_rows=facts.transfer_table(results),
        provenance=facts.provenance(results),
        auto_class=names.auto_class,
        stock_class=names.stock_class,
        pipeline_tag=names.pipeline_tag,
        decoder=names.decoder,
        repo=repo_id or "user/name",
    )


def _front_matter(
    title: str,
    base: str,
    names: facts.Names,
    metrics: list[str],
    results: Mapping[str, Any],
    license: str | None,
    language: str | list[str] | None,
) -> str:
    """The YAML head, built by the hub's own class so that the hub accepts it."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        base_model=base if facts.is_hub_name(base) else None,
        library_name="transformers",
        license=license or results.get("license"),
        language=language or results.get("language"),
        pipeline_tag=names.pipeline_tag,
        tags=["hf_attn_ext", "linear-attention", "attention-distillation"],
        metrics=metrics or None,
        model_name=title,
        eval_results=_eval_results(names, metrics, results) or None,
    )
    return data.to_yaml().strip()


def _eval_results(names: facts.Names, metrics: list[str], results: Mapping[str, Any]) -> list[Any]:
    """The last step's scores as the hub's evaluation results; only where the data set has a name."""
    from huggingface_hub import EvalResult

    scores = {step: values for step, values in (results.get("scores") or {}).items() if values is not None}
    final = scores.get("stage2") or scores.get("stage1") or scores.get("converted")
    data = results.get("data")
    name = data.get("name") or data.get("path") if isinstance(data, Mapping) else data
    if not name or not isinstance(final, Mapping):
        return []
    name = facts.shown_name(str(name))
    task = names.pipeline_tag or "feature-extraction"
    split = data.get("split") if isinstance(data, Mapping) else None
    return [
        EvalResult(
            task_type=task,
            dataset_type=name,
            dataset_name=name,
            dataset_split=split,
            metric_type=metric,
            metric_value=round(float(final[metric]), 6),
        )
        for metric in metrics
        if metric in final
    ]


def _score_intro(results: Mapping[str, Any]) -> str:
    metric = results.get("metric")
    errors = ", with bootstrap standard errors" if results.get("standard_errors") else ""
    chosen = f" (`{metric}` chose the checkpoint)" if metric else ""
    return f"Scores on held-out data{errors}{chosen}:"


def _gap_text(results: Mapping[str, Any]) -> str:
    gap = results.get("gap_closed")
    if gap is None:
        return ""
    error = results.get("gap_closed_standard_error")
    spread = f" ± {100 * error:.1f}%" if error is not None else ""
    text = f"The converted model closes {100 * gap:.1f}%{spread} of the gap between the control and the teacher"
    if results.get("gap_metric", results.get("metric")) != results.get("metric"):
        text += f" in {results['gap_metric']}"
    if results.get("gap_is_clear") is False:
        text += "; the gap itself is within two standard errors, so this task hardly needs attention"
    return f"\n{text}."
