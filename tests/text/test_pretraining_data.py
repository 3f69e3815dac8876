"""The pipeline against the plain-Python restatement, element for element, and its order, resuming and refusals."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import restatement
import tensorflow as tf
from small_corpus import VOCABULARY, WORDS, write_corpus

from kbert.text.documents import Corpus
from kbert.text.masking import Masking
from kbert.text.pretraining_data import GROUP_BLOCKS, InstanceRule, corpus_dataset, pretraining_dataset
from kbert.text.tokens import TextTokens
from kbert.text.walk import Walk
from kbert.text.wordpiece import WordPiece


@pytest.fixture(scope="session")
def tokenizer():
    return WordPiece(VOCABULARY, lower_case=True)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Documents shorter than a sentence pair and longer than a block."""
    return write_corpus(tmp_path_factory.mktemp("corpus"), [300, 900, 5_000, 40_000, 150, 400_000, 20_000, 700])


def all_documents(corpus, tokenizer):
    documents = []
    for first, last in itertools.pairwise(corpus.documents.tolist()):
        documents.append(tokenizer(corpus.text(first, last)).to_list())
    return documents


def restated_groups(corpus, tokenizer, rule, seed, epochs):
    documents, starts = all_documents(corpus, tokenizer), corpus.documents.tolist()
    blocks = list(itertools.pairwise(corpus.blocks.tolist()))
    groups = -(-len(blocks) // GROUP_BLOCKS)
    for epoch, group in itertools.product(range(epochs), range(groups)):
        pieces = []
        for place in range(group * len(blocks) // groups, (group + 1) * len(blocks) // groups):
            number = tf.random.experimental.index_shuffle(place, np.int64([seed, epoch]), len(blocks) - 1)
            first, last = blocks[int(number)]
            for document, (begin, end) in enumerate(itertools.pairwise(starts)):
                if begin < last and end > first:
                    inside = max(begin, first), min(end, last)
                    pieces.append((document, inside[0] - begin, inside[1] - begin, inside[0]))
        yield restatement.group(documents, pieces, rule, tokenizer, seed, epoch)


def assert_equals_restatement(corpus, tokenizer, rule, instances):
    """The first `instances` rows of the graph and of the plain loops are the same, feature by feature."""
    batch, seed, epochs = 128, 7, 10**6
    expected = itertools.chain.from_iterable(restated_groups(corpus, tokenizer, rule, seed, epochs))
    dataset = corpus_dataset(corpus, tokenizer, rule, batch, seed=seed)
    for step, features in enumerate(dataset.take(-(-instances // batch)).as_numpy_iterator()):
        rows = list(itertools.islice(expected, batch))
        assert set(features) == {*rows[0], "data_position"}
        for name in rows[0]:
            np.testing.assert_array_equal(
                features[name], np.stack([row[name] for row in rows]), f"{name}, batch {step}", strict=False
            )


RULES = {
    "128/20": InstanceRule(128, 20),
    "128/20 whole words": InstanceRule(128, 20, masking=Masking(whole_words=True)),
    "512/77": InstanceRule(512, 77),
    "512/77 whole words": InstanceRule(512, 77, masking=Masking(whole_words=True)),
    "short rows, other rates": InstanceRule(12, 3, short_sequences=0.5, masking=Masking(0.4, mask=0.3, random=0.5)),
    "P cuts": InstanceRule(64, 4, masking=Masking(whole_words=True)),
    "mlm": InstanceRule(128, 20, "mlm"),
    "left-to-right": InstanceRule(64, objectives="left-to-right"),
}


@pytest.mark.parametrize("name", RULES)
def test_graph_equals_plain_python_element_for_element(corpus, tokenizer, name):
    assert_equals_restatement(corpus, tokenizer, RULES[name], 600)


@pytest.mark.long
@pytest.mark.parametrize("name", list(RULES)[:4])
def test_graph_equals_plain_python_over_100_000_instances(tmp_path, tokenizer, name):
    corpus = write_corpus(tmp_path, [300, 900, 5_000, *range(100_000, 900_000, 20_000)])
    assert_equals_restatement(corpus, tokenizer, RULES[name], 100_000)


def test_next_token_objective_has_no_masks_and_predicts_every_token(corpus, tokenizer):
    batch = next(corpus_dataset(corpus, tokenizer, RULES["left-to-right"], 8).as_numpy_iterator())
    assert tokenizer.mask_id not in batch["input_ids"]
    assert batch["masked_lm_weights"].sum() == (batch["input_mask"].sum(1) - 1).sum()


def rows_of(batches):
    return [tuple(row) for batch in batches for row in np.concatenate([batch["input_ids"], batch["masked_lm_ids"]], 1)]


def test_epochs_hold_the_same_documents_in_another_order_with_new_masks(tmp_path, tokenizer):
    corpus, rule = write_corpus(tmp_path, [4_000] * 12), InstanceRule(64, objectives="mlm", short_sequences=0.0)
    one = list(corpus_dataset(corpus, tokenizer, rule, 1, epochs=1).as_numpy_iterator())
    both = list(corpus_dataset(corpus, tokenizer, rule, 1, epochs=2).as_numpy_iterator())
    first, second = rows_of(both[: len(one)]), rows_of(both[len(one) :])
    assert first == rows_of(one) and len(second) == len(first)
    assert len({*first, *second}) > 1.9 * len(first)  # masks are new, and so is the order

    def unmasked(batches):
        ids = []
        for batch in batches:
            row, k = batch["input_ids"][0].copy(), int(batch["masked_lm_weights"].sum())
            row[batch["masked_lm_positions"][0, :k]] = batch["masked_lm_ids"][0, :k]
            ids.append(tuple(row))
        return ids

    assert sorted(unmasked(both[: len(one)])) == sorted(unmasked(both[len(one) :]))
    assert unmasked(both[: len(one)]) != unmasked(both[len(one) :])


def test_each_epoch_walks_all_blocks_in_an_order_of_its_own():
    def instances(epoch, numbers, skip):
        return {"input_ids": tf.cast(numbers[:, None], tf.int32)}

    batches = Walk(12, 1, seed=3, epochs=2, position=(0, 0, 0)).batches(instances, 12)
    first, second = (batch["input_ids"][:, 0].tolist() for batch in batches.as_numpy_iterator())
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second and first != sorted(first)


@pytest.mark.parametrize("stop", [1, 40])
def test_a_pipeline_goes_on_from_any_position_as_if_never_stopped(tmp_path, tokenizer, stop, monkeypatch):
    monkeypatch.setattr("kbert.text.pretraining_data.GROUP_BLOCKS", 2)  # so that there are groups and epochs to cross
    monkeypatch.setattr("kbert.text.documents.BLOCK_BYTES", 1 << 12)
    corpus, rule = write_corpus(tmp_path, [9_000] * 9), InstanceRule(128, 20)
    whole = list(corpus_dataset(corpus, tokenizer, rule, 16, seed=3).take(stop + 50).as_numpy_iterator())
    position = tuple(int(x) for x in whole[stop - 1]["data_position"])
    rest = corpus_dataset(corpus, tokenizer, rule, 16, seed=3, position=position).take(50)
    for expected, actual in zip(whole[stop:], rest.as_numpy_iterator(), strict=True):
        for name in expected:
            np.testing.assert_array_equal(expected[name], actual[name], name)
    assert whole[-1]["data_position"][0] >= 1, "the test is meant to cross an epoch"


def test_seeds_give_other_batches_and_the_same_seed_the_same(corpus, tokenizer):
    one, again, other = (
        next(corpus_dataset(corpus, tokenizer, InstanceRule(), 64, seed=seed).as_numpy_iterator()) for seed in (1, 1, 2)
    )
    assert rows_of([one]) == rows_of([again]) != rows_of([other])


def test_no_tuner_is_waited_for_where_training_ends(corpus, tokenizer):
    assert corpus_dataset(corpus, tokenizer, InstanceRule(), 64).options().autotune.enabled is False


def test_training_batches_are_full(tmp_path, tokenizer):
    corpus, rule = write_corpus(tmp_path, [20_000] * 3), InstanceRule()
    singles = len(list(corpus_dataset(corpus, tokenizer, rule, 1, epochs=1)))
    full = [len(b["input_ids"]) for b in corpus_dataset(corpus, tokenizer, rule, 64, epochs=1)]
    assert set(full) == {64} and len(full) == singles // 64


def test_an_epoch_reads_fewer_tokens_than_its_batches_hold(tmp_path, tokenizer):
    corpus = write_corpus(tmp_path, [20_000] * 6)
    tokens = int(tokenizer(corpus.text(0, corpus.counts["sentences"])).flat_values.shape[0])
    slots = held = 0
    for batch in corpus_dataset(corpus, tokenizer, InstanceRule(128), 1, epochs=1):
        slots += batch["input_ids"].shape[0] * 128
        held += int(tf.reduce_sum(batch["input_mask"]))
    # What plan.py reckons with: half of the second sentences are random, and what they stand in for is read again.
    assert 0.5 < tokens / slots < 0.9 * held / slots


SLOW = """
import time
from kbert.text.tokens import TextTokens

def slowly(self, numbers):
    time.sleep(0.5)
    return read_blocks(self, numbers)

read_blocks, TextTokens._read_blocks = TextTokens._read_blocks, slowly
"""
# Of names that nothing else holds on to, as those of a script that ends.
LEFT_BEHIND = """
import sys
import kbert
import slow

tokenizer = kbert.WordPiece(sys.argv[2:])
batches = iter(kbert.pretraining_dataset([sys.argv[1]], tokenizer, batch_size=128, sequence_length=16))
next(batches)
raise ValueError("stopped here")
"""


def test_a_script_ends_while_text_is_read(tmp_path):
    """Its iterator is still there, in a variable, and what it waits for would not come when Python has ended."""
    write_corpus(tmp_path, [2_000, 2_000])
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-c", LEFT_BEHIND, str(tmp_path / "*.txt"), *VOCABULARY]
    variables = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ValueError: stopped here")


def test_random_b_comes_from_another_document_and_the_rest_follows(tmp_path, tokenizer):
    """Each document is one sentence repeated, so that a row shows where B is from."""
    for number, word in enumerate(WORDS[:9]):
        (tmp_path / f"{word}.txt").write_text(f"{word} {word} {word}.\n" * (20 + 40 * number), encoding="utf-8")
    dataset = pretraining_dataset([tmp_path], tokenizer, batch_size=64, sequence_length=64, epochs=20)
    sources = {0: [], 1: []}
    for batch in dataset.as_numpy_iterator():
        for ids, positions, labels, weights, segments, label in zip(
            *(
                batch[n]
                for n in ("input_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights", "segment_ids")
            ),
            batch["next_sentence_labels"],
            strict=True,
        ):
            ids = ids.copy()
            ids[positions[weights > 0]] = labels[weights > 0]
            words = [set(ids[segments == s]) - set(range(6)) for s in (0, 1)]
            sources[int(label)].append((words[0].pop(), words[1].pop()))
    assert all(a == b for a, b in sources[0]) and sources[0]
    assert all(a != b for a, b in sources[1])
    # Given A's document, each of the 8 others is as likely, however long it is.
    counts = np.bincount([(b - a) % 9 for a, b in sources[1]], minlength=9)[1:]
    assert np.abs(counts - counts.mean()).max() < 4 * np.sqrt(counts.mean())


def test_each_file_is_opened_once_for_the_random_bs_of_a_group(tmp_path, tokenizer, monkeypatch):
    for number in range(100):  # more than are kept open
        (tmp_path / f"{number:02}.txt").write_text("\n".join(WORDS[20 * number % 300 :][:20]))
    corpus, opened = Corpus([tmp_path]), []

    def counting(path, *how, **more):
        opened.append(path)
        return open(path, *how, **more)

    monkeypatch.setattr("kbert.text.documents.open", counting, raising=False)
    draw = np.random.default_rng(1)
    others, depths = draw.permutation(np.repeat(np.arange(100), 5)), draw.random(500)
    ids, spans = TextTokens(corpus, tokenizer).from_places(
        tf.constant(others), tf.constant(depths), tf.ones([500], tf.int64)
    )
    assert sorted(opened) == corpus.files
    assert tf.gather(ids, spans.starts).numpy().tolist() == [
        tokenizer.vocabulary.index(WORDS[20 * other % 300 + int(20 * depth)])
        for other, depth in zip(others.tolist(), depths.tolist(), strict=True)
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sequence_length": 7}, "sequence_length 7; expected 8 to 512"),
        ({"sequence_length": 513}, "sequence_length 513; expected 8 to 512"),
        ({"objectives": "nsp"}, "objectives 'nsp'; expected one of mlm\\+nsp, mlm, left-to-right"),
        ({"max_predictions": 200}, "max_predictions 200; expected 1 to the sequence length 128"),
        ({"short_sequences": 1.5}, "short_sequences 1.5"),
        ({"objectives": "left-to-right", "max_predictions": 20}, "none is hidden; expected no masking and no max_pred"),
        ({"objectives": "left-to-right", "masking": Masking(0.2)}, "none is hidden; expected no masking and no max_pr"),
    ],
)
def test_rules_that_make_no_sense_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        InstanceRule(**fields)


def test_one_document_leaves_no_other_for_a_random_b(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("one. two.\nthree.\n")
    with pytest.raises(ValueError, match="a.txt: holds one document, so there is no other document for a random B"):
        pretraining_dataset([tmp_path], tokenizer)
    assert next(iter(pretraining_dataset([tmp_path], tokenizer, objectives="mlm", batch_size=1)))


def test_predictions_are_what_a_full_sequence_needs_and_a_smaller_p_says_what_it_loses():
    assert InstanceRule(128).predictions == 20 and InstanceRule(512).predictions == 77
    assert InstanceRule(128, 20).share_lost == 0
    assert InstanceRule(512, 20).share_lost == pytest.approx(1 - 20 / 77)
