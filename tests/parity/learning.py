"""The same start, batches and hyper-parameters in kbert and in a plain torch loop around BertForPreTraining.

    python tests/parity/learning.py kbert FOLDER CORPUS HELD_OUT VOCABULARY [STEPS]     in kbert's environment
    python tests/parity/learning.py torch FOLDER [STEPS]                                where torch and transformers are
    python tests/parity/learning.py compare FOLDER

Tiny, batch 32, length 128, dropout off. The first call writes the batches and the initial weights to FOLDER.
"""

import itertools
import json
import sys
import time
from pathlib import Path

import numpy as np

SEQUENCES, PEAK, WARMUP, HELD_OUT_BATCHES = 32, 1e-3, 20, 100


def train_kbert(folder: Path, corpus: str, held_out: str, vocabulary: str, steps: int) -> None:
    import keras

    import kbert
    from kbert.text.baselines import unigram_loss
    from kbert.training.optimization import BertAdam, WarmupLinearDecay

    tokenizer = kbert.WordPiece(vocabulary)
    write_batches(folder, tokenizer, {"train": (corpus, steps), "held_out": (held_out, HELD_OUT_BATCHES)})
    keras.utils.set_random_seed(1)
    config = kbert.BertConfig.from_size(
        "tiny", vocab_size=tokenizer.vocab_size, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    model = kbert.BertPretrainer(config)
    np.savez(folder / "start.npz", **{v.path: v.numpy() for v in model.trainable_variables})
    model.compile(BertAdam(WarmupLinearDecay(PEAK, steps, WARMUP), bias_correction=True))
    losses = []

    class PerStep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            losses.append(float(logs["loss"]))
            self.model.reset_metrics()

    data, held = stored(folder / "train.npz"), stored(folder / "held_out.npz")
    begin = time.perf_counter()
    model.fit(data, steps_per_epoch=steps, verbose=0, shuffle=False, callbacks=[PerStep()])
    seconds = time.perf_counter() - begin
    end = model.evaluate(held, verbose=0, return_dict=True)
    with np.load(folder / "train.npz") as train:
        predicted = train["masked_lm_ids"][train["masked_lm_weights"] > 0]
    unigram = unigram_loss(np.bincount(predicted, minlength=tokenizer.vocab_size), held.as_numpy_iterator())
    finish(folder / "kbert.json", losses, seconds, end["masked_lm_loss"], unigram)


def write_batches(folder: Path, tokenizer, parts: dict) -> None:
    """<name>.npz for each name of (path, number of batches), each feature stacked over the batches."""
    from kbert.text.documents import Corpus, CorpusFormat
    from kbert.text.pretraining_data import InstanceRule, corpus_dataset

    for name, (path, count) in parts.items():
        corpus = Corpus([path], CorpusFormat(documents="file"))
        batches = list(corpus_dataset(corpus, tokenizer, InstanceRule(128, 20), SEQUENCES).take(count))
        np.savez(folder / f"{name}.npz", **{key: np.stack([batch[key] for batch in batches]) for key in batches[0]})


def stored(path: Path):
    import tensorflow as tf

    with np.load(path) as arrays:
        return tf.data.Dataset.from_tensor_slices({key: arrays[key] for key in arrays.files})


def train_torch(folder: Path, steps: int) -> None:
    import torch

    torch.set_num_threads(2)
    model = new_torch_model(folder)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, eps=1e-6, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: step / WARMUP if step < WARMUP else (steps - step) / (steps - WARMUP)
    )
    batches, losses = torch_batches(folder / "train.npz"), []
    begin = time.perf_counter()
    for batch in itertools.islice(batches, steps):
        optimizer.zero_grad(set_to_none=True)
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - begin
    finish(folder / "torch.json", losses, seconds, torch_held_out_loss(model, folder))


def new_torch_model(folder: Path):
    import torch
    from transformers import BertConfig, BertForPreTraining

    weights = torch_weights(np.load(folder / "start.npz"))
    vocabulary, hidden = weights["bert.embeddings.word_embeddings.weight"].shape
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        hidden_act="gelu_new",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForPreTraining(config)
    missing = model.load_state_dict({name: torch.tensor(value) for name, value in weights.items()}, strict=False)
    assert set(missing.missing_keys) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}, missing
    model.tie_weights()
    return model


def torch_batches(path: Path):
    """The stored batches under the argument names of BertForPreTraining."""
    import torch

    with np.load(path) as arrays:
        features = {name: arrays[name] for name in arrays.files}
    for number in range(len(features["input_ids"])):
        batch = {name: torch.tensor(values[number]).long() for name, values in features.items()}
        labels = torch.full_like(batch["input_ids"], -100)
        rows, columns = np.nonzero(features["masked_lm_weights"][number])
        labels[rows, batch["masked_lm_positions"][rows, columns]] = batch["masked_lm_ids"][rows, columns]
        yield {
            "input_ids": batch["input_ids"],
            "attention_mask": batch["input_mask"],
            "token_type_ids": batch["segment_ids"],
            "labels": labels,
            "next_sentence_label": batch["next_sentence_labels"],
        }


def torch_held_out_loss(model, folder: Path) -> float:
    import torch

    model.eval()
    total = weight = 0.0
    with torch.no_grad():
        for batch in torch_batches(folder / "held_out.npz"):
            logits, chosen = model(**batch).prediction_logits, batch["labels"] >= 0
            total += torch.nn.functional.cross_entropy(logits[chosen], batch["labels"][chosen], reduction="sum").item()
            weight += chosen.sum().item()
    return total / weight


def finish(path: Path, losses: list[float], seconds: float, held_out: float, unigram: float | None = None) -> None:
    result = {"losses": losses, "seconds": seconds, "held_out_masked_lm_loss": held_out, "unigram": unigram}
    path.write_text(json.dumps(result))
    print({**result, "losses": f"{len(losses)} of them"})


def torch_weights(start) -> dict:
    """kbert's initial weights under the names and in the layouts of BertForPreTraining."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
    from make_bert_golden import PARTS, TABLES

    weights = {}
    for name in start.files:
        path, value = name.split("/", 1)[1], start[name]
        part, _, kind = path.rpartition("/")
        if path in TABLES:
            weights[TABLES[path]] = value
        else:
            end = "weight" if kind in ("kernel", "gamma") else "bias"
            weights[f"{PARTS[part]}.{end}"] = value.T if kind == "kernel" else value
    return weights


def compare(folder: Path) -> None:
    kbert, torch = (json.loads((folder / f"{name}.json").read_text()) for name in ("kbert", "torch"))
    difference = np.abs(np.subtract(kbert["losses"], torch["losses"]))
    ends = [result["held_out_masked_lm_loss"] for result in (kbert, torch)]
    print(f"largest difference of the training loss, first 50 steps: {difference[:50].max():.2e}")
    print(f"held-out masked-LM loss: kbert {ends[0]:.4f}, torch {ends[1]:.4f}, unigram {kbert['unigram']:.4f}")
    seconds = kbert["seconds"], torch["seconds"]
    print(f"seconds: kbert {seconds[0]:.1f}, torch {seconds[1]:.1f}, ratio {seconds[0] / seconds[1]:.2f}")


if __name__ == "__main__":
    mode, folder, *rest = sys.argv[1:]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if mode == "kbert":
        train_kbert(folder, *rest[:3], int(rest[3]) if len(rest) > 3 else 2000)
    elif mode == "torch":
        train_torch(folder, int(rest[0]) if rest else 2000)
    else:
        compare(folder)
