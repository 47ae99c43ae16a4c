"""Block two-stream and butterfly batches: the loss by hand, no leak, padding is nothing, Trainer and accelerate."""

import pickle
import warnings

import accelerate
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import (
    BertForMaskedLM,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    RobertaForMaskedLM,
    Trainer,
    TrainingArguments,
)

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import masks
from hf_attn_ext.training import BlockTwoStreamCollator, ButterflyCollator, accept_neighbour_ids, butterfly_embeddings
from tests.inference.families import MODELS, Tokens
from tests.integration import tiny
from tests.training import small_gpt

FEW = [RobertaForMaskedLM, GPT2LMHeadModel, LlamaForCausalLM]
TEXTS = [{"input_ids": [5, 6, 7, 8, 9, 10, 11]}, {"input_ids": [12, 13, 14, 15, 16], "attention_mask": [1] * 5}]


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="set_mask on")
        yield


def two_stream(cls, **changes):
    model = hax.set_mask(tiny.tiny_model(cls).double(), "block_two_stream", block_size=3, **changes)
    return model, BlockTwoStreamCollator(Tokens, model)


def butterfly(cls, **changes):
    model = hax.set_mask(tiny.tiny_model(cls).double(), "butterfly", **changes)
    accept_neighbour_ids(model)
    return model, ButterflyCollator(Tokens, model)


def extra(cls):
    return {} if "MaskedLM" in cls.__name__ else {"use_cache": False}


@pytest.mark.parametrize("make", [two_stream, butterfly])
@pytest.mark.parametrize("cls", MODELS)
def test_the_loss_is_the_one_by_hand(cls, make):
    model, collator = make(cls)
    batch = collator(TEXTS)
    output = model(**batch, **extra(cls))
    wanted = batch["labels"] >= 0
    assert wanted.sum() == 7 + 5 and set(batch["labels"][wanted].tolist()) == set(range(5, 17))
    by_hand = cross_entropy(output.logits[wanted].float(), batch["labels"][wanted])
    torch.testing.assert_close(output.loss.float(), by_hand)
    assert ("shift_labels" in batch) == ("MaskedLM" not in cls.__name__)


