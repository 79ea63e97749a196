"""Flags of optimizers, clipping and loss scale: defaults per optimizer, and wrong usage, which exits with 2.

Defaults are those of torch.optim (Lion: of its authors), read from the constants and the initial state of step models.
"""
import gradients_model
import kit
import numpy as np
import onnx
from onnx import numpy_helper

# name -> (learning rate, numbers that the update takes besides it, in the order of the operator's operands)
DEFAULTS = {
    "adamw": (1e-3, [0.9, 0.999, 1e-8, 1e-2]), "adam": (1e-3, [0.9, 0.999, 1e-8, 0]), "sgd": (1e-3, [0, 0, 0]),
    "adagrad": (1e-2, [0, 1e-10, 0]), "rmsprop": (1e-2, [0.99, 1e-8, 0, 0]),
    "nadam": (2e-3, [0.9, 0.999, 1e-8, 0, 4e-3]), "radam": (1e-3, [0.9, 0.999, 1e-8, 0]),
    "lion": (1e-4, [0.9, 0.99, 0]),
}
WRONG = [
    (["--optimizer=adamax"], "adagrad"), (["--momentum=0.9"], "adamw does not use it"),
    (["--optimizer=sgd", "--betas=0.9,0.99"], "sgd does not use it"), (["--optimizer=lion", "--eps=1e-6"], "--eps"),
    (["--optimizer=adam", "--centered"], "--centered"), (["--optimizer=rmsprop", "--amsgrad"], "--amsgrad"),
    (["--optimizer=sgd", "--nesterov"], "--momentum"),
    (["--optimizer=sgd", "--nesterov", "--momentum=0.9", "--dampening=0.5"], "--dampening"),
    (["--lr=-1"], "--lr=-1"), (["--lr=fast"], "--lr=fast"), (["--lr=nan"], "--lr=nan"),
    (["--betas=0.9"], "two numbers"), (["--optimizer=lion", "--betas=1,0.9"], "--betas: beta1=1"),
    (["--betas=0.9,1"], "beta2=1"), (["--eps=-1e-8"], "--eps"), (["--weight-decay=-1"], "--weight-decay"),
    (["--optimizer=rmsprop", "--alpha=2"], "--alpha=2"), (["--amsgrad=maybe"], "--amsgrad=maybe"),
    (["--ema=1.5"], "--ema"), (["--ema=-0.1"], "--ema"), (["--clip-grad-norm=-1"], "--clip-grad-norm"),
    (["--clip-grad-value=nan"], "--clip-grad-value"),
    (["--clip-grad-norm=1", "--clip-grad-norm-type=0.5"], "from 1 on"),
    (["--clip-grad-norm-type=1"], "--clip-grad-norm=X"),
    (["--weights=ema"], "--state-in"), (["--weights=mean"], "--weights"),
    (["--loss-scale-growth=1"], "--loss-scale-growth"), (["--loss-scale-backoff=1"], "--loss-scale-backoff"),
    (["--loss-scale-interval=0"], "--loss-scale-interval"), (["--loss-scale-hysteresis=0"], "--loss-scale-hysteresis"),
    (["--loss-scale-init=0"], "--loss-scale-init"),
    (["--loss-scale-min=4", "--loss-scale-max=2"], "--loss-scale-max=2"),
    (["--loss-scale-max=high"], "--loss-scale-max=high"), (["--loss-scale=inf"], "--loss-scale=inf"),
]
RIGHT = [
    ["--loss-scale=dynamic", "--loss-scale-min=", "--loss-scale-max="],
    ["--optimizer=sgd", "--momentum=0.9", "--nesterov"],
    ["--optimizer=adagrad", "--initial-accumulator-value=0.5"],
    ["--optimizer=adam", "--amsgrad", "--decoupled-weight-decay"],
    ["--clip-grad-norm=1", "--clip-grad-norm-type=inf", "--clip-grad-value=0.5"],
]


def constants(model):
    """name -> value of initializers and Constant nodes."""
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            values[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return values


def main():
    test = kit.Test(__doc__)
    model, step = test.temp / "model.onnx", test.temp / "step.onnx"
    gradients_model.write(model, {"w": np.ones((2, 2))})
    for name, (lr, numbers) in DEFAULTS.items():
        test.tool("recast-opt", model, f"--optimizer={name}", "-o", step)
        written = onnx.load(str(step))
        values = constants(written)
        (update,) = [n for n in written.graph.node if n.domain == "recast" and n.op_type == name]
        found = [float(values[i]) for i in update.input if i in values and values[i].dtype == np.float64
                 and values[i].ndim == 0 and i != "lr"]
        test.check(float(values["lr"]) == lr, f"{name}: learning rate {float(values['lr'])!r}, expected {lr!r}")
        test.check(found == numbers, f"{name}: {found}, expected {numbers}")
        step.unlink()
    for flags, phrase in WRONG:
        done = test.tool("recast-opt", model, *flags, "-o", step, ok=False)
        lines = done.stderr.strip().splitlines()
        test.check(done.returncode == 2 and len(lines) == 1 and phrase in lines[0] and not step.exists(),
                   f"{' '.join(flags)}: exit {done.returncode}, {done.stderr.strip()}")
    for flags in RIGHT:
        done = test.tool("recast-opt", model, *flags, "-o", step, ok=False)
        test.check(done.returncode == 0, f"{' '.join(flags)} is taken {done.stderr.strip()}")
    test.finish()


if __name__ == "__main__":
    main()
