"""The ground floor: what a mask lets flow, the order behind it, and masks derived from families of tasks.

Knows torch, numpy, scipy and networkx, and nothing of models.

    information_flow(mask, num_layers)       which output sees which input after some layers
    Poset.from_mask(mask)                    the order behind a mask, its diagram, its chains
    minimal_joint_task([Task(...), ...])     the smallest task that holds a whole family
"""

from .bits import BitMatrix
from .flow import convergence_depth, information_flow
from .joint import JointTask, minimal_joint_task
from .poset import Poset
from .task import Task

__all__ = [
    "BitMatrix",
    "JointTask",
    "Poset",
    "Task",
    "convergence_depth",
    "information_flow",
    "minimal_joint_task",
]
