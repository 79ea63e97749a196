"""Damaged files, for every tool that reads them: a run, or exit status 1 with an error that names the file.

The subject is a seed, or a range of them as 0-99. Each takes one kind of file, cuts it, flips bits, puts in, takes out
or repeats bytes, or fills a stretch with one byte, and has a tool read it with outputs that exist already. No
tolerance: no signal, no hang, no more than ADDRESS_SPACE; an error leaves every output as it was and nothing else beside; a
rewritten model passes onnx.checker where the damaged one does.
"""
import shutil
import sys
import traceback

import kit
import numpy as np
import onnx

SECONDS = 60
ADDRESS_SPACE = 4 << 30  # A tool maps 1 GiB of libraries; the models here have 100 KiB.
CHECKPOINT = "step-00000001.safetensors"
BEFORE = b"what was there before"
POLICY = """rules:
  - op: MatMul
    class: low
"""


class Broken(Exception):
    """A promise that was not kept."""


def damage(rng, data):
    """(damaged bytes, in words)."""
    data = bytearray(data)
    at = int(rng.integers(len(data)))
    # Half of all damages hit the first bytes, where most of what says how to read the rest lies.
    if rng.random() < 0.5:
        at = int(rng.integers(min(len(data), 400)))
    kind = int(rng.integers(7))
    length = int(rng.choice([1, 2, 8, 100]))
    if kind == 0:
        return bytes(data[:at]), f"cut at {at}"
    if kind == 1:
        data[at] ^= 1 << int(rng.integers(8))
        return bytes(data), f"a bit flipped at {at}"
    if kind == 2:
        for place in rng.integers(len(data), size=8):
            data[place] ^= 1 << int(rng.integers(8))
        return bytes(data), "eight bits flipped"
    if kind == 3:
        return bytes(data[:at] + rng.bytes(length) + data[at:]), f"{length} bytes put in at {at}"
    if kind == 4:
        return bytes(data[:at] + data[at + length:]), f"{length} bytes taken out at {at}"
    if kind == 5:
        return bytes(data[:at + length] + data[at:]), f"{length} bytes twice at {at}"
    fill = int(rng.choice([0, 0x7F, 0x80, 0xFF]))
    data[at:at + length] = bytes([fill]) * min(length, len(data) - at)
    return bytes(data), f"{length} bytes of {fill:#x} at {at}"


class Files:
    """Whole files of every kind, made once, and how each is read: the tool, its arguments and outputs."""

    def __init__(self, test):
        self.test, self.folder = test, test.temp / "whole"
        self.folder.mkdir()
        source = test.corpus / "torch/mlp"
        self.data = {n[3:]: v for n, v in kit.load(source / "reference.safetensors").items() if n.startswith("in.")}
        self.data = {n: v.astype(np.float32) if v.dtype.kind == "f" else v for n, v in self.data.items()}
        at = lambda name: self.folder / name
        shutil.copy(source / "model.onnx", at("model.onnx"))
        model = onnx.load(str(at("model.onnx")))
        at("model.onnxtxt").write_text(onnx.printer.to_text(model))
        test.tool("recast-opt", at("model.onnx"), "--dim=batch=16", "--loss-scale=dynamic", "-o", at("step.onnx"))
        test.tool("recast-opt", at("model.onnx"), "--emit=mlir", "-o", at("model.mlir"))
        test.tool("recast-opt", at("model.onnx"), "--emit=training-info", "-o", at("info.onnx"))
        test.tool("recast-opt", at("step.onnx"), "--emit=plan", "-o", at("step.plan"))
        onnx.save(model, str(at("external.onnx")), save_as_external_data=True, location="weights.bin", size_threshold=0)
        kit.save(at("data.safetensors"), self.data)
        np.savez(at("data.npz"), **self.data)
        np.savez_compressed(at("packed.npz"), **self.data)
        self.run_flags = ["--data-layout=batches", "--steps=2"]
        test.tool("recast-run", at("step.onnx"), f"--data={at('data.safetensors')}", *self.run_flags,
                  f"--state-out={at('state.safetensors')}")
        test.tool("recast-run", at("step.onnx"), f"--data={at('data.safetensors')}", "--data-layout=batches",
                  "--steps=1", "--checkpoint-every=1", f"--checkpoint-dir={self.folder}")
        at("policy.yaml").write_text(POLICY)
        at("rates.txt").write_text("0.1\n0.01\n")

    def kinds(self):
        """kind -> (file to damage, files beside it, command as a function of the folder, its outputs)."""
        opt = lambda name, *flags: (lambda f: ["recast-opt", f / name, *flags, "-o", f / "out.onnx"])
        train = lambda step, data, *flags: (lambda f: [
            "recast-exec" if step.endswith(".plan") else "recast-run", f / step, f"--data={f / data}", *self.run_flags,
            f"--outputs={f / 'outputs'}", f"--state-out={f / 'new.state'}", f"--metrics={f / 'log.jsonl'}",
            *[flag.replace("@", str(f) + "/") for flag in flags]])
        rewritten, ran = ["out.onnx"], ["outputs", "new.state"]
        return {
            "model": ("model.onnx", [], opt("model.onnx"), rewritten),
            "model, bf16": ("model.onnx", [], opt("model.onnx", "--precision=bf16", "--accumulate=2"), rewritten),
            "model, as it is": ("model.onnx", [], opt("model.onnx", "--emit=forward"), rewritten),
            "text": ("model.onnxtxt", [], opt("model.onnxtxt"), rewritten),
            "mlir": ("model.mlir", [], opt("model.mlir"), rewritten),
            "training info": ("info.onnx", [], opt("info.onnx", "--memory-budget=min", "--dim=batch=4"), rewritten),
            "external": ("external.onnx", ["weights.bin"], opt("external.onnx"), rewritten),
            "weights": ("weights.bin", ["external.onnx"], opt("external.onnx"), rewritten),
            "inspected": ("step.onnx", [], lambda f: ["recast-inspect", f / "step.onnx", "--verify",
                                                      f"--json={f / 'facts.json'}"], ["facts.json"]),
            "step": ("step.onnx", ["data.safetensors"], train("step.onnx", "data.safetensors"), ran),
            "plan": ("step.plan", ["step.onnx", "data.safetensors"], train("step.plan", "data.safetensors"), ran),
            "plan's model": ("step.onnx", ["step.plan", "data.safetensors"], train("step.plan", "data.safetensors"),
                             ran),
            "data": ("data.safetensors", ["step.onnx"], train("step.onnx", "data.safetensors"), ran),
            "npz": ("data.npz", ["step.onnx"], train("step.onnx", "data.npz"), ran),
            "packed npz": ("packed.npz", ["step.onnx"], train("step.onnx", "packed.npz"), ran),
            "state": ("state.safetensors", ["step.onnx", "data.safetensors"],
                      train("step.onnx", "data.safetensors", "--state-in=@state.safetensors"), ran),
            "inference state": ("state.safetensors", ["model.onnx"], lambda f: [
                "recast-opt", f / "model.onnx", "--emit=inference", f"--state-in={f / 'state.safetensors'}", "-o",
                f / "out.onnx"], rewritten),
            "checkpoint": (CHECKPOINT, ["step.onnx", "data.safetensors"],
                           train("step.onnx", "data.safetensors", "--resume", "--checkpoint-dir=@"), ran),
            "policy": ("policy.yaml", ["model.onnx"], lambda f: [
                "recast-opt", f / "model.onnx", "--precision=bf16", f"--policy={f / 'policy.yaml'}", "-o",
                f / "out.onnx"], rewritten),
            "rates": ("rates.txt", ["step.onnx", "data.safetensors"],
                      train("step.onnx", "data.safetensors", "--lr-schedule=@rates.txt"), ran),
        }


