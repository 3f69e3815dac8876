"""Writes bert_golden.npz: a small random BERT of transformers, a batch, and what transformers answers in float64.

    python tests/data/make_bert_golden.py        (needs torch and transformers; the tests need only the file)

Arrays: `weights/<path>` under kbert's variable paths, `features/<name>`, and for each activation
`<hidden_act>/<output>`; with gelu_tanh, `gradients/<path>` of the sum of both losses and `training/<loss>` at each of a
few steps of torch's AdamW on the batch. Row 0 of the batch is full, the others end in padding; all have two segments.
"""

import pathlib

import numpy as np
import torch
from transformers import BertConfig, BertForPreTraining

FIELDS = {
    "vocab_size": 61,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 28,
    "max_position_embeddings": 16,
}
TRAINING = {"rate": 0.02, "steps": 8}
HIDDEN_ACTS = {"relu": "relu", "gelu_erf": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
LAYER_PARTS = {
    "self_attention/query": "attention.self.query",
    "self_attention/key": "attention.self.key",
    "self_attention/value": "attention.self.value",
    "self_attention/projection": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "projection": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
PARTS = {
    "bert/embeddings/layer_norm": "bert.embeddings.LayerNorm",
    "bert/pooler": "bert.pooler.dense",
    "masked_lm_dense": "cls.predictions.transform.dense",
    "masked_lm_norm": "cls.predictions.transform.LayerNorm",
    "next_sentence_dense": "cls.seq_relationship",
}
for number in range(FIELDS["num_hidden_layers"]):
    for ours, theirs in LAYER_PARTS.items():
        PARTS[f"bert/encoder_layer_{number + 1}/{ours}"] = f"bert.encoder.layer.{number}.{theirs}"
TABLES = {
    "bert/embeddings/token_embeddings": "bert.embeddings.word_embeddings.weight",
    "bert/embeddings/segment_embeddings": "bert.embeddings.token_type_embeddings.weight",
    "bert/embeddings/position_embeddings": "bert.embeddings.position_embeddings.weight",
    "masked_lm_bias": "cls.predictions.bias",
}


def random_state(model) -> dict:
    """Weights far enough from their initial values that each of them, biases and gammas too, changes the outputs."""
    torch.manual_seed(7)
    state = {}
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            is_gamma = name.endswith("LayerNorm.weight")
            # Rounded to float32, which is what the file holds.
            state[name] = (torch.randn(value.shape) * 0.2 + float(is_gamma)).float().double()
    state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
    state["cls.predictions.decoder.bias"] = state["cls.predictions.bias"]
    return state


def renamed(state) -> dict:
    arrays = {ours: state[theirs] for ours, theirs in TABLES.items()}
    for ours, theirs in PARTS.items():
        weight, bias = state[f"{theirs}.weight"], state[f"{theirs}.bias"]
        if "norm" in ours:
            arrays[f"{ours}/gamma"], arrays[f"{ours}/beta"] = weight, bias
        else:
            arrays[f"{ours}/kernel"], arrays[f"{ours}/bias"] = weight.T, bias
    return {f"bert_pretrainer/{name}": value.numpy().astype("float32") for name, value in arrays.items()}


def random_features() -> dict:
    random = np.random.default_rng(11)
    batch, length, predictions = 3, 13, 4
    features = {
        "input_ids": random.integers(0, FIELDS["vocab_size"], (batch, length)),
        "input_mask": np.arange(length)[None] < np.array([length, 9, 5])[:, None],
        "segment_ids": (np.arange(length)[None] >= np.array([6, 4, 3])[:, None]),
        "masked_lm_positions": random.integers(0, 5, (batch, predictions)),
        "masked_lm_ids": random.integers(0, FIELDS["vocab_size"], (batch, predictions)),
        "next_sentence_labels": np.array([1, 0, 1]),
    }
    return {name: value.astype("int32") for name, value in features.items()} | {
        "masked_lm_weights": np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], "float32")
    }


def outputs_of(model, features) -> dict:
    tensors = {name: torch.from_numpy(value).long() for name, value in features.items()}
    answer = model(
        input_ids=tensors["input_ids"],
        attention_mask=tensors["input_mask"],
        token_type_ids=tensors["segment_ids"],
        output_hidden_states=True,
        output_attentions=True,
    )
    rows = torch.arange(len(tensors["input_ids"]))[:, None]
    logits = answer.prediction_logits[rows, tensors["masked_lm_positions"]]
    chosen = features["masked_lm_weights"] > 0
    loss = torch.nn.functional.cross_entropy
    return {
        "all_layer_outputs": torch.stack(answer.hidden_states),
        "attention_probabilities": torch.stack(answer.attentions),
        "pooled_output": model.bert.pooler(answer.hidden_states[-1]),
        "masked_lm_logits": logits,
        "next_sentence_logits": answer.seq_relationship_logits,
        "masked_lm_loss": loss(logits[chosen], tensors["masked_lm_ids"][chosen]),
        "next_sentence_loss": loss(answer.seq_relationship_logits, tensors["next_sentence_labels"]),
    }


def training_losses(model, features) -> dict:
    """Both losses before each of some updates: clip to norm 1, AdamW, decay of matrices alone, no dropout."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=TRAINING["rate"], betas=(0.9, 0.999), eps=1e-6)
    losses = {"masked_lm_loss": [], "next_sentence_loss": []}
    for _ in range(TRAINING["steps"]):
        outputs = outputs_of(model, features)
        for name, values in losses.items():
            values.append(outputs[name].item())
        optimizer.zero_grad()
        sum(outputs[name] for name in losses).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {name: np.array(values, "float32") for name, values in losses.items()}


def main():
    features = random_features()
    arrays = {f"config/{name}": np.array(value) for name, value in FIELDS.items()}
    arrays |= {f"features/{name}": value for name, value in features.items()}
    for ours, theirs in HIDDEN_ACTS.items():
        model = BertForPreTraining(BertConfig(**FIELDS, hidden_act=theirs, attn_implementation="eager"))
        model = model.double().eval()
        state = random_state(model)
        missing = model.load_state_dict(state, strict=False).missing_keys
        assert not [name for name in missing if "position_ids" not in name], missing
        outputs = outputs_of(model, features)
        arrays |= {f"{ours}/{name}": value.detach().numpy().astype("float32") for name, value in outputs.items()}
    arrays |= {f"weights/{path}": value for path, value in renamed(state).items()}

    (outputs["masked_lm_loss"] + outputs["next_sentence_loss"]).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    arrays |= {f"gradients/{path}": value for path, value in renamed(gradients).items()}
    arrays |= {f"training/{name}": values for name, values in training_losses(model, features).items()}
    arrays["training/rate"] = np.array(TRAINING["rate"])
    np.savez_compressed(pathlib.Path(__file__).with_name("bert_golden.npz"), **arrays)


if __name__ == "__main__":
    main()
