"""Token ids from disk are those of the text, and are made again only when what they were made from has changed."""

import numpy as np
import pytest
import tensorflow as tf
from small_corpus import VOCABULARY, WORDS, write_corpus

from kbert.text.pretraining_data import InstanceRule, corpus_dataset
from kbert.text.token_cache import CachedTokens
from kbert.text.tokens import TextTokens
from kbert.text.wordpiece import WordPiece


def test_batches_from_the_cache_equal_those_from_the_text(tmp_path):
    (tmp_path / "corpus").mkdir()
    corpus = write_corpus(tmp_path / "corpus", [300, 200_000, 5_000, 150, 700])
    tokenizer, told = WordPiece(VOCABULARY), []
    cached = [CachedTokens(corpus, tokenizer, tmp_path / "cache", lambda *done: told.append(done)) for _ in range(2)]
    assert len(told) == corpus.counts["blocks"], "made once"
    rule = InstanceRule(128, 20)
    ways = (corpus_dataset(corpus, tokenizer, rule, 64, tokens=tokens).take(30) for tokens in (None, cached[1]))
    for text, cache in zip(*(way.as_numpy_iterator() for way in ways), strict=True):
        for name in text:
            np.testing.assert_array_equal(text[name], cache[name], name)
    CachedTokens(corpus, WordPiece(VOCABULARY, lower_case=False), tmp_path / "cache", lambda *done: told.append(done))
    assert len(told) == 2 * corpus.counts["blocks"], "another tokenizer, other tokens"


def test_the_cache_reads_as_far_from_a_place_as_the_text(tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "words.txt").write_text("\n".join(WORDS))  # sentences of one token
    corpus = write_corpus(tmp_path / "corpus", [300, 5_000, 150])
    tokenizer = WordPiece(VOCABULARY)
    wanted = np.int64([-3, 0, 1, 2, 10, 30, 10_000] * 4)
    documents, depths = np.repeat(np.arange(4), 7), np.tile([0.0, 0.3, 0.99], 10)[:28]
    found = []
    for tokens in (TextTokens(corpus, tokenizer), CachedTokens(corpus, tokenizer, tmp_path / "cache")):
        ids, spans = tokens.from_places(*(tf.constant(values) for values in (documents, depths, wanted)))
        places = zip(spans.starts.numpy().tolist(), spans.lengths.numpy().tolist(), strict=True)
        found.append([ids.numpy()[start : start + length].tolist() for start, length in places])
    assert found[0] == found[1]
    assert all(found[0]) and len({len(ids) for ids in found[0]}) > 5


@pytest.mark.parametrize("name", ["tokens", "offsets.int64"])
def test_a_cache_that_is_not_whole_is_made_again(tmp_path, name):
    (tmp_path / "corpus").mkdir()
    corpus, made = write_corpus(tmp_path / "corpus", [300, 5_000]), []
    CachedTokens(corpus, WordPiece(VOCABULARY), tmp_path / "cache")
    (file,) = (tmp_path / "cache").glob(f"*/{name}")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    CachedTokens(corpus, WordPiece(VOCABULARY), tmp_path / "cache", lambda *done: made.append(done))
    assert made and file.read_bytes() == whole
