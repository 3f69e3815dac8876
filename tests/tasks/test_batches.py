"""Each example is in one batch of an epoch, in like lengths; any batch can be made without those before it."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from small_corpus import VOCABULARY, WORDS

from kbert import lanes
from kbert.tasks import batches, ner, squad, swag
from kbert.tasks.examples import Example
from kbert.text.windows import WindowRule
from kbert.text.wordpiece import WordPiece


@pytest.fixture(scope="module")
def tokenizer():
    return WordPiece(VOCABULARY)


def make(count: int, pairs: bool = False) -> list[Example]:
    random = np.random.default_rng(1)
    words = [" ".join(random.choice(WORDS, length)) for length in random.integers(1, 60, 2 * count)]
    return [Example(words[2 * n], words[2 * n + 1] if pairs else None, "1", f"f, line {n}") for n in range(count)]


@pytest.fixture(scope="module")
def encoded(tokenizer):
    return batches.encode(make(203), tokenizer, 48, {"label_ids": np.arange(203, dtype=np.int32)})


def test_each_epoch_has_each_example_once_in_an_order_of_its_own(encoded):
    plans = [batches.plan(encoded.lengths, 8, epoch, seed=1) for epoch in range(2)]
    for plan in plans:
        assert plan.shape == (25, 8) and len(np.unique(plan)) == 200  # the 3 left over wait
    assert not np.array_equal(*plans)
    assert not np.array_equal(plans[0], batches.plan(encoded.lengths, 8, 0, seed=2))
    np.testing.assert_array_equal(plans[0], batches.plan(encoded.lengths, 8, 0, seed=1))


def test_like_lengths_go_together_and_every_length_is_one_of_a_few(encoded):
    rows = list(batches.training_batches(encoded, 8, 1, 1, multiple=16).as_numpy_iterator())
    lengths = [batch["input_ids"].shape[1] for batch in rows]
    finer = [batch["input_ids"].shape[1] for batch in batches.training_batches(encoded, 8, 1, 1)]
    assert all(one % 2 == 0 and 0 <= other - one < 16 for one, other in zip(finer, lengths, strict=True))
    assert set(lengths) == {16, 32, 48} and lengths != sorted(lengths)
    padding = 1 - sum(batch["input_mask"].sum() for batch in rows) / sum(batch["input_mask"].size for batch in rows)
    assert padding < 0.25 < 1 - encoded.lengths.mean() / 48
    for batch in rows:
        np.testing.assert_array_equal(batch["input_mask"].sum(1), encoded.lengths[batch["label_ids"]])


def test_batches_go_on_from_any_number(encoded):
    whole = list(batches.training_batches(encoded, 8, 3, 1).as_numpy_iterator())
    rest = list(batches.training_batches(encoded, 8, 3, 1, start=31).as_numpy_iterator())
    assert len(whole) == 75 and len(rest) == 44
    # Or the end of training would wait for tf.data's tuner, asleep for up to a minute.
    assert batches.training_batches(encoded, 8, 3, 1).options().autotune.enabled is False
    for one, other in zip(whole[31:], rest, strict=True):
        np.testing.assert_array_equal(one["input_ids"], other["input_ids"])


def test_pairs_are_packed_and_long_ones_counted(tokenizer):
    examples = make(20, pairs=True)
    encoded = batches.encode(examples, tokenizer, 48)
    sizes = [len(tokenizer([e.text_a])[0]) + len(tokenizer([e.text_b])[0]) + 3 for e in examples]
    assert encoded.truncated == sum(size > 48 for size in sizes) > 0
    assert encoded.lengths.tolist() == [min(size, 48) for size in sizes]
    packed = encoded.packed(np.arange(20), 48)
    assert (packed["input_mask"].numpy().sum(1) == encoded.lengths).all() and packed["segment_ids"].numpy().max() == 1
    with pytest.raises(ValueError, match="f, line 0: some examples are pairs and some are not"):
        batches.encode([examples[0], make(1)[0]], tokenizer, 48)


@pytest.mark.parametrize("count", [1, 2])
def test_answers_come_in_the_order_of_the_examples(encoded, count, monkeypatch):
    monkeypatch.setattr(lanes, "there_are", lambda: count)

    def model(features, training):
        return {
            "logits": tf.reduce_sum(features["input_ids"] * features["input_mask"], 1),
            "other": features["input_ids"],
        }

    found = batches.logits_of(model, encoded, batch_size=16)
    every = encoded.packed(np.arange(203), 48)
    np.testing.assert_array_equal(found, (every["input_ids"] * every["input_mask"]).numpy().sum(1))
    assert len(set(found.tolist())) > 150


def test_as_many_batches_are_computed_at_once_as_there_are_lanes(encoded, monkeypatch):
    monkeypatch.setattr(lanes, "there_are", lambda: 2)
    both = threading.Barrier(2)
    for rows, place in batches.in_order_of_length(encoded, lambda features, rows: both.wait(60), 102):
        assert len(rows) in (101, 102) and place in (0, 1)


def test_an_error_in_a_lane_ends_the_others(encoded, monkeypatch):
    monkeypatch.setattr(lanes, "there_are", lambda: 2)
    called = []

    def call(features, rows):
        called.append(rows)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(batches.in_order_of_length(encoded, call, batch_size=1))
    assert len(called) < 203


def test_too_few_examples_for_a_batch_make_none(encoded):
    assert batches.plan(encoded.lengths[:3], 8, 0, 1).shape == (0, 8)


def test_batches_of_every_task_have_a_known_size_so_that_replicas_can_share_them_out():
    tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    texts = ["a " * (n + 1) for n in range(8)]
    pairs = [Example(text, "b", "0", "") for text in texts]
    choices = [swag.Choice(text, ("a", "b"), 0, "") for text in texts]
    sentences = [ner.Sentence(text.split(), ["O"] * len(text.split()), 0, "") for text in texts]
    questions = [squad.Question(str(n), "a", text, ["a"], [0]) for n, text in enumerate(texts)]
    for encoded in (
        batches.encode(pairs, tokenizer, 16, {"label_ids": [0] * 8}),
        swag.encode(choices, tokenizer, 16),
        ner.encode(sentences, tokenizer, ["O", "B-X"], 16),
        squad.encode(questions, tokenizer, WindowRule(16, 8, 4), with_targets=True),
    ):
        specs = batches.training_batches(encoded, 4, 1, 1).element_spec
        assert {spec.shape[0] for spec in specs.values()} == {4}
