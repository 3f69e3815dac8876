"""Raw texts to probabilities of classes: Hugging Face tokenizers, ONNX Runtime, softmax."""

from onnx_model import session
from worker import checked, repeated, serve


def prepare(job):
    import numpy as np
    import onnxruntime
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(f"{job['folder']}/tokenizer.json")
    tokenizer.enable_truncation(job["sequence_length"])
    tokenizer.enable_padding()
    run = session(job["folder"], "BertForSequenceClassification").run

    def answers():
        encoded = tokenizer.encode_batch_fast(job["texts"])
        feeds = {
            "ids": np.array([one.ids for one in encoded]),
            "mask": np.array([one.attention_mask for one in encoded]),
        }
        logits = run(None, feeds)[0]
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        return exponentials / exponentials.sum(axis=1, keepdims=True)

    versions = f"tokenizers {tokenizers.__version__}, onnxruntime {onnxruntime.__version__}"
    return {"versions": versions, "check": checked(answers())}, repeated(answers)


serve(prepare)
