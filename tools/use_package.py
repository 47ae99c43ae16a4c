"""Use an installed package as a new user would: convert a tiny model, save it, open it in a fresh process, list names.

    python tools/use_package.py      # from an environment in which only the wheel is installed, in any folder

Exits with an error at the first thing that does not work.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CONVERT = """
import sys, torch, transformers
import hf_attn_ext as hax

torch.manual_seed(0)
config = transformers.BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
)
model = hax.convert(transformers.BertForMaskedLM(config), num_features=8).eval()
model.save_pretrained(sys.argv[1])
ids = torch.arange(1, 21).view(2, 10)
torch.save(model(ids).logits, sys.argv[2])
"""
OPEN = """
import sys, torch, transformers
import hf_attn_ext as hax

model = transformers.AutoModelForMaskedLM.from_pretrained(sys.argv[1]).eval()
assert hax.is_converted(model), type(model)
difference = (model(torch.arange(1, 21).view(2, 10)).logits - torch.load(sys.argv[2])).abs().max().item()
assert difference < 1e-5, difference
print(f"opened {type(model).__name__} in a fresh process; largest difference of a logit: {difference}")
"""


def run(*command: str) -> str:
    """Run a command of this environment; return what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=tempfile.gettempdir())
    if done.returncode:
        sys.exit(f"{' '.join(command)[:200]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def check_wheel(path: Path) -> None:
    """Check that a wheel holds the package, its templates and its type marker, and nothing else of the repository."""
    names = zipfile.ZipFile(path).namelist()
    folders = {name.split("/")[0] for name in names}
    stray = {name for name in folders if name in ("benchmarks", "examples", "tests", "tools", "docs", "configs")}
    if stray:
        sys.exit(f"{path.name} holds {sorted(stray)}, which belong to the repository alone")
    for suffix in ("hf_attn_ext/py.typed", ".j2", ".js", ".cpp", ".h"):
        if not any(name.endswith(suffix) for name in names):
            sys.exit(f"{path.name} holds no file {suffix}")


def main(wheels: list[str]) -> None:
    """Check the wheels, then use the installed package."""
    for wheel in wheels:
        check_wheel(Path(wheel))
    bin_folder = Path(sys.executable).parent
    command = str(bin_folder / "hf-attn-ext")
    with tempfile.TemporaryDirectory() as scratch:
        folder, logits = str(Path(scratch) / "converted"), str(Path(scratch) / "logits.pt")
        run(sys.executable, "-c", CONVERT, folder, logits)
        print(run(sys.executable, "-c", OPEN, folder, logits))
        run(command, "doctor", folder)
        run(command, "mask", "show", "butterfly", "--n", "5", "--out", str(Path(scratch) / "mask.png"))
    print(run(command, "--version"))
    print(run(command, "list"))


if __name__ == "__main__":
    main(sys.argv[1:])
