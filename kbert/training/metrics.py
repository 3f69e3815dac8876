"""Means and sums that every replica holds alike, as the step gives each the same numbers (any backend)."""

import keras


class Alike:
    """Before a keras.metrics.Metric. Keras's own are added up over replicas whenever they are read: messages between
    processes at each step, and a deadlock where one process reads alone.
    """

    def add_variable(self, shape, initializer, dtype=None, aggregation="only_first_replica", name=None):
        return super().add_variable(shape, initializer, dtype, aggregation, name)


@keras.saving.register_keras_serializable(package="kbert")
class Mean(Alike, keras.metrics.Mean):
    """A weighted mean."""


@keras.saving.register_keras_serializable(package="kbert")
class Sum(Alike, keras.metrics.Sum):
    """A sum."""
