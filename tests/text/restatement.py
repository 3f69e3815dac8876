"""BERT's pre-training data rules once more, in plain Python loops over lists: what the graph is compared with.

Written from the paper and from the behaviour of the release's create_pretraining_data.py, step by step as they say it.
Only the draws are shared: the same numbers for the same (seed, epoch, document, ordinal), restated below.
"""

import functools

import numpy as np

MASK64 = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
PURPOSES = [
    "target",
    "split",
    "is_random",
    "document",
    "sentence",
    "front_a",
    "front_b",
    "order",
    "choose",
    "replace",
    "token",
]


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def key(*parts: int) -> int:
    state = 0
    for part in parts:
        state = mix((state + part + GAMMA) & MASK64)
    return state


@functools.lru_cache(maxsize=100)
def stream(instance: int, purpose: str) -> int:
    return mix(instance ^ ((PURPOSES.index(purpose) + 1) * GAMMA & MASK64))


def bits(instance: int, purpose: str, index: int = 0) -> int:
    return mix((stream(instance, purpose) + (index + 1) * GAMMA) & MASK64)


def uniform(instance: int, purpose: str, index: int = 0) -> float:
    return (bits(instance, purpose, index) >> 11) * 2.0**-53


def integer(instance: int, purpose: str, count: int, index: int = 0) -> int:
    """0 .. count - 1"""
    return int(uniform(instance, purpose, index) * count)


def target_length(rule, seed, epoch, document, number) -> int:
    """For the piece of a document that begins with that sentence."""
    room = rule.sequence_length - (3 if rule.next_sentence else 2)
    draw = key(seed, epoch, document, number)
    if uniform(draw, "target", 0) < rule.short_sequences:
        return 2 + integer(draw, "target", room - 1, 1)
    return room


def pairs_of_piece(sentences, numbers, document, all_documents, rule, seed, epoch):
    """(key, tokens of A, tokens of B, is random) for a piece of a document: its sentences' tokens and numbers."""
    target = target_length(rule, seed, epoch, document, numbers[0])
    chunk, length, i = [], 0, 0
    while i < len(sentences):
        chunk.append(i)
        length += len(sentences[i])
        if i == len(sentences) - 1 or length >= target:
            draw = key(seed, epoch, document, numbers[chunk[0]])
            a_end = 1 if len(chunk) == 1 else 1 + integer(draw, "split", len(chunk) - 1)
            tokens_a = [token for j in chunk[:a_end] for token in sentences[j]]
            tokens_b = []
            is_random = len(chunk) == 1 or uniform(draw, "is_random") < 0.5
            if is_random:
                other = integer(draw, "document", len(all_documents) - 1)
                other = all_documents[other + 1 if other >= document else other]
                for sentence in other[integer(draw, "sentence", len(other)) :]:
                    tokens_b += sentence
                    if len(tokens_b) >= max(target - len(tokens_a), 1):
                        break
                i -= len(chunk) - a_end  # the unused sentences are put back
            else:
                tokens_b = [token for j in chunk[a_end:] for token in sentences[j]]
            if tokens_b:
                yield draw, tokens_a, tokens_b, is_random
            chunk, length = [], 0
        i += 1


def segments_of_piece(sentences, numbers, document, rule, seed, epoch):
    tokens = [token for sentence in sentences for token in sentence]
    target = target_length(rule, seed, epoch, document, numbers[0])
    for ordinal, begin in enumerate(range(0, len(tokens), target)):
        yield key(seed, epoch, document, numbers[0], ordinal), tokens[begin : begin + target], None, False


def truncate(draw, tokens_a, tokens_b, limit):
    tokens_a, tokens_b = list(tokens_a), list(tokens_b)
    removed = {"front_a": 0, "front_b": 0}
    while len(tokens_a) + len(tokens_b) > limit:
        longer, purpose = (tokens_a, "front_a") if len(tokens_a) > len(tokens_b) else (tokens_b, "front_b")
        word, bit = divmod(removed[purpose], 64)
        removed[purpose] += 1
        longer.pop(0 if bits(draw, purpose, word) >> bit & 1 else -1)
    return tokens_a, tokens_b


def mask(draw, ids, rule, tokenizer):
    """[CLS] A [SEP] B [SEP] as ids -> the ids with masks, positions, original ids."""
    words = []
    for position, token in enumerate(ids):
        if token in (tokenizer.cls_id, tokenizer.sep_id):
            continue
        if rule.masking.whole_words and words and tokenizer.vocabulary[token].startswith("##"):
            words[-1].append(position)
        else:
            words.append([position])
    wanted = min(rule.predictions, max(1, round(len(ids) * rule.masking.rate)))
    # The order of the choice: the larger the upper 31 bits of a word's first position, the earlier.
    words.sort(key=lambda word: (-(bits(draw, "choose", word[0]) >> 33), word[0]))
    chosen = []
    for word in words:
        if len(chosen) >= wanted:
            break
        if len(chosen) + len(word) > wanted:
            continue
        chosen += word
    hidden = list(ids)
    for position in sorted(chosen):
        kind = uniform(draw, "replace", position)
        if kind < rule.masking.mask:
            hidden[position] = tokenizer.mask_id
        elif kind < rule.masking.mask + rule.masking.random:
            hidden[position] = integer(draw, "token", tokenizer.vocab_size, position)
    return hidden, sorted(chosen), [ids[position] for position in sorted(chosen)]


def row(draw, tokens_a, tokens_b, is_random, rule, tokenizer) -> dict:
    """One instance as padded features."""
    length, cls, sep = rule.sequence_length, [tokenizer.cls_id], [tokenizer.sep_id]
    if tokens_b is None:
        ids, segments = cls + tokens_a + sep, [0] * (len(tokens_a) + 2)
    else:
        tokens_a, tokens_b = truncate(draw, tokens_a, tokens_b, length - 3)
        ids = cls + tokens_a + sep + tokens_b + sep
        segments = [0] * (len(tokens_a) + 2) + [1] * (len(tokens_b) + 1)
    if rule.objectives == "left-to-right":
        hidden, positions, labels = ids, list(range(len(ids) - 1)), ids[1:]
    else:
        hidden, positions, labels = mask(draw, ids, rule, tokenizer)

    def padded(values, to):
        return np.array(values + [0] * (to - len(values)))

    features = {
        "input_ids": padded(hidden, length),
        "input_mask": padded([1] * len(ids), length),
        "segment_ids": padded(segments, length),
        "masked_lm_positions": padded(positions, rule.predictions),
        "masked_lm_ids": padded(labels, rule.predictions),
        "masked_lm_weights": padded([1.0] * len(positions), rule.predictions),
    }
    return features | ({"next_sentence_labels": int(is_random)} if rule.next_sentence else {})


def group(all_documents, pieces, rule, tokenizer, seed, epoch):
    """The rows of one group in their order.

    all_documents: lists of sentences (lists of ids); pieces: (document, first sentence, end, number).
    """
    instances = []
    for document, first, last, number in pieces:
        numbered = [(number + j, s) for j, s in enumerate(all_documents[document][first:last]) if s]
        if not numbered:
            continue
        numbers, sentences = [n for n, _ in numbered], [s for _, s in numbered]
        if rule.next_sentence:
            instances += pairs_of_piece(sentences, numbers, document, all_documents, rule, seed, epoch)
        else:
            instances += segments_of_piece(sentences, numbers, document, rule, seed, epoch)
    instances.sort(key=lambda instance: bits(instance[0], "order") ^ 1 << 63)  # as signed 64-bit numbers sort
    return [row(*instance, rule, tokenizer) for instance in instances]
