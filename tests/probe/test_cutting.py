"""Documents cut to tokens: every text has exactly as many, words are whole at its beginning, and nothing is lost."""

import pytest
from planted import WORDS, word_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe.corpus import read_corpus
from hf_attn_ext.probe.cutting import by_tokens

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
def test_every_text_is_exactly_so_long_and_no_word_is_lost(pieces, tokens):
    for tokenizer in (word_tokenizer(), pieces):
        texts = by_tokens(tokens, tokenizer)(TEXT)
        assert lengths(texts, tokenizer, tokens) == {tokens}
        words, place = TEXT.split(), 0
        for text in texts:
            its = text.split()
            at = max(0, place - 1)  # a word that truncation cuts comes again
            place = words.index(its[0], at) if words[place : place + len(its)] != its else place
            assert words[place : place + len(its)] == its
            place += len(its)
        left = " ".join(words[place:])
        assert len(tokenizer(left, add_special_tokens=False)["input_ids"]) < tokens


def test_a_word_that_is_cut_begins_the_next_text():
    tokenizer = word_tokenizer()
    assert by_tokens(4, tokenizer)("word1 word2, word3 word4") == ["word1 word2,", "word2,", "word3 word4"]
    assert by_tokens(5, tokenizer)("word1 word2, word3, word4") == ["word1 word2,", "word3, word4"]
    assert by_tokens(4, tokenizer)("word1, word2, word3") == ["word1,", "word2,"]
    assert by_tokens(4, tokenizer)("word1,,,, word2 word3") == ["word1,,,,", "word2 word3"]  # longer than a text
    assert by_tokens(4, tokenizer)("word1") == by_tokens(4, tokenizer)("  ") == []


def test_mistakes_are_named(tmp_path):
    with pytest.raises(AttnExtError, match="tokens is 2, of which the tokenizer's special ones take all"):
        by_tokens(2, word_tokenizer())
    with pytest.raises(AttnExtError, match="offsets, which object does not give"):
        by_tokens(9, object())
    (tmp_path / "short.txt").write_text("word1 word2\n")
    with pytest.raises(AttnExtError, match="short.txt' holds texts that are all too short"):
        read_corpus([str(tmp_path / "short.txt")], cut=by_tokens(9, word_tokenizer()))
