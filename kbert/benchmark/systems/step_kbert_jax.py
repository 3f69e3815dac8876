"""A step of kbert's pre-training in Keras's fit on JAX, on a GPU where JAX has one."""

from worker import repeated, serve


def prepare(job):
    import jax
    import keras
    import numpy as np

    from kbert.config import BertConfig
    from kbert.model.pretraining import BertPretrainer
    from kbert.training.optimization import BertAdam, WarmupLinearDecay

    precision = job["setting"]["precision"]
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy("float32" if precision == "float32" else f"mixed_{precision}")
    model = BertPretrainer(BertConfig(**job["config"]))
    model.compile(BertAdam(WarmupLinearDecay(1e-4, 10**6, 10**4), bias_correction=True), jit_compile=True)
    batch = dict(np.load(job["batch"]))
    steps = 100 if jax.default_backend() == "gpu" else 10  # of a call of fit, whose beginning and end take some there

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return steps

        def __getitem__(self, number):
            return (batch,)

    round_of_fits = repeated(lambda: model.fit(Batches(), shuffle=False, verbose=0))
    versions = f"jax {jax.__version__}, keras {keras.__version__}, {jax.devices()[0].device_kind}"
    return {"versions": versions}, lambda: {"seconds": round_of_fits()["seconds"] / steps}


serve(prepare)
