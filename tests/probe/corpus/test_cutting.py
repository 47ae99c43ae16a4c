"""Documents cut to tokens: every text has exactly as many, words are whole at its beginning, and nothing is lost."""

import itertools

import pytest
from planted import WORDS, word_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe.corpus.corpus import read_corpus
from hf_attn_ext.probe.corpus.cutting import by_tokens

CHINESE = "这是一个很长的中文文件没有空格所以整个文件是一个词" * 8
TEXT = " ".join(f"{WORDS[i % 30]}," if i % 7 == 3 else WORDS[i * i % 30] for i in range(100))


@pytest.fixture(scope="module")
def pieces():
    """A byte-level tokenizer whose words are several tokens, fewer or more at a text's beginning."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    core.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="a")


def lengths(texts, tokenizer, tokens):
    return {len(ids) for ids in tokenizer(texts, truncation=True, max_length=tokens)["input_ids"]}


@pytest.mark.parametrize("tokens", [3, 4, 9, 16, 50])
def test_every_text_is_exactly_so_long_and_nothing_is_lost(pieces, tokens):
    numbered = " ".join(f"{number}-{word}" for number, word in enumerate(TEXT.split()))
    for tokenizer in (word_tokenizer(), pieces):
        for document in (TEXT, numbered, CHINESE, f"{numbered} {CHINESE} {numbered}"):
            texts, rest = by_tokens(tokens, tokenizer).with_rest(document)
            room = tokens - tokenizer.num_special_tokens_to_add()
            assert not texts or lengths(texts, tokenizer, tokens) == {tokens}
            left = document[read_to(document, texts, tokenizer, tokens) :]
            assert rest == len(tokenizer(left, add_special_tokens=False)["input_ids"]) < room


def read_to(document, texts, tokenizer, tokens):
    """Where the next text must begin: each begins before the first character that those before it do not read."""
    start, unread = -1, 0
    for text in texts:
        start = document.index(text, start + 1)
        assert start <= unread, (text, document[unread : unread + 20])
        own = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        room = tokens - tokenizer.num_special_tokens_to_add()
        unread = start + (own[room][0] if len(own) > room else len(text))  # a character may be several tokens
        unread += len(document[unread:]) - len(document[unread:].lstrip())
    return unread


def test_a_text_that_is_longer_by_itself_than_in_its_document_is_read_to_its_end():
    """Without the space before it a first word is more tokens: truncation then cuts sooner than the document says."""
    document = " ".join(["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel"] * 20)
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator([" " + document], trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="a")
    for tokens in (6, 8, 12, 20):
        texts = by_tokens(tokens, tokenizer)(document)
        for text, following in itertools.pairwise(texts):
            own = tokenizer(text, truncation=True, max_length=tokens, return_offsets_mapping=True)["offset_mapping"]
            cut = own[-1][1] < len(text)
            assert not cut or following.split()[0] == text.split()[-1]


def test_a_word_longer_than_a_text_is_split(pieces):
    texts, rest = by_tokens(12, pieces).with_rest(CHINESE)
    assert len(texts) > 10 and max(map(len, texts)) <= 12 and rest < 12


def test_a_word_that_is_cut_begins_the_next_text():
    tokenizer = word_tokenizer()
    assert by_tokens(4, tokenizer)("word1 word2, word3 word4") == ["word1 word2,", "word2,", "word3 word4"]
    assert by_tokens(5, tokenizer)("word1 word2, word3, word4") == ["word1 word2,", "word3, word4"]
    assert by_tokens(4, tokenizer)("word1, word2, word3") == ["word1,", "word2,"]
    assert by_tokens(4, tokenizer)("word1,,,, word2 word3") == ["word1,", ",,", ", word2"]  # longer than a text
    assert by_tokens(4, tokenizer).with_rest("word1,,,, word2 word3")[1] == 1
    assert by_tokens(4, tokenizer)("word1") == by_tokens(4, tokenizer)("  ") == []


def test_mistakes_are_named(tmp_path):
    with pytest.raises(AttnExtError, match="tokens must be at least 3 with this tokenizer's special tokens, got 2"):
        by_tokens(2, word_tokenizer())
    with pytest.raises(AttnExtError, match="must return character offsets, got object; use a fast tokenizer"):
        by_tokens(9, object())
    (tmp_path / "short.txt").write_text("word1 word2\n")
    with pytest.raises(AttnExtError, match=r"short.txt' holds texts that are all too short"):
        read_corpus([str(tmp_path / "short.txt")], cut=by_tokens(9, word_tokenizer()))
