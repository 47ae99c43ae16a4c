"""The kernels of this package, one file each. Importing this folder registers them.

flexformer_s, flexformer_n      the paper's stationary and nonstationary kernels
flexformer_p                    positive features of learned frequencies, the default (ours)
flexformer_c                    the same with complex frequencies (ours)
flexformer_sq                   the squared kernel, never negative (ours)
elu, cosformer, hedgehog,       kernels from the literature
performer, polaformer, rfa
uniform                         the control: no attention, the average of all values
"""

from hf_attn_ext.attention.feature_map import FeatureMap, Features, Side

from .cosformer import Cosformer
from .elu import Elu
from .flexformer_c import FlexformerC
from .flexformer_n import FlexformerN
from .flexformer_p import FlexformerP
from .flexformer_s import FlexformerS
from .flexformer_sq import FlexformerSq
from .hedgehog import Hedgehog
from .performer import Performer
from .polaformer import Polaformer
from .rfa import RFA
from .uniform import Uniform

__all__ = [
    "RFA",
    "Cosformer",
    "Elu",
    "FeatureMap",
    "Features",
    "FlexformerC",
    "FlexformerN",
    "FlexformerP",
    "FlexformerS",
    "FlexformerSq",
    "Hedgehog",
    "Performer",
    "Polaformer",
    "Side",
    "Uniform",
]
