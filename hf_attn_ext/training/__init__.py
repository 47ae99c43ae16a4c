"""Distillation: attention transfer (stage 1) and fine-tuning (stage 2), on one accelerate loop."""

from ..attention.losses import attention_losses
from ..integration import accept_neighbour_ids, butterfly_embeddings
from .collators import BlockTwoStreamCollator, ButterflyCollator
from .config import (
    DataConfig,
    DistillConfig,
    ModelConfig,
    OutputConfig,
    Stage1Config,
    Stage2Config,
    TaskConfig,
    TrackingConfig,
    TrainConfig,
)
from .config_files import load_config
from .finetune import evaluate_task
from .label_loss import LabelLoss
from .losses import distillation_loss, task_loss
from .pipeline import DistillResult, distill
from .results import results_table
from .transfer import evaluate_transfer

__all__ = [
    "BlockTwoStreamCollator",
    "ButterflyCollator",
    "DataConfig",
    "DistillConfig",
    "DistillResult",
    "LabelLoss",
    "ModelConfig",
    "OutputConfig",
    "Stage1Config",
    "Stage2Config",
    "TaskConfig",
    "TrackingConfig",
    "TrainConfig",
    "accept_neighbour_ids",
    "attention_losses",
    "butterfly_embeddings",
    "distill",
    "distillation_loss",
    "evaluate_task",
    "evaluate_transfer",
    "load_config",
    "results_table",
    "task_loss",
]
