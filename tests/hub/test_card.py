"""The model card: what it says, that the hub would take its head, and that it gives no private path away."""

import itertools
import json

import pytest
import yaml
from huggingface_hub import ModelCard

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hub.card import render_card, write_card
from hf_attn_ext.hub.facts import is_hub_name, names_of
from tests.hub.folders import converted_folder

CONFIG = {
    "model_type": "attn_ext_roberta",
    "architectures": ["AttnExtRobertaForSequenceClassification"],
    "num_hidden_layers": 6,
    "attn_ext": {"kernel": "flexformer_p", "num_features": 64, "layers": [0, 2], "seed": 7, "kernel_options": {}},
}
RESULTS = {
    "base_model": "roberta-base",
    "metric": "accuracy",
    "scores": {
        "teacher": {"accuracy": 0.8412, "f1": 0.84},
        "control": {"accuracy": 0.71, "f1": 0.7},
        "converted": {"accuracy": 0.52, "f1": 0.5},
        "stage1": {"accuracy": 0.82, "f1": 0.81},
        "stage2": {"accuracy": 0.8391, "f1": 0.838},
    },
    "transfer": {
        "converted": {"output_error": [1.25, 0.75], "kl": [2.0, 1.0]},
        "stage1": {"output_error": [0.25, 0.35], "kl": [0.1, 0.3]},
    },
    "gap_closed": 0.984,
    "data": {"name": "glue/sst2", "split": "validation", "train_examples": 67349},
    "seed": 7,
    "steps": {"stage1": 1000, "stage2": 600},
    "versions": {"torch": "2.13.0", "transformers": "5.24.0"},
}


def front_matter(card: str) -> dict:
    return yaml.safe_load(card.split("---")[1])


def test_the_head_is_what_the_hub_reads():
    head = front_matter(render_card(CONFIG, RESULTS))
    assert head["base_model"] == "roberta-base"
    assert head["library_name"] == "transformers"
    assert head["pipeline_tag"] == "text-classification"
    assert "hf_attn_ext" in head["tags"]
    assert head["metrics"] == ["accuracy", "f1"]
    (entry,) = head["model-index"]
    (result,) = entry["results"]
    assert result["dataset"] == {"name": "glue/sst2", "type": "glue/sst2", "split": "validation"}
    assert {m["type"]: m["value"] for m in result["metrics"]} == {"accuracy": 0.8391, "f1": 0.838}


def test_the_hubs_own_reader_takes_the_card():
    card = ModelCard(render_card(CONFIG, RESULTS, license="mit", language="en"))
    assert card.data.license == "mit" and card.data.language == "en"
    assert {(result.metric_type, result.metric_value) for result in card.data.eval_results} == {
        ("accuracy", 0.8391),
        ("f1", 0.838),
    }


def test_the_text_says_kernel_layers_numbers_provenance_and_the_three_ways_to_load():
    card = render_card(CONFIG, RESULTS, repo_id="me/it")
    for part in (
        "kernel `flexformer_p`, 64 features",
        "layers 0, 2 of 6",
        "seed 7",
        "| teacher (softmax) | 0.8412 | 0.8400 |",
        "| after stage 2 (fine-tuning) | 0.8391 | 0.8380 |",
        "| after stage 1 (attention transfer) | 0.3000 | 0.2000 |",
        "98.4% of the gap",
        "stage1 1000, stage2 600",
        "torch 2.13.0",
        "import hf_attn_ext",
        "trust_remote_code=True",
        'pipeline("text-classification", model="me/it")',
        'AutoModelForSequenceClassification.from_pretrained("me/it")',
        "`RobertaForSequenceClassification.from_pretrained(...)`, opens this folder as",
        "ordinary softmax attention",
        "## Limits",
    ):
        assert part in card, part
    lines = card.splitlines()
    for above, line in itertools.pairwise(lines):
        if line.startswith("|---"):
            assert above.count("|") == line.count("|"), (above, line)


