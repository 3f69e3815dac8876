"""Strings to batches, in the graph: TensorFlow only."""
