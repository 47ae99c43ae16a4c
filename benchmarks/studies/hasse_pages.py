"""From a family of tasks to a mask, three times: the pictures of docs/evidence/hasse.md.

    python -m benchmarks.studies.hasse_pages                        # writes docs/evidence/hasse-*.png, a few seconds
    python -m benchmarks.studies.hasse_pages --out runs/hasse --tokens 6

For causal attention, block two-stream attention and butterfly attention: the Hasse diagrams of the family's tasks, side
by side; their minimal joint task; and whether it equals the mask's closed form.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import hf_attn_ext as hax
from benchmarks import ROOT
from benchmarks.studies.common.folders import picture_folder
from benchmarks.studies.common.options import make_parser, report_errors
from hf_attn_ext.hasse import MaskSpec, masks, minimal_joint_task
from hf_attn_ext.hasse.drawing.draw import draw
from hf_attn_ext.hasse.tasks.family import derive


def family_spec(spec: MaskSpec) -> MaskSpec:
    """Return all tasks of the mask's family next to each other, not joined: one diagram per task."""
    family = spec.task_family()
    positions = [position for of_task in family.positions for position in of_task]
    starts = torch.tensor([0] + [len(task) for task in family.tasks]).cumsum(0).tolist()
    tasks = list(zip(starts[:-1], family.tasks, strict=True))
    labels = {start + position: label for start, task in tasks for position, label in task.labels.items()}
    return MaskSpec.from_mask(
        torch.block_diag(*[task.mask for task in family.tasks]),
        labels=labels,
        inputs=[entry for task in family.tasks for entry in task.inputs],
        roles=[spec.roles[position] for position in positions],
        tokens=spec.tokens,
        name=f"{len(family.tasks)} tasks of {spec.name}",
        names=[spec.names[position] for position in positions],
    )


@report_errors
def main(arguments: list[str] | None = None) -> int:
    """Parse the options and run the study."""
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence", help="the pictures' folder")
    parser.add_argument("--tokens", type=int, default=5, help="tokens of the text, at least 2")
    options = parser.parse_args(arguments)
    if options.tokens < 2:
        raise hax.AttnExtError(f"--tokens must be at least 2, got {options.tokens}")
    picture_folder(options.out)
    return run(options.tokens, options.out)


def run(tokens: int, out: Path) -> int:
    """Draw the pictures and print whether each mask equals its closed form."""
    cases = {
        "causal": masks.causal(tokens),
        "block-two-stream": masks.block_two_stream(tokens, 2),
        "butterfly": masks.butterfly(tokens),
    }
    for name, spec in cases.items():
        family = spec.task_family().tasks
        joint = minimal_joint_task(family)
        equal = torch.equal(derive(spec).dense(), spec.dense())
        proof = "minimal" if joint.verify() else "NOT minimal"
        print(
            f"{name}: {len(family)} tasks, {sum(map(len, family))} positions -> {len(joint)}, "
            f"{proof}, {'equal' if equal else 'NOT equal'} to the closed form"
        )
        draw(family_spec(spec), out / f"hasse-{name}-tasks.png", "hasse")
        draw(spec, out / f"hasse-{name}.png")
    draw(masks.butterfly(3 * tokens, window=3), out / "hasse-butterfly-window.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
