"""Training the corpus in every precision preset, beside f32.

What preset_training.py, low_precision.py and bench/presets share.
"""
import json
import re
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import kit
import numpy as np
import onnx

# How far the final loss may be from that of f32, as a part of it.
PRESETS = {"tf32": 0.03, "bf16": 0.03, "f16": 0.03,
           **{name: 0.05 for name in ("fp8-delayed", "fp8-current", "fp8-row", "fp8-block", "mxfp8")}}
# Of the type that holds the operands of products: a number is off by at most this part of itself.
ROUNDOFF = {"tf32": 2.0 ** -11, "bf16": 2.0 ** -8, "f16": 2.0 ** -11,
            **{name: 2.0 ** -4 for name in PRESETS if "fp8" in name}}
STEPS = 50
# The final loss is the mean over the last steps: whole passes over the three batches that most models have.
LAST = 6
PERTURBED_RUNS = 4
# As networks are trained: a tenth of the steps to warm up, since the first steps of AdamW follow the signs of gradients
# whatever their size, and a falling rate, since at a constant one the loss of small models jumps from step to step.
SCHEDULE = ["--lr-schedule=cosine", f"--warmup-steps={STEPS // 10}"]


@dataclass
class Subject:
    """A model with its batches (input -> array, axis 0 indexes batches), the flags of its step, and its parameters."""
    name: str
    model: Path
    batches: dict
    flags: list
    trainable: set

    @property
    def count(self):
        return len(next(iter(self.batches.values())))

    @property
    def learning_rate(self):
        return next(float(f.removeprefix("--lr=")) for f in self.flags if f.startswith("--lr="))


def subject(folder):
    """The subject in a folder of the corpus: of a torch model, or of one of the dynamics."""
    if folder.parent.name != "dynamics":
        facts, tensors = json.loads((folder / "reference.json").read_text()), kit.load(folder / "reference.safetensors")
        batches = {n[3:]: v for n, v in tensors.items() if n.startswith("in.")}
        return Subject(folder.name, folder / "model.onnx", batches, kit.ADAMW, set(facts["trainable"]))
    trace, tensors = json.loads((folder / "trace.json").read_text()), kit.load(folder / "trace.safetensors")
    optimizer, inputs = trace["optimizer"], {i.name for i in kit.load_model(folder / "model.onnx").graph.input}
    flags = [f"--optimizer={optimizer['kind']}", f"--lr={optimizer['lr']}", f"--clip-grad-norm={trace['max_norm']}"]
    if "betas" in optimizer:
        flags += ["--betas=" + ",".join(map(str, optimizer["betas"])), f"--eps={optimizer['eps']}",
                  f"--weight-decay={optimizer['weight_decay']}"]
    if "momentum" in optimizer:
        flags.append(f"--momentum={optimizer['momentum']}")
    if "micro_batches" in trace:
        flags.append(f"--accumulate={trace['micro_batches']}")
    # Some batches of a trace overflow f16 on purpose. f32 learns from them and f16 skips them: nothing to compare.
    batches = {n: np.delete(v, trace.get("overflow_steps", []), axis=0) for n, v in tensors.items() if n in inputs}
    trainable = {n.removeprefix("init.") for n in tensors if n.startswith("init.")}
    return Subject(f"dynamics/{folder.name}", folder / "model.onnx", batches, flags, trainable)


def subjects(corpus):
    """Every model of the corpus that trains: without control flow and recurrent operators."""
    folders = [m.parent for m in sorted((corpus / "torch").glob("*/model.onnx"))
               if not kit.control_flow_nodes(kit.load_model(m))]
    return [subject(f) for f in folders + [m.parent for m in sorted((corpus / "dynamics").glob("*/model.onnx"))]]


