"""One process of a run of several: feed its share of the texts, gather, and let the first write what all have."""

import sys

import planted
from accelerate import PartialState

from hf_attn_ext.probe import ContextSimilarityProbe

state = PartialState(cpu=True)
assert state.num_processes == int(sys.argv[2])
texts = planted.make_texts(7) + planted.make_texts(4, sentences=2, seed=1)
with ContextSimilarityProbe(planted.small_bert().double(), planted.word_tokenizer(), sample=0.5) as probe:
    probe.feed(texts[state.process_index :: state.num_processes], batch_size=3)
    probe.gather()
    statistics = probe.statistics()
if state.is_main_process:
    statistics.to_json(sys.argv[1])
state.wait_for_everyone()
state.destroy_process_group()
