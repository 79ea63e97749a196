"""PyTorch and recast training the same models: what bench/checkpoint and bench/training share.

PyTorch's side is peer_torch.py of the shared benchmarks, in an environment of its own.
"""
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parent.parent
NAME = Path(sys.argv[0]).name
PACKAGES = ["torch==2.15.0", "transformers==5.24.0", "onnx==1.23.2", "onnxscript==0.7.2",
            "torchvision==0.29.2"]
WARM_UP = 2


def environment(folder):
    """The peer's Python; installs it the first time."""
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"Installing {', '.join(PACKAGES)} into {folder} (about 1 GB)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        (folder / "ready").touch()
    return python


class Failed(SystemExit):
    """A command that ended with an error; its message, unless somebody catches it."""


def run(command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{NAME}: {' '.join(map(str, command))}: exit status {done.returncode}\n{done.stderr[-2000:].strip()}")
    return done


def peak_resident(command):
    """Runs a command; its peak resident set in bytes."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{NAME}: {' '.join(map(str, command))}: exit status {process.returncode}\n{said.decode()[-2000:]}")
    return usage.ru_maxrss * 1024


def write_batch(forward, path):
    """Random token numbers, or random pictures and labels, in the shapes of the graph's inputs."""
    random, batch = np.random.default_rng(1), {}
    for value in onnx.load(str(forward), load_external_data=False).graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        is_float = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        batch[value.name] = random.standard_normal(shape, np.float32) if is_float else random.integers(0, 10, shape)
    save_file(batch, str(path))


class Measured:
    """One way to train: the median step of the best process, and the least peak seen."""

    def __init__(self, name):
        self.name, self.seconds, self.bytes, self.arena = name, [], [], None

    @property
    def time(self):
        return min(self.seconds)

    @property
    def memory(self):
        return min(self.bytes)


class Torch(Measured):
    """`config` is one of peer_torch.py: eager or compile, and a precision."""

    def __init__(self, name, python, script, model, config, options):
        super().__init__(name)
        self.command = [python, script, "--one", "--models", model, "--configs", config, "--steps", options.steps,
                        "--warmup", WARM_UP]

    def measure(self):
        row = json.loads(run(self.command).stdout.splitlines()[-1])
        self.seconds.append(row["median_ms"] / 1e3)
        self.bytes.append(row["peak_rss_mb"] * 2 ** 20)


class Recast(Measured):
    """`forward` lies in a folder with batch.safetensors, which gets this one's files too."""

    def __init__(self, name, options, forward, precision, flags=()):
        super().__init__(name)
        temp = forward.parent
        self.step, self.metrics = temp / f"{name}.onnx", temp / f"{name}.jsonl"
        precision = {"fp32": "f32"}.get(precision, precision)
        run([options.bin / "recast-opt", forward, "-o", self.step, f"--precision={precision}", "--optimizer=adamw",
             "--lr=1e-4", "--clip-grad-norm=1", *flags])
        self.command = [options.bin / "recast-run", self.step, f"--data={temp / 'batch.safetensors'}",
                        "--data-layout=single", f"--steps={WARM_UP + options.steps}", f"--metrics={self.metrics}"]
        text = run([options.bin / "recast-inspect", self.step, "--memory"]).stdout
        self.arena = int(re.search(r"^  arena .* (\d+) bytes", text, re.M)[1])

    def measure(self):
        self.bytes.append(peak_resident(self.command))
        lines = [json.loads(line) for line in self.metrics.read_text().splitlines()]
        self.seconds.append(statistics.median(line["seconds"] for line in lines[WARM_UP:]))
