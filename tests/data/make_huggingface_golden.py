"""Writes huggingface/<class>/: small random BERTs of transformers with every head, as it saves them, and their answers.

    python tests/data/make_huggingface_golden.py    (needs torch and transformers; the tests need only the files)

Each folder holds what `save_pretrained` writes for the model, vocab.txt and tokenizer_config.json; answers.npz has the
same batch for all, and under `<class>/<output>` what transformers answers in float64. With --check FOLDER it loads the
folders that kbert wrote there, and says how far transformers' answers from them are.
"""

import argparse
import json
import pathlib

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).with_name("huggingface")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, *"abcdefghijklmn", *(f"##{letter}" for letter in "abcdefghijklmn"), ".", "the", "cat"]
FIELDS = {
    "vocab_size": len(PIECES),
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
    "attn_implementation": "eager",
}
LABELS = {"num_labels": 3, "id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}
# What differs, so that each is honoured: activation, epsilon, dropouts, labels.
MODELS = {
    "BertModel": {},
    "BertForPreTraining": {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5},
    "BertForMaskedLM": {"hidden_act": "relu"},
    "BertForNextSentencePrediction": {"hidden_act": "gelu_pytorch_tanh"},
    "BertForSequenceClassification": LABELS
    | {"classifier_dropout": 0.3, "problem_type": "single_label_classification"},
    "BertForTokenClassification": LABELS | {"hidden_dropout_prob": 0.2},
    "BertForQuestionAnswering": {"attention_probs_dropout_prob": 0.05},
    "BertForMultipleChoice": {},
}
ANSWERS = {
    "last_hidden_state": "sequence_output",
    "pooler_output": "pooled_output",
    "prediction_logits": "masked_lm_logits",
    "seq_relationship_logits": "next_sentence_logits",
    "start_logits": "start_logits",
    "end_logits": "end_logits",
}
LOGITS = {"BertForMaskedLM": "masked_lm_logits", "BertForNextSentencePrediction": "next_sentence_logits"}


def features() -> dict:
    random = np.random.default_rng(5)
    length, lengths = 11, np.array([11, 8, 5, 7])[:, None]
    batch = {
        "input_ids": random.integers(5, len(PIECES), (4, length)),
        "input_mask": np.arange(length) < lengths,
        "segment_ids": (np.arange(length) >= lengths // 2) & (np.arange(length) < lengths),
    }
    return {name: value.astype("int32") for name, value in batch.items()}


def answers_of(model, batch: dict) -> dict:
    names = {"input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}
    inputs = {names[name]: torch.from_numpy(value).long() for name, value in batch.items()}
    if isinstance(model, transformers.BertForMultipleChoice):
        inputs = {name: value.reshape(2, 2, -1) for name, value in inputs.items()}
    answer = model.double().eval()(**inputs)
    names = ANSWERS | {"logits": LOGITS.get(type(model).__name__, "logits")}
    return {ours: answer[theirs].detach().numpy() for theirs, ours in names.items() if theirs in answer}


def random_model(name: str, changes: dict):
    torch.manual_seed(3)
    model = getattr(transformers, name)(transformers.BertConfig(**FIELDS | changes))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            # Far enough from the initial values that each weight, biases and gammas too, changes the answers.
            parameter.copy_(torch.randn(parameter.shape) * 0.2 + parameter_name.endswith("LayerNorm.weight"))
    return model


def make() -> None:
    batch = features()
    arrays = {f"features/{name}": value for name, value in batch.items()}
    for name, changes in MODELS.items():
        model, folder = random_model(name, changes), HERE / name
        model.save_pretrained(folder)
        (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
        (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
        (folder / "generation_config.json").unlink(missing_ok=True)
        arrays |= {f"{name}/{output}": value.astype("float32") for output, value in answers_of(model, batch).items()}
    np.savez_compressed(HERE / "answers.npz", **arrays)


def check(written: pathlib.Path) -> None:
    arrays = np.load(HERE / "answers.npz")
    batch = {name.partition("/")[2]: value for name, value in arrays.items() if name.startswith("features/")}
    for name in MODELS:
        model, told = getattr(transformers, name).from_pretrained(written / name, output_loading_info=True)
        found = answers_of(model, batch)
        furthest = max(np.abs(value - arrays[f"{name}/{output}"]).max() for output, value in found.items())
        tokenizer = transformers.AutoTokenizer.from_pretrained(written / name)
        pieces = tokenizer.convert_ids_to_tokens(tokenizer("The cat. ABK")["input_ids"])
        keys = {kind: sorted(told[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")}
        print(name, f"furthest {furthest:.1e}", keys, model.config.id2label, " ".join(pieces))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", type=pathlib.Path)
    arguments = parser.parse_args()
    check(arguments.check) if arguments.check else make()