def test_standard_errors_and_a_gap_that_is_no_gap_are_told():
    results = {**RESULTS, "standard_errors": {"stage2": {"accuracy": 0.012}}, "gap_is_clear": False}
    results["gap_closed_standard_error"] = 0.05
    card = render_card(CONFIG, results)
    assert "| after stage 2 (fine-tuning) | 0.8391 ± 0.0120 | 0.8380 |" in card
    assert "98.4% ± 5.0% of the gap" in card and "within two standard errors" in card


def test_without_measurements_the_card_says_so_and_has_no_numbers():
    card = render_card(CONFIG, {})
    assert "Nothing was measured" in card
    assert "model-index" not in card and "base_model" not in front_matter(card)


@pytest.mark.parametrize("path", ["/home/somebody/models/minilm", "C:\\Users\\somebody\\minilm", "./runs/x/minilm"])
def test_a_local_base_model_is_cut_to_its_name_and_not_offered_to_the_hub(path):
    card = render_card(CONFIG, {**RESULTS, "base_model": path, "data": {"name": "/home/somebody/reviews.csv"}})
    assert "somebody" not in card and "runs/x" not in card
    assert "`minilm`" in card and "reviews.csv" in card
    assert "base_model" not in front_matter(card)


def test_a_base_model_given_by_name_wins(tmp_path):
    folder = converted_folder(tmp_path / "model")
    card = write_card(folder, {**RESULTS, "base_model": "/tmp/x"}, base_model="org/base").read_text()
    assert front_matter(card)["base_model"] == "org/base"


def test_writing_replaces_the_card_whole(tmp_path):
    folder = converted_folder(tmp_path / "model")
    path = write_card(folder, RESULTS)
    assert path == folder / "README.md" and "0.8391" in path.read_text()
    assert not [p for p in folder.iterdir() if p.name.endswith(".tmp")]


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ({"scores": {"stage2": {"accuracy": "high"}}}, "scores.stage2.accuracy"),
        ({"scores": [1, 2]}, "scores"),
        ({"transfer": {"stage1": 0.3}}, "transfer.stage1"),
    ],
)
def test_results_of_another_form_are_named(results, said):
    with pytest.raises(AttnExtError, match=said):
        render_card(CONFIG, results)


def test_a_stock_configuration_is_refused():
    with pytest.raises(AttnExtError, match="'roberta'"):
        render_card({"model_type": "roberta"}, {})


@pytest.mark.parametrize(
    ("architecture", "auto", "stock", "tag"),
    [
        ("AttnExtRobertaForMaskedLM", "AutoModelForMaskedLM", "RobertaForMaskedLM", "fill-mask"),
        ("AttnExtBertLMHeadModel", "AutoModelForCausalLM", "BertLMHeadModel", "text-generation"),
        ("AttnExtBertModel", "AutoModel", "BertModel", None),
        ("AttnExtBertForPreTraining", "AutoModelForPreTraining", "BertForPreTraining", None),
        ("AttnExtBertForMultipleChoice", "AutoModelForMultipleChoice", "BertForMultipleChoice", None),
    ],
)
def test_the_classes_named(architecture, auto, stock, tag):
    names = names_of({"architectures": [architecture]})
    assert (names.auto_class, names.stock_class, names.pipeline_tag) == (auto, stock, tag)


def test_hub_names():
    assert is_hub_name("bert-base-uncased") and is_hub_name("org/name_1.5")
    assert not any(map(is_hub_name, ["", ".", "..", "/x", "a/b/c", "./x", "a b", "C:\\x", "~/x"]))


def test_results_survive_json():
    assert render_card(CONFIG, json.loads(json.dumps(RESULTS))) == render_card(CONFIG, RESULTS)


def test_a_decoders_card_says_how_it_generates():
    language = {**CONFIG, "model_type": "attn_ext_gpt2", "architectures": ["AttnExtGPT2LMHeadModel"]}
    card = render_card(language, RESULTS)
    assert "AutoModelForCausalLM" in card and "constant size" in card and "bidirectional" not in card
    assert "bidirectional" in render_card(CONFIG, RESULTS)


def test_large_numbers_are_written_out_and_empty_facts_left_out():
    results = {"scores": {"control": {"perplexity": 13712.4}}, "data": {"name": "sotu", "labels": [], "split": ""}}
    card = render_card(CONFIG, results)
    assert "13,712.4" in card
    assert "labels" not in card and "split" not in card