class Trainer:
    """Rewrites and trains one subject. `tool(name, *arguments)` runs a tool and does not return when it fails."""

    def __init__(self, subject, tool, temp, steps=STEPS):
        self.subject, self.tool, self.temp, self.steps = subject, tool, Path(temp), steps

    def rewrite(self, precision, *flags):
        """(the step model, what recast-opt said)."""
        step = self.temp / ("".join([precision, *flags]) + ".onnx")
        done = self.tool("recast-opt", self.subject.model, f"--precision={precision}", *self.subject.flags, *flags,
                         "-o", step)
        return step, done.stderr

    def run(self, step, *flags):
        """(the losses of the steps that were taken, how many were skipped).

        A step that overflows is skipped and its batch is given again, so whatever the precision, the same batches are
        learned from in the same order. Which steps overflow is known after a run: it is repeated until each skipped
        step is followed by its own batch.
        """
        skips = []
        while True:
            order = self.order(skips)
            if len(order) > 2 * self.steps:
                return np.full(self.steps, np.nan), len(order) - self.steps
            out = self.run_once(step, order, *flags)
            now = out["found_inf"].ravel().astype(bool) if "found_inf" in out else np.zeros(len(order), bool)
            if self.order(now) == order:
                return out["loss"].astype(np.float64).ravel()[~now], int(now.sum())
            # The run was right up to the first step that did what was not foreseen; that step now is.
            foreseen = np.resize(np.append(np.asarray(skips, bool), np.zeros(len(order), bool)), len(order))
            skips = now[:np.flatnonzero(now != foreseen)[0] + 1]

    def order(self, skips):
        """The batch of every step until `steps` are taken; beyond `skips` none is skipped."""
        order, taken = [], 0
        while taken < self.steps:
            skipped = len(order) < len(skips) and skips[len(order)]
            order.append(taken % self.subject.count)
            taken += not skipped
        return order

    def run_once(self, step, order, *flags):
        data, outputs = self.temp / "data.safetensors", self.temp / "outputs.safetensors"
        kit.save(data, {n: v[order] for n, v in self.subject.batches.items()})
        self.tool("recast-run", step, f"--data={data}", "--data-layout=batches", f"--steps={len(order)}",
                  f"--outputs={outputs}", *flags)
        return kit.load(outputs)

    def perturbed(self, step, roundoff, runs=PERTURBED_RUNS):
        """The f32 losses of runs whose parameters were changed by up to `roundoff` of themselves, each at random."""
        model, state = kit.load_model(step), self.temp / "perturbed.safetensors"
        inputs = {i.name for i in model.graph.input}
        initial = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer if i.name in inputs}
        for seed in range(runs):
            rng = np.random.Generator(np.random.PCG64(seed))
            kit.save(state, {n: (v * (1 + roundoff * rng.uniform(-1, 1, v.shape))).astype(v.dtype)
                             if n in self.subject.trainable else v for n, v in initial.items()})
            yield self.run(step, f"--state-in={state}")[0]


def final(losses):
    return float(np.mean(losses[-LAST:]))


class Comparison:
    """The final losses of one subject's presets, beside f32."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.losses, _ = trainer.run(trainer.rewrite("f32")[0], *SCHEDULE)
        self.final = final(self.losses)
        # A loss near zero has no relative precision to keep: a tenth of the first loss is the least measure.
        self.measure = max(abs(self.final), 0.1 * abs(self.losses[0]))

    @property
    def learns(self):
        return bool(np.isfinite(self.losses).all()) and self.final < self.losses[0]

    def preset(self, name):
        step, said = self.trainer.rewrite(name)
        losses, skipped = self.trainer.run(step, *SCHEDULE)
        error = abs(final(losses) - self.final) / self.measure
        counted = re.search(r"(\d+) of (\d+) matrix products", said)
        return Outcome(final(losses), error, bool(error <= PRESETS[name]), skipped,
                       counted and (int(counted[1]), int(counted[2])))


# error: the difference of the final losses, as a part of Comparison.measure.
# products: (how many run in fp8, of how many) or None.
Outcome = namedtuple("Outcome", "final error met skipped products")
