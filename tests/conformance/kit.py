"""What every conformance script shares: arguments, running the tools, reading tensors, and one line a check.

A script is called as `script.py --bin BUILD/bin --corpus CORPUS SUBJECT` and exits 0 when every check held, else 1.
"""
import argparse
import json
import resource
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "I64": np.int64,
          "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8, "U16": np.uint16, "U32": np.uint32,
          "U64": np.uint64, "BOOL": np.bool_, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
          "F8_E8M0": ml_dtypes.float8_e8m0fnu, "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
          "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz}
CONTROL_FLOW = {"If", "Loop", "Scan", "LSTM", "GRU", "RNN"}
# What the torch corpus was made with.
ADAMW = ["--optimizer=adamw", "--lr=0.001", "--betas=0.9,0.999", "--eps=1e-8", "--weight-decay=0.01",
         "--clip-grad-norm=1"]
LEARNING_RATE = 1e-3


class Test:
    """One script's run: where things are, a temporary folder, and the verdict so far."""

    def __init__(self, description, subject=None, flags=()):
        """`subject` is the metavariable of the positional argument: a path, or a path below the corpus. `flags` are
        pairs of a flag and its help, whose values are in `options`."""
        parser = argparse.ArgumentParser(description=description.splitlines()[0])
        parser.add_argument("--bin", type=Path, required=True, help="folder of recast-opt, recast-inspect, recast-run")
        parser.add_argument("--corpus", type=Path, required=True)
        if subject:
            parser.add_argument("subject", metavar=subject, help="a path, absolute or below the corpus")
        for flag, meaning in flags:
            parser.add_argument(flag, help=meaning)
        self.options = options = parser.parse_args()
        self.bin, self.corpus = options.bin.resolve(), options.corpus.resolve()
        self.subject = self.corpus / options.subject if subject else None
        self.failures = 0
        self.checks = 0
        self._folder = tempfile.TemporaryDirectory(prefix="recast-conformance-")
        self.temp = Path(self._folder.name)

    def tool(self, name, *arguments, ok=True, timeout=240, limit_bytes=None):
        """Runs a tool. With `ok` a failure ends the script; without, the finished process is returned as it is."""
        command = [str(self.bin / name), *map(str, arguments)]
        limit = (lambda: resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))) if limit_bytes else None
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout,
                                  cwd=self.temp, preexec_fn=limit)
        except subprocess.TimeoutExpired:
            self.stop(f"{' '.join(command)}: still running after {timeout} s")
        except FileNotFoundError:
            self.stop(f"{command[0]} does not exist: build it first")
        if ok and done.returncode != 0:
            said = (done.stderr or done.stdout).strip()[-2000:]
            self.stop(f"{' '.join(command)}: exit status {done.returncode}\n{said}")
        return done

    def check(self, holds, text):
        self.checks += 1
        self.failures += not holds
        print(("ok    " if holds else "FAIL  ") + text, flush=True)
        return bool(holds)

    def close(self, name, got, want, tolerance):
        """‖got - want‖ <= tolerance · ‖want‖; non-finite numbers never pass."""
        return self.within(name, got, want, tolerance * norm(want), f"{tolerance:g} relative")

    def within(self, name, got, want, bound, reason):
        """‖got - want‖ <= bound, an absolute number that `reason` explains."""
        if got is None:
            return self.check(False, f"{name}: missing")
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        if got.shape != want.shape:
            return self.check(False, f"{name}: shape {list(got.shape)}, expected {list(want.shape)}")
        error = norm(got - want)
        return self.check(error <= bound, f"{name}: error {error:.3g}, allowed {bound:.3g} ({reason})")

    def all_close(self, name, pairs, tolerance):
        """`close` over many tensors in one line that names the worst. pairs: name -> (got, want)."""
        worst, worst_name, missing = -1.0, "", []
        for key, (got, want) in pairs.items():
            if got is None or np.shape(got) != np.shape(want):
                missing.append(key)
                continue
            error = relative(got, want)
            if not error <= worst:  # keeps a NaN
                worst, worst_name = error, key
        if missing:
            return self.check(False, f"{name}: missing or of another shape: {', '.join(missing[:5])}")
        if not pairs:
            return self.check(True, f"{name}: none")
        return self.check(worst <= tolerance,
                          f"{name}: {len(pairs)} tensors, worst {worst:.3g} ({worst_name}), allowed {tolerance:.3g}")

    def seeds(self):
        """The subject as seeds: "7", or "0-99"."""
        first, _, last = self.options.subject.partition("-")
        return range(int(first), int(last or first) + 1)

    def stop(self, text):
        self.check(False, text)
        self.finish()

    def finish(self):
        print(f"{self.checks - self.failures} of {self.checks} checks held")
        self._folder.cleanup()
        sys.exit(1 if self.failures else 0)


