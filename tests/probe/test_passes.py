"""Captured passes that follow one another, run in threads, fail or are interrupted."""

import threading

import pytest
import torch
from transformers import (
    BertForMaskedLM,
    LlamaForCausalLM,
)
from transformers.modeling_utils import AttentionInterface

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.capture import capture as capture_module
from hf_attn_ext.integration.capture.capture import capture
from hf_attn_ext.integration.capture.passes import running_calls
from hf_attn_ext.probe import ContextSimilarityProbe
from tests.integration import tiny

MATRICES = {"keep": ("matrices",)}


def test_several_passes_follow_one_another():
    model = tiny.family_model("roberta")
    with ContextSimilarityProbe(model, **MATRICES) as probe:
        model(**tiny.inputs(batch=2, length=5, padded=False))
        model(**tiny.inputs(batch=1, length=7, padded=False))
    found = probe.matrices(0)
    assert found.shape == (3, 2, 7, 7) and found[:2, :, 5:].abs().max() == 0 and found[:2, :, :, 5:].abs().max() == 0
    assert probe.tokens()[1].tolist() == [[True] * 5 + [False] * 2] * 2 + [[True] * 7]


def test_gradients_flow_and_checkpointing_counts_once():
    model = tiny.family_model("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train()
    batch = tiny.inputs()
    model(**batch).last_hidden_state.square().sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    model.gradient_checkpointing_enable()
    with ContextSimilarityProbe(model, **MATRICES) as probe:
        model(**batch).last_hidden_state.square().sum().backward()
    assert probe.matrices(0).shape == (3, 2, 7, 7) and not probe.matrices(0).requires_grad
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(found) == len(expected) and all(
        torch.allclose(a, b, atol=1e-5) for a, b in zip(found, expected, strict=True)
    )
    with torch.inference_mode(), probe:
        model(**batch)
    assert probe.matrices(0).shape == (6, 2, 7, 7)


def test_an_exception_leaves_no_trace():
    model, batch = tiny.family_model("bert"), tiny.inputs()

    def fail(*_):
        raise RuntimeError("mine")

    with ContextSimilarityProbe(model, **MATRICES) as probe:
        handle = model.encoder.layer[1].register_forward_hook(fail)
        with pytest.raises(RuntimeError, match="mine"):
            model(**batch)
        handle.remove()
        model(**batch)
    assert probe.matrices(0).shape == (3, 2, 7, 7)
    with pytest.raises(KeyError), ContextSimilarityProbe(model, **MATRICES):
        raise KeyError
    assert not capture_module._CAPTURED_LAYERS and AttentionInterface.get_interface is capture_module._ORIGINAL


def test_threads_with_probes_of_their_own_and_with_one_between_them():
    model = tiny.family_model("bert")
    batches = [tiny.inputs(batch=1, seed=seed, padded=False) for seed in range(4)]
    found, start = {}, threading.Barrier(4)

    def own(number):
        with ContextSimilarityProbe(model, **MATRICES) as probe:
            start.wait()
            for _ in range(5):
                model(**batches[number])
            start.wait()
        found[number] = probe

    run_threads(own)
    for number, probe in found.items():
        assert (probe.tokens()[0] == batches[number]["input_ids"]).all() and len(probe.tokens()[0]) == 5

    with ContextSimilarityProbe(model, **MATRICES) as shared:
        run_threads(lambda number: model(**batches[number]))
    assert sorted(shared.tokens()[0].tolist()) == sorted(batch["input_ids"][0].tolist() for batch in batches)
    for row, ids in enumerate(shared.tokens()[0]):
        number = next(n for n in range(4) if torch.equal(batches[n]["input_ids"][0], ids))
        assert torch.equal(shared.matrices(1)[row], found[number].matrices(1)[0])


def run_threads(work, count=4):
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


PROJECTED = {"projections": "*.attention.output.dense"}


@pytest.mark.parametrize("nested", ["same", "body first", "body second"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        ({"layers": [0]}, {"layers": [1]}),
        (PROJECTED, PROJECTED),
        ({"projections": "*.0.attention.output.dense"}, {"projections": "*.1.attention.output.dense"}),
        (PROJECTED, {}),
        ({}, PROJECTED),
    ],
)
def test_a_thread_with_a_capture_on_the_model_is_not_seen_by_those_of_other_threads(first, second, nested):
    """Whatever layers the captures have, in whichever way they look, on the model or on its body."""
    model = tiny.tiny_model(BertForMaskedLM)
    one = model.bert if nested == "body first" else model
    two = model.bert if nested == "body second" else model
    inputs = [tiny.inputs(batch=size, padded=False) for size in (3, 5, 2)]
    found, opened, done = {}, threading.Event(), threading.Event()

    def own(number):
        try:
            if number:
                opened.wait()
            with ContextSimilarityProbe(two if number else one, **(second if number else first), **MATRICES) as probe:
                model(**inputs[number])
                if number:
                    run_threads(bystander, 1)
                else:
                    opened.set()
                    done.wait()
            found[number] = len(probe.tokens()[1])
        finally:
            opened.set()
            if number:
                done.set()

    def bystander(_):
        model(**inputs[2])

    run_threads(own, 2)
    assert found == {0: 3 + 2, 1: 5 + 2}
    assert not capture_module._OPEN_CAPTURES and not any(
        m._forward_pre_hooks or m._forward_hooks for m in model.modules()
    )


def test_a_capture_on_another_model_does_not_take_a_thread_s_passes():
    """Not even where the models share a part that reads no text."""
    model, other = tiny.tiny_model(BertForMaskedLM), tiny.tiny_model(BertForMaskedLM)
    other.bert.embeddings.word_embeddings = model.bert.embeddings.word_embeddings

    def elsewhere(_):
        with ContextSimilarityProbe(other, **MATRICES):
            model(**tiny.inputs(batch=2))

    with ContextSimilarityProbe(model, **MATRICES) as probe:
        run_threads(elsewhere, 1)
    assert len(probe.tokens()[1]) == 2


def test_generation_inside_the_block_is_one_line():
    model = tiny.tiny_model(LlamaForCausalLM)
    ids = tiny.inputs(padded=False)["input_ids"]
    with ContextSimilarityProbe(model, **MATRICES), pytest.raises(AttnExtError, match="continues a cache of 7 tokens"):
        model.generate(ids, max_new_tokens=3, do_sample=False)
    model.generate(ids, max_new_tokens=3, do_sample=False)


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["bert.encoder.layer.1", "bert.encoder.layer.0.attention.self", "bert", "cls"])
def test_an_interrupt_leaves_no_trace(where):
    model, ids, seen, ended = tiny.tiny_model(BertForMaskedLM), tiny.inputs(padded=False)["input_ids"], [], []
    with capture(model, lambda call: seen.append((call.layer.index, call.forward)), ended.append):
        for run in (model, model.bert):  # the head's model was interrupted: its body alone is no part of it
            handle = model.get_submodule(where).register_forward_hook(interrupt)
            with pytest.raises(KeyboardInterrupt):
                model(ids)
            handle.remove()
            seen.clear()
            model.bert.encoder.layer[0](torch.zeros(1, 3, 16))
            assert not seen and not ended
            run(ids)
            assert [index for index, _ in seen] == [0, 1] and not running_calls()
            assert any(forward is seen[0][1] for forward in ended)
            ended.clear()
        model.get_submodule(where).register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(ids)
    assert not running_calls()


