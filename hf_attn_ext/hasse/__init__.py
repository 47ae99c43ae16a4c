"""Masks: their information flow, the partial order behind them, and masks derived from task families.

Imports torch, numpy and networkx (matplotlib in ``drawing``); models and Transformers do not belong here.

    information_flow(mask, num_layers)        which output depends on which input after some layers
    Poset.from_mask(mask)                     the partial order behind a mask, its Hasse diagram and chain decomposition
    minimal_joint_task([Task(...), ...])      the smallest task that contains a whole task family
    chain_decomposition(masks.butterfly(8))   chains, and how far each position sees along them
    masks.butterfly(8)                        masks in closed form, with position ids, roles and labels
"""

from . import masks
from .checks import Finding
from .decomposition import ChainDecomposition, chain_decomposition
from .order.bits import BitMatrix
from .order.flow import convergence_depth, information_flow
from .order.poset import Poset
from .spec import MaskSpec
from .tasks.joint import JointTask, minimal_joint_task
from .tasks.task import Task

__all__ = [
    "BitMatrix",
    "ChainDecomposition",
    "Finding",
    "JointTask",
    "MaskSpec",
    "Poset",
    "Task",
    "chain_decomposition",
    "convergence_depth",
    "information_flow",
    "masks",
    "minimal_joint_task",
]