@pytest.mark.parametrize("make", [two_stream, butterfly])
@pytest.mark.parametrize("cls", MODELS)
@torch.no_grad()
def test_a_padded_text_is_predicted_as_it_is_alone(cls, make):
    model, collator = make(cls)
    together = collator(TEXTS)
    logits = model(**together, **extra(cls)).logits
    for row, text in enumerate(TEXTS):
        alone = collator([text])
        expected = model(**alone, **extra(cls)).logits[0][alone["labels"][0] >= 0]
        torch.testing.assert_close(logits[row][together["labels"][row] >= 0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("context", "starts"), [("block", "boundary"), ("token", "every")])
@torch.no_grad()
def test_the_other_variants_padded_and_alone(context, starts):
    model, collator = two_stream(GPT2LMHeadModel, context=context, starts=starts)
    texts = [*TEXTS, {"input_ids": [20, 21]}]
    together = collator(texts)
    logits = model(**together, use_cache=False).logits
    for row, text in enumerate(texts):
        alone = collator([text])
        wanted = alone["labels"][0] >= 0
        expected = model(**alone, use_cache=False).logits[0][wanted]
        kept = together["labels"][row] >= 0
        assert torch.equal(together["labels"][row][kept], alone["labels"][0][wanted])
        torch.testing.assert_close(logits[row][kept], expected, rtol=1e-6, atol=1e-6)
    if starts == "every":
        assert (together["labels"][:2] >= 0).sum(1).tolist() == [(7 - 2) * 3, (5 - 2) * 3]


@pytest.mark.parametrize("cls", FEW)
def test_positions_stay_in_the_model_s_table(cls):
    model, collator = two_stream(cls)
    long = {"input_ids": list(range(5, 35)) * 3}
    batch = collator([long])
    table = model.config.max_position_embeddings
    first = 1 if cls is RobertaForMaskedLM else 0
    if cls is not LlamaForCausalLM:  # rotary positions have no table
        assert batch["position_ids"].min() == first and batch["position_ids"].max() == table - 1
    assert model(**batch, **extra(cls)).loss.isfinite()
    cut = BlockTwoStreamCollator(Tokens, model, max_length=10, pad_to_max_length=True)
    assert cut([long])["input_ids"].shape == (1, 20)
    assert cut(TEXTS)["input_ids"].shape == (2, 20)


def gradients_of_inputs(model, batch, row, slot, target):
    """The gradient of one logit with respect to the input embedding of every slot of its row."""
    embeddings = model.get_input_embeddings()(batch["input_ids"])
    if "neighbour_ids" in batch:
        embeddings = butterfly_embeddings(model, batch)["inputs_embeds"]
    embeddings = embeddings.detach().requires_grad_()
    kept = ("position_ids", "attention_mask")
    output = model(inputs_embeds=embeddings, **{name: batch[name] for name in kept}, **extra(type(model)))
    output.logits[row, slot, target].backward()
    return embeddings.grad[row].abs().amax(-1)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("cls", MODELS)
def test_butterfly_leaks_nothing(cls, backend):
    model, collator = butterfly(cls, backend=backend)
    batch, n = collator(TEXTS), 7
    for row, count in ((0, 7), (1, 5)):
        for k in range(0, count, 2):
            found = gradients_of_inputs(model, batch, row, 2 * n - 2 + k, int(batch["labels"][row, 2 * n - 2 + k]))
            holders = [k] * (k < n - 1) + [n - 2 + k] * (k > 0)
            holders += [2 * n - 2 + j for j in (k - 1, k + 1) if 0 <= j < n]
            assert (found[holders] == 0).all()
            assert (found[~batch["attention_mask"][row].bool()] == 0).all()
            seen = list(range(k)) + [n - 1 + j - 1 for j in range(k + 1, count)] + [2 * n - 2 + k]
            assert (found[seen] > 0).all()


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("cls", MODELS)
def test_block_two_stream_leaks_nothing(cls, backend):
    model, collator = two_stream(cls, backend=backend)
    batch, n = collator(TEXTS), 7
    for row, count in ((0, 7), (1, 5)):
        for k in range(0, count, 2):
            found = gradients_of_inputs(model, batch, row, n + k, int(batch["labels"][row, n + k]))
            start = k // 3 * 3
            assert (found[start:n] == 0).all()  # the token itself, the rest of its block, and all that follows
            assert (found[:start] > 0).all() and (found[n + start : n + min(start + 3, count)] > 0).all()
            others = [n + i for i in range(n) if i // 3 != k // 3]
            assert (found[others] == 0).all()


@pytest.mark.skipif(not tiny.linear_attention_knows_orders(), reason="linear_attention(order=...) is not there yet")
@pytest.mark.parametrize("cls", MODELS)
def test_linear_layers_leak_nothing(cls):
    n = 7
    model = hax.set_mask(hax.convert(tiny.tiny_model(cls).double(), tiny.KERNEL), "butterfly")
    batch = ButterflyCollator(Tokens, model)(TEXTS)
    for row, k in ((0, 0), (0, 3), (0, 6), (1, 2)):
        found = gradients_of_inputs(model, batch, row, 2 * n - 2 + k, int(batch["labels"][row, 2 * n - 2 + k]))
        holders = [k] * (k < n - 1) + [n - 2 + k] * (k > 0) + [2 * n - 2 + j for j in (k - 1, k + 1) if 0 <= j < n]
        assert (found[holders] == 0).all() and found[2 * n - 2 + k] > 0
    hax.set_mask(model, "block_two_stream", block_size=3)
    batch = BlockTwoStreamCollator(Tokens, model)(TEXTS)
    for row, k in ((0, 1), (0, 5), (1, 4)):
        found = gradients_of_inputs(model, batch, row, n + k, int(batch["labels"][row, n + k]))
        start = k // 3 * 3
        assert (found[start:n] == 0).all() and (found[:start] > 0).all()


def test_neighbours_are_means_with_gradients():
    model, collator = butterfly(GPT2LMHeadModel)
    batch = collator(TEXTS[:1])
    rows = model.get_input_embeddings().weight
    inputs = butterfly_embeddings(model, batch)["inputs_embeds"][0]
    torch.testing.assert_close(inputs[12 + 2], (rows[6] + rows[8]) / 2)
    assert torch.equal(inputs[12], rows[6]) and torch.equal(inputs[3], rows[8])
    inputs[12 + 2].sum().backward()
    assert (rows.grad[[6, 8]] == 0.5).all() and rows.grad[7].abs().max() == 0


def test_neighbours_that_nobody_takes_are_noticed():
    model = hax.set_mask(tiny.tiny_model(GPT2LMHeadModel), "butterfly")
    batch = ButterflyCollator(Tokens, model)(TEXTS)
    with pytest.raises(AttnExtError, match=r"neighbour_ids reached the attention unused.*accept_neighbour_ids"):
        model(**batch)
    handle = accept_neighbour_ids(model)
    expected = model(**batch).loss
    handle.remove()
    assert torch.equal(model(**butterfly_embeddings(model, batch)).loss, expected)


def text_model(tmp_path, layout):
    small_gpt.save_tokenizer(tmp_path)
    tokenizer = small_gpt.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(small_gpt.host_config(vocab_size=len(tokenizer)))
    hax.add_mask_token(model, tokenizer)
    if layout == "butterfly":
        accept_neighbour_ids(hax.set_mask(model, "butterfly"))
        return model, tokenizer, ButterflyCollator(tokenizer, model)
    hax.set_mask(model, "block_two_stream", block_size=2)
    return model, tokenizer, BlockTwoStreamCollator(tokenizer, model)


def documents(tokenizer):
    return [dict(tokenizer(item["text"])) for item in small_gpt.documents(8)]


@pytest.mark.parametrize("layout", ["butterfly", "block_two_stream"])
def test_trainer_learns_and_the_folder_opens(layout, tmp_path):
    model, tokenizer, collator = text_model(tmp_path / "tokenizer", layout)
    args = TrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=6, per_device_train_batch_size=4, learning_rate=2e-2,
        logging_steps=1, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
        gradient_accumulation_steps=2,
    )  # fmt: skip
    trainer = Trainer(
        model, args, train_dataset=documents(tokenizer), eval_dataset=documents(tokenizer), data_collator=collator,
        processing_class=tokenizer,
    )  # fmt: skip
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert after < before - 0.2
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] and abs(losses[0] - before) < 0.5
    trainer.save_model(tmp_path / "out")
    opened = GPT2LMHeadModel.from_pretrained(tmp_path / "out", attn_implementation="hasse")
    batch = collator(documents(tokenizer)[:2])
    with torch.no_grad():
        found = opened(**butterfly_embeddings(opened, batch) if layout == "butterfly" else batch).loss
        torch.testing.assert_close(found, model.eval()(**batch).loss)


