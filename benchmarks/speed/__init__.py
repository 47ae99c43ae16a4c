"""Benchmarks of attention, of decoding and of orders: time, memory, growth, the share of the machine's own limit.

A floor above integration, beside hub; ``hf-attn-ext bench`` runs it, scripts may too:

    from benchmarks.speed import AttentionBench, bench_attention
    report = bench_attention(AttentionBench(lengths=(256, 1024), kernels=("flexformer_c",)))

A report is a plain dictionary, the JSON file that the command writes; ``report.py`` prints it, ``plot.py`` draws it.
"""

from .attention import AttentionBench, bench_attention
from .contestants import Contestant, Workload
from .decode import DecodeBench, bench_decode
from .figures import Crossover, crossover, growth
from .hasse import HasseBench, bench_hasse
from .order import OrderBench, bench_order
from .timing import Timing, measure

__all__ = [
    "AttentionBench",
    "Contestant",
    "Crossover",
    "DecodeBench",
    "HasseBench",
    "OrderBench",
    "Timing",
    "Workload",
    "bench_attention",
    "bench_decode",
    "bench_hasse",
    "bench_order",
    "crossover",
    "growth",
    "measure",
]
