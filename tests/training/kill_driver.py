"""Run by test_resume.py in a process of its own: distil, kill -9, resume, again and again, then finish.

Imports once, then forks a child for every life of the run. Prints one JSON line: how every life ended.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time

import torch

from hf_attn_ext._util import files
from hf_attn_ext.training import checkpoints, distill, loop, pipeline
from hf_attn_ext.training.stages import finetune, transfer

SIGNAL = signal.SIGKILL


def kill_when(stage: str, step: int, place: str) -> None:
    """Arrange that this process kills itself at ``place`` of ``step`` of ``stage``."""

    def dying(cls, method, after=False):
        original = getattr(cls, method)

        def wrapped(self, *arguments, **options):
            self.calls = getattr(self, "calls", 0) + 1
            result = original(self, *arguments, **options) if after else None
            if getattr(self, "name", stage) == stage and self.calls == step:
                os.kill(os.getpid(), SIGNAL)
            return result if after else original(self, *arguments, **options)

        setattr(cls, method, wrapped)

    kind = transfer.TransferStage if stage == "stage1" else finetune.TaskStage
    if place == "gradients":
        dying(kind, "finish_gradients")
    elif place == "evaluating":
        dying(kind, "evaluate")
    elif place == "saving":  # the checkpoint's folder is half-written
        dying(kind, "save_state", after=True)
    elif place == "renaming":
        original = checkpoints.replace_folder
        count = [0]

        def rename(source, target):
            count[0] += stage in str(target)
            if count[0] == step:
                os.kill(os.getpid(), SIGNAL)
            original(source, target)

        checkpoints.replace_folder = rename
    elif place == "finishing":  # all is trained: between the model's folder and results.json
        original_json = pipeline.write_json

        def write_json(path, value):
            if path.name == "results.json":
                os.kill(os.getpid(), SIGNAL)
            original_json(path, value)

        pipeline.write_json = write_json
    elif place == "tidying":
        original_remove = files.shutil.rmtree

        def rmtree(path, *arguments, **options):
            if "removed-" in str(path) and os.path.exists(path):
                os.kill(os.getpid(), SIGNAL)
            original_remove(path, *arguments, **options)

        files.shutil.rmtree = rmtree
    else:
        raise ValueError(place)


def life(config: str, plan: tuple | None, seconds: float | None) -> int:
    """Fork a child that runs the distillation; return the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        try:
            if plan:
                kill_when(*plan)
            distill(config)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, SIGNAL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status)
    if os.WEXITSTATUS(status):
        raise SystemExit(f"the run failed with exit code {os.WEXITSTATUS(status)}")
    return 0


def main() -> None:
    whole, killed, plans, random_kills = sys.argv[1:]
    torch.set_num_threads(1)
    assert loop  # imported before the fork, like all the rest
    ends = [life(killed, plan, None) for plan in json.loads(plans)]
    generator = random.Random(0)
    for _ in range(int(random_kills)):
        ends.append(life(killed, None, generator.uniform(0.05, 1.0)))
        if ends[-1] == 0:
            break
    if not ends or ends[-1] != 0:
        life(killed, None, None)
    life(whole, None, None)
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
