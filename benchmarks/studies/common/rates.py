"""The learning rate of each training: the best of several by held-out loss, in shorter runs of the first seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from hf_attn_ext._util.files import read_json, write_json
from hf_attn_ext.errors import AttnExtError

from .folders import tidy


def chosen_rate(rates: list[float], loss_at: Callable[[float, Path], float], folder: Path, seed: int) -> float:
    """Return the rate of the lowest ``loss_at(rate, folder of its run)``; finished runs are read.

    Args:
        rates: to choose from; a single one needs no run, and one whose loss is not finite is not chosen.
        loss_at: trains with ``seed``, and returns the held-out loss.
        folder: where each seed has a folder of its own.
        seed: of the runs.

    Raises:
        AttnExtError: no rate has a finite loss.
    """
    if len(rates) == 1:
        return rates[0]
    losses = {}
    for rate in rates:
        here = folder / f"seed-{seed}" / f"lr-{rate:g}"
        done = here / "result.json"
        if not done.is_file():
            try:
                loss = loss_at(rate, here)
            except AttnExtError as error:
                if "not finite" not in str(error):
                    raise
                loss = math.inf
            write_json(done, {"lr": rate, "validation": loss if math.isfinite(loss) else None})
        tidy(here)
        validation = read_json(done)["validation"]
        if validation is not None:
            losses[rate] = validation
    if not losses:
        raise AttnExtError(f"no rate of --lr has a finite loss: {', '.join(f'{rate:g}' for rate in rates)}; go lower")
    return min(losses, key=lambda rate: losses[rate])
