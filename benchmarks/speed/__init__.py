"""Benchmarks of attention, of decoding and of orders: time, memory, growth, the share of the machine's own limit.

``hf-attn-ext bench`` runs them, scripts may too:

    from benchmarks.speed import AttentionBench, bench_attention
    report = bench_attention(AttentionBench(lengths=(256, 1024), kernels=("flexformer_p",)))

A report is a plain dictionary, the JSON file that the command writes; ``report.py`` prints it, ``plot.py`` draws it.
"""

from benchmarks.speed.attention.bench import AttentionBench, bench_attention
from benchmarks.speed.attention.contestants import Contestant, Workload
from benchmarks.speed.attention.decode import DecodeBench, bench_decode
from benchmarks.speed.measuring.figures import Crossover, crossover, growth
from benchmarks.speed.measuring.timing import Timing, measure
from benchmarks.speed.orders.hasse import HasseBench, bench_hasse
from benchmarks.speed.orders.order import OrderBench, bench_order

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
