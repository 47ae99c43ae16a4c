"""A file replaced by one with the same modification time gave the old file's texts, from a cache."""

import os

from hf_attn_ext.training import DataConfig
from hf_attn_ext.training.data.loading import load_task_data


def test_the_texts_are_those_of_the_new_file(tmp_path):
    path = tmp_path / "texts.csv"
    for word in ("old", "new"):
        path.write_text(f"text,label\n{word} one,a\n{word} two,b\n")
        os.utime(path, (1e9, 1e9))
        data = load_task_data(DataConfig(train=str(path), validation=str(path)))
        assert data.train.texts == [f"{word} one", f"{word} two"]