def test_checkpointed_layers_after_an_interrupt_count_once():
    model, ids, seen = tiny.tiny_model(BertForMaskedLM).train(), tiny.inputs(padded=False)["input_ids"], []
    model.gradient_checkpointing_enable({"use_reentrant": False})
    with capture(model, lambda call: seen.append(call.layer.index)):
        handle = model.bert.encoder.layer[1].register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(ids)
        handle.remove()
        seen.clear()
        model(ids).logits.sum().backward()
    assert seen == [0, 1]


def fail(*_):
    raise RuntimeError("mine")


@pytest.mark.filterwarnings("ignore:a probe without")
@pytest.mark.parametrize("make", ["labels", "head", "hook before", "hook behind"])
def test_a_pass_whose_head_fails_is_not_counted(make):
    model, ids = tiny.tiny_model(BertForMaskedLM), tiny.inputs(padded=False)["input_ids"]
    handles = [model.register_forward_hook(fail)] if make == "hook before" else []
    with ContextSimilarityProbe(model, tokenizer=None, keep=("statistics", "matrices")) as probe:
        if make == "head":
            handles.append(model.cls.register_forward_hook(fail))
        if make == "hook behind":
            handles.append(model.register_forward_hook(fail))
        labels = torch.zeros(1, 3, dtype=torch.long) if make == "labels" else None
        with pytest.raises((RuntimeError, ValueError)):
            model(ids, labels=labels)
        for handle in handles:
            handle.remove()
        if make != "hook behind":  # that one runs when the model is through
            with pytest.raises(AttnExtError, match="no forward pass"):
                probe.statistics()
        try:
            raise KeyError
        except KeyError:
            model(ids)
    assert probe.statistics().counts["texts"] == len(probe.matrices(0)) == (6 if make == "hook behind" else 3)
