"""Trainer, pipeline, accelerate, PEFT, checkpointing, compile and mixed precision, all unchanged."""

import json

import pytest
import torch
from accelerate import Accelerator
from peft import AutoPeftModelForSequenceClassification, LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    BertTokenizer,
    DistilBertForSequenceClassification,
    ElectraForSequenceClassification,
    RobertaForSequenceClassification,
    Trainer,
    TrainingArguments,
    XLMRobertaForSequenceClassification,
    pipeline,
)

from hf_attn_ext import integration as hax
from hf_attn_ext.errors import AttnExtError
from tests.integration import tiny

CLASSIFIERS = [
    BertForSequenceClassification,
    RobertaForSequenceClassification,
    XLMRobertaForSequenceClassification,
    DistilBertForSequenceClassification,
    ElectraForSequenceClassification,
]


@pytest.fixture
def classifier():
    return hax.convert(tiny.tiny_model(RobertaForSequenceClassification), tiny.KERNEL)


def rows(count=8):
    batch = tiny.inputs(batch=count, padded=False)
    return [
        {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(i % 2)}
        for i, ids in enumerate(batch["input_ids"])
    ]


def map_parameters(model):
    return {name: p for name, p in model.named_parameters() if ".feature_map." in name}


@pytest.mark.parametrize("cls", CLASSIFIERS)
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_with_a_frozen_base(cls, reentrant):
    model = hax.convert(tiny.tiny_model(cls, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), tiny.KERNEL)
    if cls is DistilBertForSequenceClassification:
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    hax.freeze_all_but_feature_maps(model)
    batch = {**tiny.inputs(), "labels": torch.tensor([0, 1, 0])}
    model.train()
    model(**batch).loss.backward()
    expected = {name: p.grad.clone() for name, p in map_parameters(model).items()}
    model.zero_grad()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    model(**batch).loss.backward()
    assert any(gradient.abs().max() > 0 for gradient in expected.values())
    for name, parameter in map_parameters(model).items():
        assert torch.allclose(parameter.grad, expected[name], atol=1e-6)


def test_trainer_trains_saves_resumes_and_keeps_the_best(classifier, tmp_path):
    before = {name: p.detach().clone() for name, p in map_parameters(classifier).items()}
    arguments = TrainingArguments(
        str(tmp_path),
        max_steps=4,
        per_device_train_batch_size=2,
        save_steps=2,
        eval_steps=2,
        eval_strategy="steps",
        load_best_model_at_end=True,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        learning_rate=1e-2,
        seed=0,
    )
    trainer = Trainer(classifier, arguments, train_dataset=rows(), eval_dataset=rows(4))
    trainer.train()
    assert any(not torch.equal(p, before[name]) for name, p in map_parameters(classifier).items())
    reloaded = AutoModelForSequenceClassification.from_pretrained(trainer.state.best_model_checkpoint)
    classifier.eval()
    assert torch.equal(reloaded(**tiny.inputs()).logits, classifier(**tiny.inputs()).logits)

    resumed = Trainer(reloaded, arguments, train_dataset=rows(), eval_dataset=rows(4))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.state.global_step == 4
    resumed.save_model(str(tmp_path / "final"))
    final = AutoModelForSequenceClassification.from_pretrained(tmp_path / "final")
    assert torch.equal(final(**tiny.inputs()).logits, reloaded.eval()(**tiny.inputs()).logits)


def test_pipeline_and_tokenizer(tmp_path, caplog):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizer(str(tmp_path / "vocab.txt"))
    model = hax.convert(tiny.tiny_model(BertForSequenceClassification), tiny.KERNEL)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    loaded = pipeline("text-classification", model=str(tmp_path / "model"), device="cpu")
    texts = ["a b c d e", "f", "g h"]
    together, alone = loaded(texts, batch_size=3), [loaded(text)[0] for text in texts]
    for x, y in zip(together, alone, strict=True):
        assert x["label"] == y["label"] and x["score"] == pytest.approx(y["score"], abs=1e-5)
    assert "not supported" not in caplog.text
    # A folder whose tokenizer does not say its class still gets that of the base type.
    settings = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    settings.pop("tokenizer_class")
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    assert type(AutoTokenizer.from_pretrained(tmp_path / "model")) is type(tokenizer)


def test_accelerate(classifier, tmp_path):
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(classifier.parameters(), 0.1)
    model, optimizer = accelerator.prepare(classifier, optimizer)
    batch = {**tiny.inputs(), "labels": torch.tensor([0, 1, 0])}
    accelerator.backward(model(**batch).loss)
    optimizer.step()
    accelerator.save_state(str(tmp_path / "state"))
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    accelerator.load_state(str(tmp_path / "state"))
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    unwrapped = accelerator.unwrap_model(model)
    unwrapped.save_pretrained(
        tmp_path / "model",
        is_main_process=accelerator.is_main_process,
        save_function=accelerator.save,
        state_dict=accelerator.get_state_dict(model),
    )
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    assert torch.equal(again(**tiny.inputs()).logits, unwrapped.eval()(**tiny.inputs()).logits)


