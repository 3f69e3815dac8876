"""A BERT and a vocabulary so small that a test takes no time, and that every shape can be written down."""

import kbert

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b", "the", "."]
CONFIG = kbert.BertConfig(
    vocab_size=10,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=16,
)
