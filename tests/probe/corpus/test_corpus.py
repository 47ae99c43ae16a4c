"""Texts from files: every format, cutting, drawing, and mistakes that name the file and line."""

import json

import planted
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe.corpus.corpus import read_corpus
from hf_attn_ext.probe.corpus.cutting import by_tokens, by_words

TEXTS = ["One two. Three?", 'A "quoted", text.', "é ü"]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS) + "\n  \n", encoding="utf-8")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": t, "year": 1}) for t in TEXTS), encoding="utf-8")
    quoted = ['"' + text.replace('"', '""') + '"' for text in TEXTS]
    (tmp_path / "a.csv").write_text("label,text\n" + "".join(f"1,{q}\n" for q in quoted), encoding="utf-8-sig")
    (tmp_path / "a.tsv").write_text("label\ttext\n" + "".join(f"1\t{q}\n" for q in quoted), encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), tmp_path / "a.parquet")
    return tmp_path


@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv", "tsv", "parquet"])
def test_every_format_gives_the_texts(files, kind):
    corpus = read_corpus([str(files / f"a.{kind}")])
    assert corpus.texts == TEXTS and corpus.drawn_from == 3
    assert corpus.blank == (3 if kind == "txt" else 0)
    assert all(f"a.{kind}, " in source for source in corpus.sources)


def test_several_files_follow_one_another_and_a_draw_keeps_their_order(files):
    names = [str(files / "a.txt"), str(files / "a.csv")]
    assert read_corpus(names).texts == TEXTS + TEXTS
    few = [read_corpus(names, limit=4, seed=seed) for seed in (0, 0, 1)]
    assert few[0].texts == few[1].texts and few[0].digest() == few[1].digest() and len(few[0]) == 4
    sources = read_corpus(names).sources
    assert [sources.index(source) for source in few[0].sources] == sorted(map(sources.index, few[0].sources))
    assert few[0].sources != few[2].sources and few[0].drawn_from == 6


def test_documents_and_what_is_left_of_them_are_counted(tmp_path):
    (tmp_path / "a.txt").write_text("word1 word2 word3 word4 word5\nword1\nword1 word2\n")
    corpus = read_corpus([str(tmp_path / "a.txt")], cut=by_tokens(4, planted.word_tokenizer()))
    assert corpus.texts == ["word1 word2", "word3 word4", "word1 word2"]
    assert (corpus.document_count, corpus.blank, corpus.left) == (2, 1, 2)
    one, again, other = corpus.documents
    assert one == again != other
    drawn = read_corpus([str(tmp_path / "a.txt")], cut=by_tokens(4, planted.word_tokenizer()), limit=2)
    assert drawn.documents == [corpus.documents[corpus.sources.index(source)] for source in drawn.sources]
    assert read_corpus([str(tmp_path / "a.txt")], cut=by_words(2)).left == 0


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="ab. \n\t", max_size=60), st.integers(1, 5))
def test_cutting_loses_no_word_and_keeps_the_space_between(text, words):
    parts = by_words(words)(text)
    assert [word for part in parts for word in part.split()] == text.split()
    assert all(part in text and 1 <= len(part.split()) <= words for part in parts)
    assert all(len(part.split()) == words for part in parts[:-1])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.txt", None, "does not exist"),
        ("empty.txt", "", "holds no text"),
        ("blank.txt", " \n\n", "holds no text"),
        ("a.doc", "x", ".jsonl"),
        ("bad.jsonl", '{"text": "a"}\n{"text": ', "line 2 is no JSON"),
        ("other.jsonl", '{"texts": "a"}', "line 1 has no column 'text', only texts. Did you mean 'texts'?"),
        ("number.jsonl", '{"text": 3}', "line 1: 'text' is 3, not text"),
        ("other.csv", "label,body\n1,a\n", "has no column 'text', only label, body"),
        ("broken.parquet", "x", "cannot read"),
    ],
)
def test_mistakes_name_the_file_and_line(tmp_path, name, content, said):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(AttnExtError) as caught:
        read_corpus([str(path)])
    assert said in str(caught.value) and name in str(caught.value) and "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AttnExtError, match="not UTF-8"):
        read_corpus([str(tmp_path / "a.txt")])
    with pytest.raises(AttnExtError, match="is a folder"):
        read_corpus([str(tmp_path)])
