"""A model of transformers as an ONNX file, made in a process of its own: python onnx_model.py FOLDER FILE CLASS."""

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from worker import run


def session(folder: str, kind: str):
    """An ONNX Runtime session of the model in a folder, with all cores."""
    import onnxruntime

    for name in ("torch", "transformers", "onnxscript"):  # of the process below; here they would only take memory
        if find_spec(name) is None:
            raise ImportError(name=name)
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "model.onnx"
        run([sys.executable, __file__, folder, str(path), kind])
        return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def write(folder: str, path: str, kind: str) -> None:
    import torch
    import transformers

    model = getattr(transformers, kind).from_pretrained(folder).eval()

    class Called(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            outputs = self.model(input_ids=ids, attention_mask=mask)
            return (outputs.logits,) if "logits" in outputs else (outputs.last_hidden_state, outputs.pooler_output)

    ids = torch.ones((2, 16), dtype=torch.int64)
    any_shape = {0: "batch", 1: "length"}
    shapes = {"ids": any_shape, "mask": any_shape}
    names = {"input_names": ["ids", "mask"], "dynamic_shapes": shapes, "dynamo": True, "external_data": False}
    torch.onnx.export(Called(), (ids, torch.ones_like(ids)), path, verbose=False, **names)


if __name__ == "__main__":
    write(*sys.argv[1:])
