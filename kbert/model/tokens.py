"""The tokens of a batch as rows of [T, H]: only attention needs to know where they stand."""

from keras import ops


class Rows:
    """All B * S places of a batch, as its rows."""

    def __init__(self, batch, length, heads: int):
        self.batch, self.length, self.heads = batch, length, heads

    def taken(self, x):  # [B, S] -> [T]
        return ops.reshape(x, (-1,))

    def laid_out(self, x):  # [T, H] -> [B, S, H]
        return ops.reshape(x, (self.batch, self.length, x.shape[-1]))

    def in_heads(self, x, parts: int):  # [T, parts * H] -> parts of [B, A, S, D], in one go over the vectors
        width = x.shape[-1] // (parts * self.heads)
        x = ops.reshape(x, (self.batch, self.length, parts, self.heads, width))
        return ops.unstack(ops.transpose(x, (2, 0, 3, 1, 4)), parts)

    def joined(self, x):  # [B, A, S, D] -> [T, H]
        return ops.reshape(ops.swapaxes(x, 1, 2), (-1, self.heads * x.shape[-1]))


class Tokens(Rows):
    """A batch without its padding.

    places: where in [B * S] the tokens are, [T]; mask: the batch's input_mask [B, S].
    """

    def __init__(self, places, mask, heads: int):
        super().__init__(*ops.shape(mask), heads)
        self.places = places
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

    def taken(self, x):
        return ops.take(super().taken(x), self.places, axis=0)

    def laid_out(self, x):
        return super().laid_out(ops.take(x, self.numbers, axis=0))

    def in_heads(self, x, parts):
        width = x.shape[-1] // (parts * self.heads)
        return ops.unstack(ops.take(ops.reshape(x, (-1, width)), self.of_parts[parts], axis=0), parts)

    def joined(self, x):
        rows = ops.take(ops.reshape(x, (-1, x.shape[-1])), self.of_context, axis=0)  # [T, A, D]
        return ops.reshape(rows, (-1, self.heads * x.shape[-1]))