@pytest.mark.parametrize("layout", ["butterfly", "block_two_stream"])
def test_accelerate_learns(layout, tmp_path):
    model, tokenizer, collator = text_model(tmp_path, layout)
    accelerator = accelerate.Accelerator(cpu=True)
    loader = DataLoader(documents(tokenizer), batch_size=8, collate_fn=collator)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=2e-2), loader)
    losses = []
    for _ in range(3):
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert losses[0] > losses[1] > losses[2]


def test_a_collator_without_a_model_and_with_a_mask_of_one_length():
    batch = BlockTwoStreamCollator(Tokens, block_size=2)(TEXTS)
    assert batch["input_ids"].shape == (2, 14) and torch.equal(batch["shift_labels"], batch["labels"])
    plain = ButterflyCollator(Tokens, max_length=4, unlabelled=[5])(TEXTS)
    assert plain["input_ids"].shape == (2, 10) and plain["labels"][0].tolist()[-4:] == [-100, 6, 7, 8]
    model = hax.set_mask(tiny.tiny_model(BertForMaskedLM), masks.block_two_stream(6, 2))
    assert BlockTwoStreamCollator(Tokens, model)(TEXTS)["input_ids"].shape == (2, 12)
    collator = pickle.loads(pickle.dumps(BlockTwoStreamCollator(Tokens, model)))  # for the workers of a DataLoader
    assert collator.options["context"] == "token" and collator(TEXTS)["labels"].shape == (2, 12)


