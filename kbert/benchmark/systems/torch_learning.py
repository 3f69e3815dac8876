"""What torch's fine-tunings share: AdamW, linear warm-up and decay, clipping, each a process for each round."""

import json
import sys
import time

from worker import run, serve

WARMUP, WEIGHT_DECAY, CLIP_NORM = 0.1, 0.01, 1.0


def main(script: str, train) -> None:
    """Serves rounds of `train`, each a process of this script, whose last line says in JSON what it found."""

    def prepare(job):
        import torch
        import transformers

        def work():
            begin = time.perf_counter()
            printed = run([sys.executable, script, "train"], job)
            return {"seconds": time.perf_counter() - begin} | json.loads(printed.splitlines()[-1])

        return {"versions": f"transformers {transformers.__version__}, torch {torch.__version__}"}, work

    if sys.argv[1:] == ["train"]:
        print(json.dumps(train(json.load(sys.stdin))))
    else:
        serve(prepare, in_children=True)


def autocast(job):
    """What a model computes within it is in the precision of the job."""
    import torch

    return torch.autocast("cpu", torch.bfloat16, enabled=job["precision"] == "bfloat16")


def learn(model, count: int, batch, job) -> None:
    """Trains a model on batches of examples drawn anew each epoch: batch(numbers) is what the model is called with."""
    import numpy as np
    import torch
    import transformers

    plain = [p for name, p in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    others = {id(p) for p in plain}
    decayed = [p for p in model.parameters() if id(p) not in others]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=job["learning_rates"], fused=True)
    size = job["batch_sizes"]
    steps = job["epochs"] * (count // size)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(WARMUP * steps), steps)
    random = np.random.default_rng(1)
    torch.manual_seed(1)
    model.train()
    for _ in range(job["epochs"]):
        order = random.permutation(count)
        for begin in range(0, count // size * size, size):
            with autocast(job):
                loss = model(**batch(order[begin : begin + size])).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
    model.eval()
