"""ONNX Runtime on a batch of token ids, padded to the longest."""

from onnx_model import session
from worker import checked, padded, repeated, serve


def prepare(job):
    import onnxruntime

    run, batch = session(job["folder"], "BertModel").run, padded(job["rows"])
    feeds = {"ids": batch["input_ids"], "mask": batch["input_mask"]}
    check = checked(run(None, feeds)[0][:, 0])
    return {"versions": f"onnxruntime {onnxruntime.__version__}", "check": check}, repeated(lambda: run(None, feeds))


serve(prepare)
