"""Distillation: attention transfer (stage 1) and fine-tuning (stage 2), on one accelerate loop."""

from hf_attn_ext.attention.losses import attention_losses
from hf_attn_ext.integration import accept_neighbour_ids, butterfly_embeddings

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
    load_config,
)
from .distill_kernels import KernelDistillation, distill_kernels
from .pipeline import DistillResult, distill
from .results import results_table
from .stages.finetune import evaluate_task
from .stages.label_loss import LabelLoss
from .stages.losses import distillation_loss, task_loss
from .stages.transfer import evaluate_transfer

__all__ = [
    "BlockTwoStreamCollator",
    "ButterflyCollator",
    "DataConfig",
    "DistillConfig",
    "DistillResult",
    "KernelDistillation",
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
    "distill_kernels",
    "distillation_loss",
    "evaluate_task",
    "evaluate_transfer",
    "load_config",
    "results_table",
    "task_loss",
]
