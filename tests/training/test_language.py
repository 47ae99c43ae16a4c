"""Language modelling: documents to sequences, the loss, perplexity and its errors, a teacher on the same batches."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2LMHeadModel

from hf_attn_ext import AttnExtError
from hf_attn_ext.training import DataConfig, metrics
from hf_attn_ext.training.config import Stage2Config
from hf_attn_ext.training.data.encoding import Collator, EncodedSplit, encode_documents
from hf_attn_ext.training.data.loading import Split, load_task_data
from hf_attn_ext.training.stages.finetune import TaskStage, evaluate_task, language_batch_size, predict
from hf_attn_ext.training.stages.losses import distillation_loss, language_loss, predicted_tokens
from tests.training import small_gpt

LANGUAGE = "language_modeling"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return small_gpt.save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def words(tokenizer, data):
    return [" ".join(tokenizer.convert_ids_to_tokens(data[i]["input_ids"])) for i in range(len(data))]


def texts(*documents):
    return Split(list(documents), None, None, None)


# -- documents to sequences ----------------------------------------------------------------------------------------


def test_documents_are_joined_and_sequences_overlap_by_one_token(tokenizer):
    data = encode_documents(texts("anna said that", "ben went"), tokenizer, 4)
    assert words(tokenizer, data) == ["<end> anna said that", "that <end> ben went"]
    assert data.labels is None


def test_a_document_of_its_own_is_cut(tokenizer):
    data = encode_documents(texts("anna said that the road", "ben went"), tokenizer, 4, packing=False)
    assert words(tokenizer, data) == ["<end> anna said that", "<end> ben went"]


def test_two_tokens_for_the_beginning_and_the_end(tmp_path):
    two = small_gpt.save_tokenizer(tmp_path, bos_token="<s>", eos_token="</s>")
    data = encode_documents(texts("anna said", "", "ben"), two, 16)
    assert words(two, data) == ["<s> anna said </s> <s> ben </s>"]


def test_lines_of_one_text_are_joined_as_they_are(tokenizer):
    data = encode_documents(texts("anna said", "", "ben"), tokenizer, 16, borders=False)
    assert words(tokenizer, data) == ["anna said ben"]
    assert words(tokenizer, encode_documents(texts("anna said", "ben"), tokenizer, 16, False, False)) == ["anna said"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(4, 9))
def test_every_token_but_the_first_is_predicted_once(tokenizer, sizes, length):
    documents = [" ".join(small_gpt.FILL[:size]) for size in sizes]
    if not any(sizes):
        with pytest.raises(AttnExtError, match="no text has a token"):
            encode_documents(texts(*documents), tokenizer, length)
        return
    data = encode_documents(texts(*documents), tokenizer, length)
    stream = [data[0]["input_ids"][0], *(token for i in range(len(data)) for token in data[i]["input_ids"][1:])]
    whole = [tokenizer(f"<end> {document}")["input_ids"] for document in documents if document]
    assert stream == [token for ids in whole for token in ids]
    assert data.lengths.min() >= 2 and data.lengths.max() <= length


def test_a_tokenizer_without_borders_is_told(tmp_path):
    bare = small_gpt.save_tokenizer(tmp_path, pad_token="<pad>")
    with pytest.raises(AttnExtError, match="neither a bos nor an eos token"):
        encode_documents(texts("anna"), bare, 8)


def test_padding_is_on_the_right_and_needs_no_token(tokenizer):
    tokenizer.padding_side = "left"
    batch = Collator(tokenizer, LANGUAGE)([EncodedSplit([[5, 6, 7], [8]], None, None)[i] for i in range(2)])
    tokenizer.padding_side = "right"
    assert tokenizer.pad_token_id is None
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]] and batch["input_ids"][1, 0] == 8


# -- reading -------------------------------------------------------------------------------------------------------


def load(**changes):
    return load_task_data(DataConfig(task=LANGUAGE, **changes))


def test_documents_are_held_out_whole_with_their_group(tmp_path):
    path = small_gpt.save_jsonl(tmp_path / "all.jsonl", small_gpt.documents(30))
    data = load(train=str(path), group_column="author", validation_fraction=0.2, test_fraction=0.4)
    groups = [set(split.groups) for split in (data.train, data.validation, data.test)]
    assert [len(group) for group in groups] == [3, 1, 2] and len(set.union(*groups)) == 6
    assert data.labels.task == LANGUAGE and data.labels.names == [] and data.train.labels is None


def test_a_text_file_is_one_document_or_one_a_line(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text("anna said\n\nben went\n")
    files = {"train": [str(tmp_path / "one.txt"), str(tmp_path / "two.txt")], "validation": str(tmp_path / "two.txt")}
    data = load(**files)
    assert data.train.texts == ["anna said\n\nben went\n"] * 2
    assert load(**files, text_unit="line").train.texts == ["anna said", "", "ben went"] * 2
    plain = load_task_data(DataConfig(**files, text_unit="file"), labelled=False)
    assert plain.train.texts == data.train.texts


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"labels": ["a", "b"]}, "data.labels' is .*language_modeling reads single texts"),
        ({"text_pair_column": "author"}, "data.text_pair_column' is 'author'"),
        ({"text_column": "txt"}, "no column 'txt'.*Did you mean 'text'"),
    ],
)
def test_mistakes(tmp_path, changes, said):
    path = small_gpt.save_jsonl(tmp_path / "all.jsonl", small_gpt.documents(10))
    with pytest.raises(AttnExtError, match=said):
        load(train=str(path), **changes)


def test_plain_texts_without_a_task_are_pointed_to_it(tmp_path):
    (tmp_path / "lines.txt").write_text("anna said\nben went\n" * 9)
    with pytest.raises(AttnExtError, match=r"no column 'label'.*task: language_modeling"):
        load_task_data(DataConfig(train=str(tmp_path / "lines.txt")))


# -- loss and perplexity -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [None, "right", "left"])
def test_the_loss_is_the_sum_over_real_next_tokens(side):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 7, generator=generator)
    ids, mask = torch.randint(0, 7, (2, 5), generator=generator), torch.ones(2, 5, dtype=torch.long)
    if side:
        mask[1, {"right": [3, 4], "left": [0, 1]}[side]] = 0
    wanted, count = 0.0, 0
    for row in range(2):
        real = [place for place in range(5) if mask[row, place]]
        for place, following in itertools.pairwise(real):
            wanted -= float(logits[row, place].double().log_softmax(-1)[ids[row, following]])
            count += 1
    assert float(language_loss(logits, ids, mask)) == pytest.approx(wanted, rel=1e-6)
    assert int(predicted_tokens(mask).sum()) == count
    parts = language_loss(logits, ids, mask, "none")
    assert float(parts.sum()) == pytest.approx(wanted, rel=1e-6)
    assert (parts[~predicted_tokens(mask)] == 0).all()


def test_the_loss_is_the_hosts():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(small_gpt.host_config()).eval()
    ids = torch.randint(0, 24, (3, 8))
    with torch.no_grad():
        out = model(ids, labels=ids)
    ours = language_loss(out.logits, ids, torch.ones_like(ids)) / 21
    assert float(ours) == pytest.approx(float(out.loss), rel=1e-6)


def make_data(sizes=(9, 5, 2, 7), seed=0):
    generator = np.random.default_rng(seed)
    return EncodedSplit([generator.integers(0, 24, size) for size in sizes], None, None)


def test_perplexity_is_that_of_one_sequence_at_a_time(tokenizer):
    torch.manual_seed(0)
    model, data = GPT2LMHeadModel(small_gpt.host_config()).train(), make_data()
    accelerator, collate = Accelerator(cpu=True), Collator(tokenizer, LANGUAGE)
    rows = predict(model, data, collate, accelerator, 3, LANGUAGE)
    assert model.training and rows.dtype == np.float64
    model.eval()
    for i in range(len(data)):
        ids = torch.from_numpy(data[i]["input_ids"].astype(np.int64))[None]
        with torch.no_grad():
            loss = float(model(ids, labels=ids).loss)
        assert rows[i, 1] == ids.shape[1] - 1
        assert rows[i, 0] == pytest.approx(loss * rows[i, 1], rel=1e-5)
    scores = evaluate_task(model, data, collate, LANGUAGE, accelerator, batch_size=1)
    assert scores["loss"] == pytest.approx(rows[:, 0].sum() / rows[:, 1].sum(), rel=1e-6)
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    assert scores["bits_per_token"] == pytest.approx(scores["loss"] / math.log(2))


def test_a_large_vocabulary_is_evaluated_in_small_batches():
    model = GPT2LMHeadModel(small_gpt.host_config())
    assert language_batch_size(model, make_data()) == 64
    model.config.vocab_size = 2**20
    assert language_batch_size(model, make_data((64,))) == 1
    assert language_batch_size(model, make_data((8,))) == 8


def test_metrics_of_language_modelling():
    rows = np.array([[2.0, 4.0], [6.0, 4.0]])
    found = metrics.compute(None, rows, LANGUAGE)
    assert found == pytest.approx({"loss": 1.0, "perplexity": math.e, "bits_per_token": 1 / math.log(2)})
    assert metrics.main_metric(LANGUAGE, None) == "perplexity" and metrics.gap_metric("perplexity") == "loss"
    assert metrics.gap_metric("pearson") == "pearson"
    assert all(name in metrics.LOWER_IS_BETTER for name in metrics.metrics_of(LANGUAGE))
    with pytest.raises(AttnExtError, match=r"no metric 'perplexty'.*'perplexity'"):
        metrics.main_metric(LANGUAGE, "perplexty")
    assert math.isfinite(metrics.compute(None, np.array([[9e5, 1.0]]), LANGUAGE)["perplexity"])


def test_standard_errors_are_over_sequences():
    generator = np.random.default_rng(0)
    rows = np.stack([generator.normal(300, 30, 400), np.full(400, 100.0)], 1)
    errors = metrics.standard_errors(None, rows, LANGUAGE, resamples=400)
    wanted = rows[:, 0].std() / 100 / 400**0.5
    assert errors["loss"] == pytest.approx(wanted, rel=0.15)
    assert errors["perplexity"] == pytest.approx(wanted * math.exp(3), rel=0.2)
    assert metrics.difference_error(None, rows, rows + np.array([5, 0]), LANGUAGE, "loss") == pytest.approx(
        0, abs=1e-12
    )


# -- the stage -----------------------------------------------------------------------------------------------------


def make_stage(tokenizer, model, teacher=None, **changes):
    config = Stage2Config(lr=1e-3, **changes)
    collate = Collator(tokenizer, LANGUAGE)
    data = make_data()
    arguments = ("stage2", model, config, LANGUAGE, "perplexity", data, collate, Accelerator(cpu=True))
    return TaskStage(*arguments, teacher=teacher), collate([data[i] for i in range(len(data))])


def test_gradients_follow_text_and_teacher(tokenizer):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(small_gpt.host_config())
    teacher = GPT2LMHeadModel(small_gpt.host_config(resid_pdrop=0.5)).train()
    twin = copy.deepcopy(model)
    stage, batch = make_stage(tokenizer, model, teacher, distillation=0.3, temperature=2.0)
    assert stage.units(batch) == 8 + 4 + 1 + 6
    before = copy.deepcopy(teacher.state_dict())
    sums = stage.backward(batch, 1 / stage.units(batch), 0)
    hard = soft = 0.0
    for row in range(4):
        size = int(batch["attention_mask"][row].sum())
        ids = batch["input_ids"][row : row + 1, :size]
        logits = twin(ids).logits[0, :-1]
        with torch.no_grad():
            wanted = teacher.eval()(ids).logits[0, :-1]
        hard = hard - logits.log_softmax(-1).gather(1, ids[0, 1:, None]).sum()
        soft = soft + distillation_loss(logits, wanted, "classification", 2.0)
    loss = 0.7 * hard + 0.3 * soft
    assert float(sums["loss"]) == pytest.approx(loss.item(), rel=1e-5)
    assert float(sums["task_loss"]) == pytest.approx(hard.item(), rel=1e-5)
    (loss / 19).backward()
    for (name, one), two in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-6, msg=name)
    assert all(value.equal(before[name]) for name, value in teacher.state_dict().items())
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in teacher.parameters())
    stage.release()
    assert stage.teacher is None


def test_no_teacher_where_one_is_wanted(tokenizer):
    with pytest.raises(AttnExtError, match=r"stage2.distillation' is 0.5, but there are no teacher's logits"):
        make_stage(tokenizer, GPT2LMHeadModel(small_gpt.host_config()), distillation=0.5)


def test_the_best_perplexity_is_the_lowest(tokenizer):
    stage, _ = make_stage(tokenizer, GPT2LMHeadModel(small_gpt.host_config()))
    assert stage.score({"perplexity": 3.0}) > stage.score({"perplexity": 4.0})
    assert set(stage.evaluate()) == {"perplexity", "loss", "bits_per_token"}