def norm(x):
    return float(np.linalg.norm(np.asarray(x, np.float64).ravel()))


def relative(got, want):
    error, size = norm(np.asarray(got, np.float64) - np.asarray(want, np.float64)), norm(want)
    return error / size if size else error


def mixed_error(got, want):
    """The error measure of the cases: max|got - want| / max(1, max|want|)."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape != want.shape:
        return float("inf")
    if not want.size:
        return 0.0
    return float(np.max(np.abs(got - want)) / max(1.0, float(np.max(np.abs(want)))))


def load(path):
    """The tensors of a safetensors file, low-precision types included."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8:8 + length]), data[8 + length:]
    header.pop("__metadata__", None)
    return {name: np.frombuffer(body[slice(*t["data_offsets"])], DTYPES[t["dtype"]]).reshape(t["shape"])
            for name, t in header.items()}


def save(path, tensors):
    """Writes a safetensors file, low-precision types included."""
    names = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
    header, body = {}, b""
    for key, value in tensors.items():
        raw = np.ascontiguousarray(value).tobytes()
        header[key] = {"dtype": names[np.asarray(value).dtype], "shape": list(np.shape(value)),
                       "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + body)


def run_model(test, model, inputs, *flags):
    """The outputs of one run of an ONNX model: the inputs are the batch as it is."""
    file, data, outputs = (test.temp / n for n in ("run.onnx", "run.safetensors", "run-outputs.safetensors"))
    onnx.save(model, str(file))
    save(data, inputs)
    test.tool("recast-run", file, f"--data={data}", "--data-layout=single", "--steps=1", f"--outputs={outputs}", *flags)
    return {name: value[0] for name, value in load(outputs).items()}


def walk_nodes(graph):
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from walk_nodes(attribute.g)
            for inner in attribute.graphs:
                yield from walk_nodes(inner)


def control_flow_nodes(model):
    return [n for n in walk_nodes(model.graph) if n.op_type in CONTROL_FLOW and n.domain in ("", "ai.onnx")]


def load_model(path):
    return onnx.load(str(path), load_external_data=False)


def metadata(model):
    return {entry.key: entry.value for entry in model.metadata_props}


def mentions(text, word):
    """Whether `word` stands in `text` by itself: `w` is not mentioned by `wrong`."""
    start = 0
    while (at := text.find(word, start)) >= 0:
        before, after = text[at - 1:at], text[at + len(word):at + len(word) + 1]
        ends = [c for c, edge in ((before, word[0]), (after, word[-1])) if edge.isalnum() or edge == "_"]
        if not any(c.isalnum() or c == "_" for c in ends):
            return True
        start = at + 1
    return False


def reference(test):
    """(reference.json, tensors of reference.safetensors) of a torch model, whose folder or file is the subject."""
    folder = test.subject if test.subject.is_dir() else test.subject.parent
    test.model = folder / "model.onnx"
    test.data = folder / "reference.safetensors"
    return json.loads((folder / "reference.json").read_text()), load(test.data)
