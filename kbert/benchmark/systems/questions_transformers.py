"""transformers in torch on the same questions, from the start of a process to the answers to dev.

Windows overlap by 128 tokens and are padded to all of their length, as its recipe does it.
"""

import json

from torch_learning import autocast, learn, main

STRIDE, N_BEST, LONGEST = 128, 20, 30


def train(job) -> dict:
    """The answers to dev by question, which kbert scores."""
    import numpy as np
    import torch
    import transformers

    with open(job["examples"]) as file:
        examples = json.load(file)  # train and dev: rows of id, question, passage, answer, its first character
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["folder"])
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(job["folder"])

    def encode(rows):
        limits = {"truncation": "only_second", "max_length": job["sequence_length"], "stride": STRIDE}
        given = {"return_overflowing_tokens": True, "return_offsets_mapping": True, "padding": "max_length"}
        return tokenizer([row[1] for row in rows], [row[2] for row in rows], return_tensors="np", **limits, **given)

    def offsets_of(found):
        """First and last + 1 character of each token of a passage, of other tokens -1: two of [W, S]."""
        in_passage = np.array(
            [[part == 1 for part in found.sequence_ids(row)] for row in range(len(found["input_ids"]))]
        )
        return (np.where(in_passage, found["offset_mapping"][..., side], -1) for side in (0, 1))

    def inputs(found, rows):
        return {name: torch.tensor(found[name][rows]) for name in tokenizer.model_input_names}

    learned = encode(examples["train"])
    firsts, lasts = offsets_of(learned)
    starts, ends = [], []
    for row, example in enumerate(learned["overflow_to_sample_mapping"]):
        answer, begin = examples["train"][example][3:]
        on_begin = np.flatnonzero((firsts[row] >= 0) & (firsts[row] <= begin) & (begin < lasts[row]))
        on_end = np.flatnonzero((firsts[row] < begin + len(answer)) & (begin + len(answer) <= lasts[row]))
        whole = len(on_begin) and len(on_end)  # in this window
        starts.append(int(on_begin[0]) if whole else 0)
        ends.append(int(on_end[-1]) if whole else 0)
    starts, ends = torch.tensor(starts), torch.tensor(ends)

    def batch(numbers):
        return inputs(learned, numbers) | {"start_positions": starts[numbers], "end_positions": ends[numbers]}

    learn(model, len(starts), batch, job)
    answers, best = {}, {}
    batches = [examples["dev"][begin : begin + 32] for begin in range(0, len(examples["dev"]), 32)]
    encoded = [encode(rows) for rows in batches]
    with torch.inference_mode(), autocast(job):
        told = [model(**inputs(asked, slice(None))) for asked in encoded]
    for rows, asked, outputs in zip(batches, encoded, told, strict=True):
        firsts, lasts = offsets_of(asked)
        for row, example in enumerate(asked["overflow_to_sample_mapping"]):
            of_starts, of_ends = (logits[row].float().numpy() for logits in (outputs.start_logits, outputs.end_logits))
            some_ends = np.argsort(-of_ends)[:N_BEST]
            for start in np.argsort(-of_starts)[:N_BEST]:
                for end in some_ends:
                    is_span = start <= end < start + LONGEST and firsts[row, start] >= 0 and firsts[row, end] >= 0
                    score, key = float(of_starts[start] + of_ends[end]), rows[example][0]
                    if is_span and score > best.get(key, -np.inf):
                        best[key] = score
                        answers[key] = rows[example][2][firsts[row, start] : lasts[row, end]]
    return {"answers": {row[0]: answers.get(row[0], "") for row in examples["dev"]}}


main(__file__, train)
