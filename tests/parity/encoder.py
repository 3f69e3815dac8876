"""A real encoder of Hugging Face's, in kbert beside transformers: token ids, last layer, mean-pooled sentence vectors.

python tests/parity/encoder.py --model FOLDER --text FILE... --answers FILE     with transformers: writes answers
python tests/parity/encoder.py --model FOLDER --text FILE... --compare FILE     with kbert: compares with them
"""

import argparse
import re

import numpy as np

LENGTH, SENTENCES = 128, 200


def sentences(paths: list[str]) -> list[str]:
    text = " ".join(open(path, encoding="utf-8").read() for path in paths)
    found = [sentence.strip() for sentence in re.split(r"(?<=[.!?])\s+", text) if 20 < len(sentence) < 600]
    return found[:: max(1, len(found) // SENTENCES)][:SENTENCES]


def mean_pooled(vectors, mask):  # [B, S, H], [B, S] -> [B, H]
    return (vectors * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)


def transformers_answers(folder: str, texts: list[str]) -> dict:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)(
        texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt"
    )
    with torch.inference_mode():
        vectors = AutoModel.from_pretrained(folder).eval()(**tokens).last_hidden_state.numpy()
    return {"input_ids": tokens["input_ids"].numpy(), "mask": tokens["attention_mask"].numpy(), "vectors": vectors}


def compare(folder: str, texts: list[str], expected) -> None:
    import kbert
    from kbert.text.packing import pack, special_ids

    model, tokenizer = kbert.load(folder)
    features = pack(tokenizer(texts), None, LENGTH, special_ids(tokenizer))
    vectors = model.bert(features)["sequence_output"].numpy()
    mask = features["input_mask"].numpy()
    real = mask[..., None] > 0
    pooled = mean_pooled(vectors, mask) - mean_pooled(expected["vectors"], expected["mask"])
    equal = np.array_equal(features["input_ids"], expected["input_ids"])
    print(f"{len(texts)} sentences, {int(mask.sum())} tokens, ids equal: {equal}")
    print(f"last layer, furthest on real tokens: {np.abs((vectors - expected['vectors']) * real).max():.1e}")
    print(f"mean-pooled, furthest: {np.abs(pooled).max():.1e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--answers")
    parser.add_argument("--compare")
    flags = parser.parse_args()
    if flags.answers:
        np.savez(flags.answers, **transformers_answers(flags.model, sentences(flags.text)))
    if flags.compare:
        compare(flags.model, sentences(flags.text), np.load(flags.compare))
