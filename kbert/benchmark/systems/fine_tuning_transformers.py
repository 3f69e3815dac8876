"""transformers in torch on the same examples: batches padded to their longest text, AdamW, linear warm-up and decay.

In a process of its own for each round, from its start to the scores of dev.
"""

import json
import sys
import time

from worker import run, serve

WARMUP, WEIGHT_DECAY, CLIP_NORM = 0.1, 0.01, 1.0


def prepare(job):
    import torch
    import transformers

    def work():
        begin = time.perf_counter()
        printed = run([sys.executable, __file__, "train"], job)
        return {"seconds": time.perf_counter() - begin} | json.loads(printed.splitlines()[-1])

    return {"versions": f"transformers {transformers.__version__}, torch {torch.__version__}"}, work


def train(job):
    """Prints the logits of dev, which kbert scores."""
    import numpy as np
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

    plain = [p for name, p in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    others = {id(p) for p in plain}
    decayed = [p for p in model.parameters() if id(p) not in others]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=job["learning_rates"], fused=True)
    size, rows = job["batch_sizes"], examples["train"]
    steps = job["epochs"] * (len(rows) // size)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(WARMUP * steps), steps)
    random = np.random.default_rng(1)
    torch.manual_seed(1)
    model.train()
    for _ in range(job["epochs"]):
        order = random.permutation(len(rows))
        for begin in range(0, len(rows) // size * size, size):
            some = [rows[number] for number in order[begin : begin + size]]
            targets = torch.tensor([row[2] for row in some], dtype=torch.float32 if is_number else torch.int64)
            model(**encode(some), labels=targets).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
    model.eval()
    logits = []
    with torch.inference_mode():
        for begin in range(0, len(examples["dev"]), 64):
            logits += model(**encode(examples["dev"][begin : begin + 64])).logits.tolist()
    print(json.dumps({"logits": logits}))


if sys.argv[1:] == ["train"]:
    train(json.load(sys.stdin))
else:
    serve(prepare, in_children=True)
