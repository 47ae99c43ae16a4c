"""The ground floor: what a mask lets flow, the order behind it, and masks derived from families of tasks.

Knows torch, numpy and networkx, and nothing of models.

    information_flow(mask, num_layers)       which output sees which input after some layers
    Poset.from_mask(mask)                    the order behind a mask, its diagram, its chains
    minimal_joint_task([Task(...), ...])     the smallest task that holds a whole family
    chain_decomposition(masks.butterfly(8))          what is seen as chains, and how far along each every position sees
    masks.butterfly(8)                       masks in closed form, with position ids, roles and labels
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
