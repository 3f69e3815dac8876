"""The baselines equal what counting by hand gives."""

import numpy as np
import pytest
from small_corpus import VOCABULARY

from kbert.text.baselines import majority_share, token_counts, unigram_loss
from kbert.text.documents import Corpus
from kbert.text.wordpiece import WordPiece


def test_token_counts_are_those_of_the_text(tmp_path):
    (tmp_path / "a.txt").write_text("bal bal bel. bil\n\nbal.")
    counts = token_counts(Corpus([tmp_path]), WordPiece(VOCABULARY))
    assert {VOCABULARY[i]: n for i, n in enumerate(counts) if n} == {"bal": 3, "bel": 1, "bil": 1, ".": 2}


def test_unigram_loss_is_the_cross_entropy_over_what_is_predicted():
    batch = {"masked_lm_ids": np.array([[0, 1, 2]]), "masked_lm_weights": np.array([[1.0, 1.0, 0.0]])}
    assert unigram_loss(np.array([7, 0, 0]), [batch, batch]) == pytest.approx(-(np.log(0.8) + np.log(0.1)) / 2)


def test_majority_share_is_that_of_the_more_frequent_label():
    assert (
        majority_share([{"next_sentence_labels": np.array([0, 0, 1])}, {"next_sentence_labels": np.array([0])}]) == 0.75
    )
