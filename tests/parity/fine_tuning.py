"""The same start, output layer, batches and hyper-parameters in kbert and in a plain torch loop.

    python tests/parity/fine_tuning.py kbert FOLDER MODEL TASK DATA [STEPS]     in kbert's environment
    python tests/parity/fine_tuning.py torch FOLDER                             where torch and transformers are
    python tests/parity/fine_tuning.py compare FOLDER
    python tests/parity/fine_tuning.py score FOLDER DEV [QUESTIONS]             of answers, both ends, by kbert

50 steps of batch 32 (16 for endings) at 5e-5, dropout off. TASK is one of GLUE's, and DATA its folder; or entities,
endings or answers, and DATA a file that kbert reads. The first call writes the batches and the start to FOLDER, and
each training its end, in Hugging Face's format.
"""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

SEQUENCES, LENGTH, PEAK, EPSILON = 32, 128, 5e-5, 1e-8
# The features that a loss is of, as transformers calls them.
TARGETS = dict.fromkeys(("label_ids", "label_values"), "labels")
TARGETS |= {name: name for name in ("start_positions", "end_positions")}
HEADS = {"entities": "TokenClassification", "endings": "MultipleChoice", "answers": "QuestionAnswering"}


def read(task: str, data: str, tokenizer) -> tuple:
    """A function that makes the model of a Bert, and the encoded training examples."""
    import kbert
    from kbert.tasks import classification, ner, squad, swag
    from kbert.tasks.batches import encode
    from kbert.text.windows import WindowRule

    if task == "entities":
        sentences = ner.read(data)
        labels = ner.tag_names(sentences)
        return lambda bert: kbert.BertTagger(bert, len(labels)), ner.encode(sentences, tokenizer, labels, LENGTH)
    if task == "endings":
        return kbert.BertMultipleChoice, swag.encode(swag.read(data), tokenizer, LENGTH)
    if task == "answers":
        questions = squad.with_answers_in_place(squad.read(data, "1.1")[0])[0]
        return kbert.BertSpanPredictor, squad.encode(questions, tokenizer, WindowRule(), with_targets=True)
    problem = classification.of_task(task, data)
    encoded = encode(problem.train, tokenizer, LENGTH, problem.targets(problem.train))
    if not problem.labels:
        return kbert.BertRegressor, encoded
    return lambda bert: kbert.BertClassifier(bert, len(problem.labels)), encoded


def train_kbert(folder: Path, start: str, task: str, data: str, steps: str = "50") -> None:
    import keras
    import tensorflow as tf

    import kbert
    from kbert.tasks.batches import training_batches
    from kbert.training.optimization import BertAdam, WarmupLinearDecay
    from kbert.weights import huggingface
    from kbert.weights.by_name import take_over

    first, tokenizer = kbert.load(start)
    head, encoded = read(task, data, tokenizer)
    keras.utils.set_random_seed(1)
    model = head(kbert.Bert(replace(first.config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)))
    take_over(model, first, "bert/")
    huggingface.write(model, tokenizer, folder / "start")

    batches = training_batches(encoded, SEQUENCES // (2 if task == "endings" else 1), 1, 1).take(int(steps))
    stored = [{name: value.numpy() for name, value in batch.items()} for batch in batches]
    rows = {f"{n}/{name}": value for n, batch in enumerate(stored) for name, value in batch.items()}
    np.savez(folder / "batches.npz", head=HEADS.get(task, "SequenceClassification"), **rows)
    losses = []

    class PerStep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            losses.append(float(logs["loss"]))
            self.model.reset_metrics()

    schedule = WarmupLinearDecay(PEAK, len(stored), len(stored) // 10)
    model.compile(BertAdam(schedule, epsilon=EPSILON, bias_correction=True), jit_compile=False)
    batches = batches.apply(tf.data.experimental.assert_cardinality(len(stored)))
    model.fit(batches, verbose=2, shuffle=False, callbacks=[PerStep()])
    (folder / "kbert.json").write_text(json.dumps(losses))
    huggingface.write(model, tokenizer, folder / "kbert")


def train_torch(folder: Path) -> None:
    import torch
    import transformers

    torch.set_num_threads(2)
    with np.load(folder / "batches.npz") as arrays:
        head = getattr(transformers, f"BertFor{arrays['head']}")
        stored = {name: torch.tensor(arrays[name]) for name in arrays.files if name != "head"}
    kind = {"problem_type": "regression"} if "0/label_values" in stored else {}
    model = head.from_pretrained(folder / "start", **kind)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, eps=EPSILON)
    steps = 1 + max(int(name.partition("/")[0]) for name in stored)
    warmup = steps // 10
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(n / warmup, (steps - n) / (steps - warmup)))
    model.train()
    losses = []
    for number in range(steps):
        batch = {name.partition("/")[2]: value for name, value in stored.items() if name.startswith(f"{number}/")}
        targets = {theirs: batch[ours] for ours, theirs in TARGETS.items() if ours in batch}
        if not kind:
            targets = {name: values.long().where(values >= 0, -100) for name, values in targets.items()}
        loss = model(
            input_ids=batch["input_ids"].long(),
            attention_mask=batch["input_mask"],
            token_type_ids=batch["segment_ids"].long(),
            **targets,
        ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    (folder / "torch.json").write_text(json.dumps(losses))
    model.save_pretrained(folder / "torch")
    shutil.copy(folder / "start" / "vocab.txt", folder / "torch")
    shutil.copy(folder / "start" / "tokenizer_config.json", folder / "torch")


def compare(folder: Path) -> None:
    kbert, torch = (np.array(json.loads((folder / f"{name}.json").read_text())) for name in ("kbert", "torch"))
    print(
        f"{len(kbert)} steps, loss {kbert[0]:.4f} to {kbert[-1]:.4f}; largest difference {abs(kbert - torch).max():.1e}"
    )


def score(folder: Path, dev: str, questions: str = "-1") -> None:
    import kbert
    from kbert.tasks import squad, squad_answers
    from kbert.tasks.squad_scores import scores_v1
    from kbert.text.windows import WindowRule

    asked = squad.read(dev, "1.1")[0]
    asked = asked[: int(questions)] if int(questions) >= 0 else asked
    for name in ("kbert", "torch"):
        model, tokenizer = kbert.load(folder / name)
        encoded, rule = squad.encode(asked, tokenizer, WindowRule()), squad_answers.AnswerRule()
        found = squad_answers.best_spans(model, encoded, WindowRule(), rule)
        texts = squad_answers.best_texts(squad_answers.join(asked, encoded, found, rule))
        print(name, {metric: round(value, 2) for metric, value in scores_v1(asked, texts).items()}, flush=True)


if __name__ == "__main__":
    mode, folder, *rest = sys.argv[1:]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    {"kbert": train_kbert, "torch": train_torch, "compare": compare, "score": score}[mode](folder, *rest)
