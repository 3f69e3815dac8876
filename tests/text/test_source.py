"""Text and TFRecords answer the same questions; what does not fit the flags is refused."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from small_corpus import VOCABULARY, text, write_records

from kbert.command_line import explain
from kbert.text.baselines import baselines, majority_share, unigram_loss
from kbert.text.masking import Masking
from kbert.text.pretraining_data import OBJECTIVES, InstanceRule
from kbert.text.sentences import CorpusFormat
from kbert.text.source import source
from kbert.text.token_cache import CachedTokens
from kbert.text.tokens import TextTokens
from kbert.text.wordpiece import WordPiece


def open_source(folder, paths, form=None, **rule):
    rule = InstanceRule(**{"sequence_length": 16, "max_predictions": 3} | rule)
    form = form or CorpusFormat(documents="file" if str(paths[0]).endswith(".txt") else "blank-line")
    return source([str(path) for path in paths], WordPiece(VOCABULARY), rule, form, str(folder / "cache"), print)


@pytest.fixture
def texts(tmp_path):
    paths = [tmp_path / name for name in ("a.txt", "b.txt")]
    for number, path in enumerate(paths):
        path.write_text(text(number, 2_000), encoding="utf-8")
    return paths


@pytest.fixture
def records(tmp_path):
    write_records(tmp_path / "a.tfrecord")
    return tmp_path / "a.tfrecord"


def test_text_that_is_cut_short_while_it_is_read_is_told_in_one_line(tmp_path, texts):
    batches = open_source(tmp_path, texts).batches(8)
    texts[1].write_bytes(texts[1].read_bytes()[:500])
    with pytest.raises(tf.errors.InvalidArgumentError) as refused:
        list(batches.take(2_000))
    told = f"{texts[1]}: shorter than when it was indexed; it changed during the run"
    assert explain(refused.value, tmp_path) == told


def test_text_that_goes_while_it_is_read_is_told_in_one_line(tmp_path, texts):
    opened = open_source(tmp_path, texts)
    opened.corpus._open.cache_clear()
    texts[1].unlink()
    with pytest.raises(tf.errors.UnknownError) as failed:
        list(opened.batches(8).take(2_000))
    assert explain(failed.value, tmp_path) == f"[Errno 2] No such file or directory: '{texts[1]}'"


def test_an_error_of_another_in_a_dataset_keeps_its_traceback(tmp_path):
    def fail():
        raise ValueError("not kbert's")

    dataset = tf.data.Dataset.range(1).map(lambda _: tf.numpy_function(fail, [], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not kbert's") as failed:
        list(dataset)
    assert explain(failed.value, tmp_path) is None


@pytest.mark.parametrize("kind", ["texts", "records"])
def test_a_sample_is_the_same_every_time_and_its_length_known(tmp_path, request, kind):
    found = request.getfixturevalue(kind)
    opened = open_source(tmp_path, found if kind == "texts" else [found])
    sample = opened.sample(70, 8)
    assert len(sample) == 9  # whole batches
    first = [batch["input_ids"] for batch in sample.as_numpy_iterator()]
    for path in tmp_path.glob("*.t*"):
        path.write_bytes(b"")
    again = [batch["input_ids"] for batch in sample.as_numpy_iterator()]  # which nothing is read for
    np.testing.assert_array_equal(first, again)
    assert np.shape(first) == (9, 8, 16)


def test_baselines_are_those_of_the_batches_they_are_asked_for(tmp_path, texts):
    opened = open_source(tmp_path, texts)
    counts = opened.token_counts()
    small, large = opened.sample(8, 8), opened.sample(160, 8)
    for batches in (small, large):
        expected = {
            "masked_lm_loss": unigram_loss(counts, list(batches)),
            "next_sentence_accuracy": majority_share(list(batches)),
        }
        assert baselines(counts, batches) == expected
    assert baselines(counts, small) != baselines(counts, large)
    alone = open_source(tmp_path, texts, objectives="mlm")
    assert set(baselines(counts, alone.sample(8, 8))) == {"masked_lm_loss"}


def test_the_token_counts_of_records_are_those_of_what_is_predicted(tmp_path, records):
    counts = open_source(tmp_path, [records]).token_counts()
    predicted = np.repeat(np.arange(40), 2) + np.tile([0, 1], 40)
    seen = counts / counts.sum()
    np.testing.assert_allclose(seen[:41], np.bincount(predicted) / len(predicted), atol=2e-4)
    assert counts[41:].sum() == 0


def test_records_that_do_not_fit_are_refused(tmp_path, texts, records):
    with pytest.raises(ValueError, match=r"a.txt: lies among TFRecords such as .*a.tfrecord"):
        open_source(tmp_path, [records, *texts])
    with pytest.raises(ValueError, match="input_ids has 16 items; the flags say 32"):
        open_source(tmp_path, [records], sequence_length=32)
    with pytest.raises(ValueError, match="masked_lm_ids has 3 items; the flags say 2"):
        open_source(tmp_path, [records], max_predictions=2)
    with pytest.raises(ValueError, match="expected objectives mlm\\+nsp"):
        open_source(tmp_path, [records], objectives="mlm")
    with pytest.raises(ValueError, match="hold token ids already"):
        open_source(tmp_path, [records]).use_token_cache(str(tmp_path), print)
    write_records(tmp_path / "many.tfrecord", count=len(VOCABULARY) + 1)
    with pytest.raises(ValueError, match=rf"hold the id \d+; the vocabulary has {len(VOCABULARY)} pieces"):
        open_source(tmp_path, [tmp_path / "many.tfrecord"])


def test_the_graph_of_a_group_is_made_once_a_seed_and_again_for_a_token_cache(tmp_path, texts, monkeypatch):
    made = []
    for tokens in (TextTokens, CachedTokens):
        blocks = functools.partial(lambda blocks, *given: made.append(type(given[0])) or blocks(*given), tokens.blocks)
        monkeypatch.setattr(tokens, "blocks", functools.partialmethod(blocks))
    opened = open_source(tmp_path, texts)
    first, second = (next(opened.batches(8).as_numpy_iterator()) for _ in range(2))
    assert made == [TextTokens]
    other = next(opened.batches(8, seed=2).as_numpy_iterator())
    opened.use_token_cache(str(tmp_path / "tokens"), lambda *done: None)
    cached = next(opened.batches(8).as_numpy_iterator())
    assert made == [TextTokens, TextTokens, CachedTokens]
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name])
        np.testing.assert_array_equal(values, cached[name])
    assert (first["input_ids"] != other["input_ids"]).any()


def test_what_records_have_already_is_asked_of_text_alone(tmp_path, records):
    for options in ({"form": CorpusFormat(documents="file")}, {"short_sequences": 0.2}, {"masking": Masking(rate=0.2)}):
        with pytest.raises(ValueError, match="a.tfrecord: records hold token ids, cut and masked already"):
            open_source(tmp_path, [records], **options)


@pytest.mark.parametrize("objectives", OBJECTIVES)
def test_text_of_which_no_sequence_can_be_made_is_refused(tmp_path, objectives):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("\u200b\n\u200b\n", encoding="utf-8")
    with pytest.raises(ValueError, match="a.txt: no sequence can be made of its text"):
        open_source(tmp_path, [tmp_path / "a.txt", tmp_path / "b.txt"], objectives=objectives, max_predictions=None)


def test_text_is_looked_into_no_further_than_its_first_sequence(tmp_path, monkeypatch):
    for name, content in (("a.txt", "\u200b\n" * 40_000), ("b.txt", text(1, 60_000)), ("c.txt", text(2, 60_000))):
        (tmp_path / name).write_text(content, encoding="utf-8")
    read, read_blocks = [], TextTokens._read_blocks

    def counting(self, numbers):
        read.append(numbers.tolist())
        return read_blocks(self, numbers)

    monkeypatch.setattr(TextTokens, "_read_blocks", counting)
    opened = open_source(tmp_path, sorted(tmp_path.glob("*.txt")), objectives="mlm")
    assert len(read) < opened.corpus.counts["blocks"] and read == [[number] for number in range(len(read))]
    assert len(read) > 1  # in the first there is no sequence