def two_streams(model):
    return hax.set_mask(model, "block_two_stream", block_size=2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: BlockTwoStreamCollator(Tokens), "block_size is missing"),
        (lambda m: BlockTwoStreamCollator(Tokens, block_size=0), "block_size must be a whole number"),
        (lambda m: BlockTwoStreamCollator(Tokens, block_size=2, context="x"), "context must be one of"),
        (lambda m: BlockTwoStreamCollator(type("T", (Tokens,), {"mask_token_id": None}), block_size=2),
         "no mask token; call hf_attn_ext.add_mask_token"),
        (lambda m: BlockTwoStreamCollator(type("T", (Tokens,), {"mask_token_id": 40}), two_streams(m)),
         "id 40, .* 40 embeddings"),
        (lambda m: BlockTwoStreamCollator(Tokens, m, block_size=2),
         r"has no mask: call hf_attn_ext.set_mask\(model, 'block_two_stream', block_size=2\) first"),
        (lambda m: BlockTwoStreamCollator(Tokens, hax.set_mask(m, "butterfly")), "another mask than"),
        (lambda m: BlockTwoStreamCollator(Tokens, two_streams(m), block_size=3),
         "block_size is 3 here, but 2 in the model's mask"),
        (lambda m: ButterflyCollator(Tokens, hax.set_mask(m, "butterfly"), window=2), "window is 2 here, but None"),
        (lambda m: ButterflyCollator(Tokens, hax.set_mask(m, "butterfly"), max_length=41), "has 40 positions"),
        (lambda m: ButterflyCollator(Tokens, max_length=1), "max_length must be a whole number from 2"),
        (lambda m: ButterflyCollator(Tokens, pad_to_max_length=True), "needs max_length"),
        (lambda m: ButterflyCollator(Tokens)([]), "at least one text"),
        (lambda m: ButterflyCollator(Tokens)([{"text": "a"}]), "text 0 of the batch has no input_ids"),
        (lambda m: ButterflyCollator(Tokens)([{"input_ids": []}]), "text 0 of the batch has no token"),
        (lambda m: ButterflyCollator(Tokens)([{"input_ids": [[5, 6], [7, 8]]}]), r"one dimension, got shape \(2, 2\)"),
        (lambda m: ButterflyCollator(Tokens)([{"input_ids": 5}]), r"one dimension, got shape \(\)"),
        (lambda m: ButterflyCollator(Tokens)([{"input_ids": [[5, 6], [7]]}]), r"list of numbers, got \[\[5"),
        (lambda m: ButterflyCollator(Tokens)([{"input_ids": "ab"}]), "list of numbers, got 'ab'"),
        (lambda m: ButterflyCollator(Tokens)([{"input_ids": None}]), "list of numbers, got None"),
        (lambda m: ButterflyCollator(Tokens)([{"input_ids": [5.0, 6.7]}]), "whole numbers, got dtype torch.float32"),
        (lambda m: ButterflyCollator(Tokens)([{"input_ids": [True, False]}]), "whole numbers, got dtype torch.bool"),
        (lambda m: ButterflyCollator(Tokens)([{"input_ids": [5, 6], "attention_mask": [1]}]), "has 2 input_ids, but 1"),
        (lambda m: ButterflyCollator(Tokens)([{"input_ids": [5], "attention_mask": [[1], [1]]}]), "attention_mask of"),
        (lambda m: ButterflyCollator(None), "tokenizer must be one of transformers, got None"),
        (lambda m: ButterflyCollator(Tokens, "bert"), "model must be a Transformers model, got str"),
        (lambda m: ButterflyCollator(Tokens, unlabelled=5), "unlabelled must be a list, got 5"),
        (lambda m: ButterflyCollator(Tokens, unlabelled=["a"]), "unlabelled must be ids"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(call, words):
    with pytest.raises(AttnExtError, match=words) as error:
        call(tiny.tiny_model(BertForMaskedLM))
    assert "\n" not in str(error.value)