@pytest.mark.parametrize("kernel", ["flexformer_p", "performer"])
def test_lora_round_trip(tmp_path, kernel):
    tiny.tiny_model(RobertaForSequenceClassification).save_pretrained(tmp_path / "stock")
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "stock")
    hax.convert(base, kernel=kernel, num_features=4)
    base.save_pretrained(tmp_path / "base")
    model = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", r=2, modules_to_save=hax.peft_modules_to_save(base)))
    assert hax.is_converted(model) and len(hax.converted_layers(model)) == 2
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert any("lora_A" in name for name in trainable)
    assert kernel == "performer" or any("feature_map.modules_to_save" in name for name in trainable)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.05)
    for _ in range(2):
        optimizer.zero_grad()
        model(**tiny.inputs(), labels=torch.tensor([0, 1, 0])).loss.backward()
        optimizer.step()
    expected = model.eval()(**tiny.inputs()).logits
    with hax.softmax_stream(model, lambda call: None):
        assert not torch.equal(model(**tiny.inputs()).logits, expected)
    with model.disable_adapter():
        fresh = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
        assert torch.equal(model(**tiny.inputs()).logits, fresh(**tiny.inputs()).logits)
    model.save_pretrained(tmp_path / "adapter")
    reloaded = PeftModel.from_pretrained(fresh, tmp_path / "adapter")
    assert torch.equal(reloaded(**tiny.inputs()).logits, expected)
    automatic = AutoPeftModelForSequenceClassification.from_pretrained(tmp_path / "adapter")
    assert hax.is_converted(automatic) and torch.equal(automatic(**tiny.inputs()).logits, expected)
    merged = reloaded.merge_and_unload()
    assert hax.is_converted(merged)
    assert torch.allclose(merged(**tiny.inputs()).logits, expected, atol=1e-5)
    merged.save_pretrained(tmp_path / "merged")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    assert torch.equal(again(**tiny.inputs()).logits, merged(**tiny.inputs()).logits)


def test_peft_and_conversion_in_the_wrong_order_is_said():
    stock = tiny.tiny_model(RobertaForSequenceClassification)
    with pytest.raises(AttnExtError, match="convert"):
        hax.peft_modules_to_save(stock)
    with pytest.raises(AttnExtError, match="not wrapped or adapted; got PeftModel"):
        hax.convert(get_peft_model(stock, LoraConfig(task_type="SEQ_CLS", r=2)))


@pytest.mark.parametrize("kernel", ["flexformer_n", "flexformer_p", "hedgehog"])
def test_the_whole_model_is_one_graph(kernel):
    torch._dynamo.reset()
    stock = tiny.tiny_model(RobertaForSequenceClassification, num_hidden_layers=1)
    model = hax.convert(stock, kernel=kernel, num_features=4)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)
    assert hax.is_converted(compiled)
    assert torch.allclose(compiled(**tiny.inputs()).logits, model(**tiny.inputs()).logits, atol=1e-5)
    # Transformers installs its recording hooks in the first eager call; it cannot do so inside a graph.
    expected = model(**tiny.inputs(), output_attentions=True).attentions
    found = compiled(**tiny.inputs(), output_attentions=True).attentions
    assert len(found) == 1 and torch.allclose(found[0], expected[0], atol=1e-5)


def test_compiled_hybrid_has_the_same_gradients():
    torch._dynamo.reset()
    stock = tiny.tiny_model(RobertaForSequenceClassification, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = hax.convert(stock, tiny.KERNEL, layers=[1])
    compiled = torch.compile(model, backend="aot_eager")
    batch = {**tiny.inputs(), "labels": torch.tensor([0, 1, 0])}
    model(**batch).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    compiled(**batch).loss.backward()
    for name, gradient in expected.items():
        assert torch.allclose(model.get_parameter(name).grad, gradient, atol=1e-5), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kernel", ["flexformer_p", "flexformer_sq", "hedgehog", "performer"])
def test_half_precision_and_autocast_stay_near_float32(dtype, kernel):
    model = hax.convert(tiny.tiny_model(RobertaForSequenceClassification), kernel=kernel, num_features=4)
    expected = model(**tiny.inputs()).logits
    with torch.autocast("cpu", dtype):
        cast = model(**tiny.inputs(), labels=torch.tensor([0, 1, 0]))
    cast.loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in map_parameters(model).values())
    half = model.to(dtype)(**tiny.inputs()).logits
    tolerance = {torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    for found in (cast.logits, half):
        assert (found.float() - expected).abs().max() <= tolerance


def test_attention_dropout_acts_in_training_only():
    model = hax.convert(
        tiny.tiny_model(BertForSequenceClassification, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.5),
        tiny.KERNEL,
    )
    base = model.bert
    expected = base.eval()(**tiny.inputs()).last_hidden_state
    assert torch.equal(base(**tiny.inputs()).last_hidden_state, expected)
    torch.manual_seed(0)
    dropped = base.train()(**tiny.inputs()).last_hidden_state
    torch.manual_seed(0)
    assert torch.equal(base(**tiny.inputs()).last_hidden_state, dropped)
    assert not torch.equal(dropped, expected)
