"""A byte order mark became part of the first text, and an empty file of JSON lines raised a foreign error."""

import json

import pytest

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe.corpus.corpus import read_corpus
from hf_attn_ext.training import DataConfig
from hf_attn_ext.training.data.loading import load_task_data

ROWS = [{"text": "hello", "label": "a"}, {"text": "world", "label": "b"}]
CONTENT = {
    "txt": "hello\nworld\n",
    "csv": "text,label\nhello,a\nworld,b\n",
    "tsv": "text\tlabel\nhello\ta\nworld\tb\n",
    "json": json.dumps(ROWS, indent=1),
    "jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
}


@pytest.mark.parametrize("suffix", CONTENT)
def test_no_byte_order_mark_in_a_text(tmp_path, suffix):
    path = tmp_path / f"marked.{suffix}"
    path.write_text(CONTENT[suffix], encoding="utf-8-sig")
    data = load_task_data(DataConfig(train=str(path), validation=str(path), text_unit="line"), labelled=False)
    assert data.train.texts == read_corpus([str(path)]).texts == ["hello", "world"]


@pytest.mark.parametrize("suffix", CONTENT)
@pytest.mark.parametrize("unit", ["line", "file"])
def test_an_empty_file_is_named_in_one_line(tmp_path, suffix, unit):
    (tmp_path / "good.txt").write_text("hello\n")
    path = tmp_path / f"empty.{suffix}"
    path.write_text("", encoding="utf-8-sig")
    config = DataConfig(train=str(path), validation=str(path), task="language_modeling", text_unit=unit)
    for read in (lambda: load_task_data(config), lambda: read_corpus([str(tmp_path / "good.txt"), str(path)])):
        with pytest.raises(AttnExtError, match=f"empty.{suffix}.*holds no text") as caught:
            read()
        assert "\n" not in str(caught.value)
