"""The factor that keeps small gradients of float16 from vanishing."""

import tensorflow as tf

FIRST, STEPS_TO_DOUBLE = 2.0**15, 2000


class LossScale:
    """What the loss is multiplied by: half as much after a gradient that overflowed, twice as much after 2,000 without.

    Made in the scope of the replicas, whose `variables` are equal on all.
    """

    def __init__(self):
        self.scale = tf.Variable(FIRST, trainable=False, name="loss_scale")
        self.steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps_at_scale")

    @property
    def variables(self) -> dict[str, tf.Variable]:
        return {"loss_scale": self.scale, "steps_at_scale": self.steps}

    def update(self, norm, apply, skip):
        """Calls `apply` if the gradients' norm is finite and `skip` otherwise; the norm and the weight it counts with.

        A skipped step counts for nothing, unless the scale is below 1 already: then it is not the scale that makes
        gradients overflow, and the norm is infinite.
        """
        is_finite = tf.math.is_finite(norm)

        def applied():
            apply()
            return self.steps + 1

        def skipped():
            skip()
            return tf.constant(0, tf.int64)

        steps = tf.cond(is_finite, applied, skipped)
        is_long = steps >= STEPS_TO_DOUBLE
        self.scale.assign(self.scale * tf.where(is_finite, tf.where(is_long, 2.0, 1.0), 0.5))
        self.steps.assign(tf.where(is_long, tf.constant(0, tf.int64), steps))
        is_hopeless = self.scale < 1
        norm = tf.where(is_hopeless, float("inf"), tf.where(is_finite, norm, 0.0))
        return norm, tf.cast(is_finite | is_hopeless, tf.float32)
