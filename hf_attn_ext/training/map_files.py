"""Files that hold the feature maps between the phases of a run; conversion and stage 1 change nothing else."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hf_attn_ext._util.files import new_folder
from hf_attn_ext.integration import converted_layers


def save_maps(target: Path, model: nn.Module, scales: dict[str, Tensor]) -> None:
    """Write the feature maps of ``model`` and the output scales of its layers to the folder ``target``."""
    state = {
        f"{layer.name}.{key}": tensor.detach().cpu().contiguous()
        for layer in converted_layers(model)
        for key, tensor in layer.feature_map.state_dict().items()
    }
    with new_folder(target) as folder:
        save_file(state, folder / "maps.safetensors")
        save_file({key: tensor.cpu() for key, tensor in scales.items()}, folder / "scales.safetensors")


def load_maps(source: Path, model: nn.Module) -> dict[str, Tensor]:
    """Put the feature maps that :func:`save_maps` wrote into ``model``, strictly; return the output scales."""
    state = load_file(source / "maps.safetensors")
    for layer in converted_layers(model):
        prefix = f"{layer.name}."
        layer.feature_map.load_state_dict(
            {key.removeprefix(prefix): tensor for key, tensor in state.items() if key.startswith(prefix)}
        )
    return load_file(source / "scales.safetensors")
