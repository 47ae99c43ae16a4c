"""Cards and uploads: :mod:`card` writes a model card from measured results, :mod:`push` uploads a model."""

from .card import render_card, write_card
from .files import UploadFile, files_to_upload
from .push import PushResult, push_folder, push_to_hub

__all__ = [
    "PushResult",
    "UploadFile",
    "files_to_upload",
    "push_folder",
    "push_to_hub",
    "render_card",
    "write_card",
]
