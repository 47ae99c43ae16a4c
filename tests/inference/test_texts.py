"""What the functions of inference are given: nothing wrong gets through, and nothing is left out unseen."""

import peft
import pytest
import torch
from transformers import BatchEncoding, GPT2LMHeadModel

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.inference import block_generate, butterfly_score
from hf_attn_ext.training import BlockTwoStreamCollator
from tests.inference.families import Tokens
from tests.integration import tiny

IDS = torch.tensor([[5, 6, 7], [8, 9, 0]])
REAL = torch.tensor([[1, 1, 1], [1, 1, 0]])


def generate(model, ids=IDS, real=REAL, **options):
    hax.set_mask(model, "block_two_stream", block_size=2)
    return block_generate(model, ids, real, **{"mask_token_id": 39, "eos_token_id": None, **options})


def score(model, ids=IDS, real=REAL):
    return butterfly_score(hax.set_mask(model, "butterfly"), ids, real)


@pytest.mark.parametrize("use", [generate, score])
@pytest.mark.parametrize(
    ("ids", "real", "words"),
    [
        ([[5, 6, 7]], None, "input_ids must be whole numbers .* got list; make it a tensor"),
        (BatchEncoding({"input_ids": IDS}), None, "got BatchEncoding; pass a tokenizer's output with two stars"),
        (None, None, "got NoneType"),
        (IDS.float(), None, r"whole numbers .* got \(2, 3\) of torch.float32"),
        (IDS.bool(), None, "of torch.bool"),
        (IDS[0], None, r"got \(3,\)"),
        (IDS[:0], None, "at least one text, got none"),
        (IDS + 35, None, "token 40 is not one of the 40 that GPT2LMHeadModel has"),
        (IDS - 9, None, "token -4 is not one of the 40"),
        (IDS, [[1, 1, 1], [1, 1, 0]], "attention_mask must be a tensor .* got list"),
        (IDS, REAL[:1], r"attention_mask is \(1, 3\), but input_ids \(2, 3\)"),
    ],
)
def test_wrong_texts_are_one_line(use, ids, real, words):
    with pytest.raises(AttnExtError, match=words) as error:
        use(tiny.tiny_model(GPT2LMHeadModel), ids, real)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("use", [block_generate, butterfly_score])
@pytest.mark.parametrize("model", ["gpt2", None, torch.nn.Linear(2, 2)])
def test_what_is_no_model(use, model):
    with pytest.raises(AttnExtError, match="needs a transformers model, got"):
        use(model, IDS)


@pytest.mark.parametrize("use", [generate, score])
@pytest.mark.parametrize("filler", [-100, 40, 39])
@torch.no_grad()
def test_what_stands_at_padding_is_nothing(use, filler):
    model = tiny.tiny_model(GPT2LMHeadModel)
    expected = use(model)
    assert torch.equal(use(model, IDS.masked_fill(REAL == 0, filler)).nan_to_num(), expected.nan_to_num())
    assert torch.equal(use(model, IDS.int(), REAL.bool()).nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mask_token_id": 999}, "mask_token_id must be the id of a token, from 0 to 39, got 999"),
        ({"mask_token_id": -1}, "mask_token_id .* got -1"),
        ({"mask_token_id": "<mask>"}, "mask_token_id .* got '<mask>'"),
        ({"pad_token_id": 40}, "pad_token_id .* got 40"),
        ({"eos_token_id": "</s>"}, "eos_token_id .* got '</s>'"),
        ({"eos_token_id": [2, "x"]}, "eos_token_id .* got"),
        ({"stopping_criteria": [lambda text, scores: True]}, r"callable.*StoppingCriteriaList\(\[...\]\)"),
    ],
)
def test_wrong_options_of_generation_are_one_line(options, words):
    with pytest.raises(AttnExtError, match=words) as error:
        generate(tiny.tiny_model(GPT2LMHeadModel), **options)
    assert "\n" not in str(error.value)


def test_ends_in_every_form():
    model = tiny.tiny_model(GPT2LMHeadModel)
    end = int(generate(model, IDS[:1], None)[0, 4])
    expected = generate(model, IDS[:1], None, eos_token_id=end)
    for form in ([end, 39], torch.tensor(end), torch.tensor([end]), (end,)):
        assert torch.equal(generate(model, IDS[:1], None, eos_token_id=form), expected)
    assert torch.equal(generate(model, eos_token_id=[]), generate(model))


PROMPTS = [
    peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
]


@pytest.mark.parametrize("config", PROMPTS, ids=["prompt", "prefix"])
@torch.no_grad()
def test_virtual_tokens_are_refused_and_other_adapters_are_not(config):
    for use, name, options in ((generate, "block_generate", {}), (score, "butterfly_score", {})):
        model = tiny.tiny_model(GPT2LMHeadModel)
        expected = use(model, **options)
        adapted = peft.get_peft_model(model, config)
        with pytest.raises(AttnExtError, match=f"{name} does not know the virtual tokens of PEFT's Pr.*LoRA"):
            use(adapted)
        with adapted.disable_adapter():
            assert torch.equal(use(adapted).nan_to_num(), expected.nan_to_num())
        lora = peft.LoraConfig(target_modules=["c_attn"], r=2, fan_in_fan_out=True)
        adapted = peft.get_peft_model(tiny.tiny_model(GPT2LMHeadModel), lora)
        assert torch.equal(use(adapted).nan_to_num(), expected.nan_to_num())
    model = hax.set_mask(tiny.tiny_model(GPT2LMHeadModel), "block_two_stream", block_size=2)
    with pytest.raises(AttnExtError, match="BlockTwoStreamCollator does not know the virtual tokens"):
        BlockTwoStreamCollator(Tokens, peft.get_peft_model(model, config))
