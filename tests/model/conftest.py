import keras
import numpy as np
import pytest

from kbert.config import BertConfig


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(1)


@pytest.fixture(scope="session")
def config():
    """A BERT so small that a test takes no time, with the weights of a trained one in size (0.2, not 0.02)."""
    return BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=24,
        initializer_range=0.2,
    )


@pytest.fixture(scope="session")
def features():
    """A batch of four rows of 12 slots, of 12, 10, 7 and 5 tokens, with both objectives of pre-training."""
    random = np.random.default_rng(3)
    lengths = np.array([12, 10, 7, 5])[:, None]
    weights = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 0, 0]], "float32")
    integers = {
        "input_ids": random.integers(1, 100, (4, 12)) * (np.arange(12) < lengths),
        "input_mask": np.arange(12) < lengths,
        "segment_ids": (np.arange(12) >= lengths // 2) & (np.arange(12) < lengths),
        "masked_lm_positions": random.integers(1, 4, (4, 3)) * (weights > 0),
        "masked_lm_ids": random.integers(1, 100, (4, 3)) * (weights > 0),
        "next_sentence_labels": np.array([0, 1, 1, 0]),
    }
    return {name: value.astype("int32") for name, value in integers.items()} | {"masked_lm_weights": weights}