def passes_checker(path):
    try:
        onnx.checker.check_model(str(path), full_check=True)
        return True
    except Exception:  # the checker has no common base class for its errors
        return False


def check_seed(test, files, seed):
    rng = np.random.Generator(np.random.PCG64(seed))
    kinds = files.kinds()
    kind = list(kinds)[seed % len(kinds)]
    name, beside, command, outputs = kinds[kind]
    folder = test.temp / "now"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for other in beside:
        shutil.copy(files.folder / other, folder)
    data, words = damage(rng, (files.folder / name).read_bytes())
    (folder / name).write_bytes(data)
    for output in outputs:
        (folder / output).write_bytes(BEFORE)
    known = {p.name for p in folder.iterdir()} | {"log.jsonl"}
    tool, *arguments = command(folder)
    done = test.tool(tool, *arguments, ok=False, timeout=SECONDS, limit_bytes=ADDRESS_SPACE)
    what = f"{seed}: {kind}, {words}"
    said = done.stderr.strip().splitlines()
    left = sorted({p.name for p in folder.iterdir()} - known)
    if left:
        raise Broken(f"{what}: leaves {left} behind")
    if done.returncode == 0:
        if "out.onnx" in outputs and name.endswith(".onnx") and passes_checker(folder / name) and \
                not passes_checker(folder / "out.onnx"):
            raise Broken(f"{what}: the result does not pass onnx.checker")
        return f"{what}: fine"
    # recast-inspect --verify judges the graph, and writes its facts with the verdict.
    judged = tool == "recast-inspect" and (folder / "facts.json").read_bytes() != BEFORE
    if done.returncode != 1:
        raise Broken(f"{what}: exit status {done.returncode}: {done.stderr[-800:]}")
    errors = [line for line in said if "error: " in line]
    if not errors or (len(errors) > 1 and not judged):
        raise Broken(f"{what}: {len(errors)} errors: {done.stderr[-800:]}")
    if len(errors[0]) > 2000:
        raise Broken(f"{what}: an error of {len(errors[0])} characters: {errors[0][:300]}")
    for output in outputs:
        if (folder / output).read_bytes() != BEFORE and not judged:
            raise Broken(f"{what}: {output} has changed, beside the error {errors[0]}")
    return f"{what}: {errors[0][:160]}"


def main():
    test = kit.Test(__doc__, "SEEDS")
    files = Files(test)
    for seed in test.seeds():
        try:
            test.check(True, check_seed(test, files, seed))
        except Broken as broken:
            test.check(False, str(broken))
        except Exception:
            test.check(False, f"{seed}: {traceback.format_exc()}")
    test.finish()


if __name__ == "__main__":
    sys.exit(main())
