"""Batches to outputs and losses, in keras.ops."""
