"""transformers in torch on the same texts, from the start of a process to the logits of dev.

Batches are padded to their longest text.
"""

import json

from torch_learning import autocast, learn, main


def train(job) -> dict:
    """The logits of dev, which kbert scores."""
    import torch
    import transformers

    with open(job["examples"]) as file:
        examples = json.load(file)  # train and dev: rows of text, second text or None, target
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["folder"])
    is_number = job["labels"] == 1
    kind = {"problem_type": "regression"} if is_number else {}
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        job["folder"], num_labels=job["labels"], **kind
    )

    def encode(rows):
        pairs = [row[1] for row in rows] if rows[0][1] is not None else None
        limits = {"truncation": True, "max_length": job["sequence_length"], "padding": True, "return_tensors": "pt"}
        return tokenizer([row[0] for row in rows], pairs, **limits)

    def batch(numbers):
        some = [examples["train"][number] for number in numbers]
        targets = torch.tensor([row[2] for row in some], dtype=torch.float32 if is_number else torch.int64)
        return {**encode(some), "labels": targets}

    learn(model, len(examples["train"]), batch, job)
    logits = []
    with torch.inference_mode(), autocast(job):
        for begin in range(0, len(examples["dev"]), 64):
            logits += model(**encode(examples["dev"][begin : begin + 64])).logits.tolist()
    return {"logits": logits}


main(__file__, train)
