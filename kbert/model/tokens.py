"""A batch without its padding."""

from keras import ops


class Tokens:
    """The tokens of a batch without its padding, as rows of [T, H]: only attention needs to know where they stand.

    places: where in [B * S] they are, [T]; mask: the batch's input_mask [B, S].
    """

    def __init__(self, places, mask, heads: int):
        self.places, self.heads = places, heads
        self.batch, self.length = ops.shape(mask)
        # Of each place the number of its token; of padding, whose vectors nobody looks at, that of the token before.
        every = ops.arange(self.batch * self.length, dtype=places.dtype)
        self.numbers = ops.maximum(ops.cast(ops.searchsorted(places, every, side="right"), places.dtype) - 1, 0)
        head = ops.arange(heads, dtype=places.dtype)
        numbers = ops.reshape(self.numbers, (self.batch, 1, self.length))  # [B, 1, S]
        self.of_parts = {
            parts: numbers * (parts * heads)
            + ops.reshape(ops.arange(parts * heads, dtype=places.dtype), (parts, 1, heads, 1))
            for parts in (2, 3)
        }  # [parts, B, A, S]
        row, column = places // self.length, places % self.length
        self.of_context = (row[:, None] * heads + head) * self.length + column[:, None]  # [T, A]

    def taken(self, x):  # [B, S] -> [T]
        return ops.take(ops.reshape(x, (-1,)), self.places, axis=0)

    def laid_out(self, x):  # [T, H] -> [B, S, H]
        return ops.reshape(ops.take(x, self.numbers, axis=0), (self.batch, self.length, x.shape[-1]))

    def in_heads(self, x, parts):  # [T, parts * H] -> parts of [B, A, S, D], in one go over the vectors
        width = x.shape[-1] // (parts * self.heads)
        laid_out = ops.take(ops.reshape(x, (-1, width)), self.of_parts[parts], axis=0)
        return [laid_out[part] for part in range(parts)]

    def joined(self, x):  # [B, A, S, D] -> [T, H]
        rows = ops.take(ops.reshape(x, (-1, x.shape[-1])), self.of_context, axis=0)  # [T, A, D]
        return ops.reshape(rows, (-1, self.heads * x.shape[-1]))
