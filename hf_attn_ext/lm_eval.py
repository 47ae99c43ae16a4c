"""``python -m hf_attn_ext.lm_eval ARGS``: ``hf-attn-ext lm-eval ARGS``, for launchers that start a module.

A thin entry over :mod:`hf_attn_ext.cli.commands.lm_eval`.
From Python nothing of it is needed: ``import hf_attn_ext``, then
``lm_eval.simple_evaluate(model="hf", model_args={"pretrained": folder}, tasks=[...])``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hf_attn_ext.cli.main import main as command_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the harness and return the exit code: 0 done, 2 a mistake of the user (one line on stderr).

    Args:
        arguments: the words after the program's name; None takes ``sys.argv``.

    Example:
        >>> main(["--model", "hf", "--model_args", "pretrained=./no-such-folder", "--tasks", "x"])  # doctest: +SKIP
        2
    """
    return command_line(["lm-eval", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())
