"""An experiment of docs/breaking: its commands give the output that its page shows, and what the page claims holds.

The commands of a page's `console` blocks run in a folder with the experiment's model and data. An excerpt must appear
line by line in what a command prints; `...` at the end of a line stands for the rest of it. A number with a point or an
exponent may differ by 2 %: products in 16 and 8 bits sum in another order on another processor. Whole numbers may not.
A command whose excerpt has an error must exit with 1, any other with 0.

With --plots=DIR the curves of the page's plot are written there for docs/breaking/plot.py.
"""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import breaking_models
import kit
import numpy as np
import onnx

DOCS = Path(__file__).resolve().parents[2] / "docs" / "breaking"
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?")
NUMBERS_DIFFER = 0.02
# f32 against f32 in another order of sums, over tens of steps: as in accumulation.py.
F32 = 1e-4


def commands(page):
    """(command, excerpt lines) of the page's console blocks, in order."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", page, re.M | re.S):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.strip() != "...":
                found[-1][1].append(line)
    return found


def same_number(got, want):
    if re.fullmatch(r"[-+]?\d+", want):
        return got == want
    return abs(float(got) - float(want)) <= NUMBERS_DIFFER * abs(float(want))


def same_line(got, want):
    texts, numbers = NUMBER.split(want.removesuffix("...").rstrip()), NUMBER.findall(want)
    pattern = f"({NUMBER.pattern})".join(map(re.escape, texts)) + ("" if want.endswith("...") else r"\s*$")
    found = re.match(pattern, got)
    return found is not None and all(map(same_number, found.groups(), numbers))


def run_page(test, name):
    """Runs the commands; what each printed, by command."""
    page = (DOCS / f"{name}.md").read_text()
    path = os.pathsep.join([str(test.bin), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "RECAST": str(DOCS.parents[1])}
    for command, excerpt in commands(page):
        done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=120,
                              cwd=test.temp, env=environment)
        printed = (done.stdout + done.stderr).splitlines()
        status = int(any("error:" in line for line in excerpt))
        short = command if len(command) < 70 else command[:67] + "..."
        if not test.check(done.returncode == status, f"$ {short}: exit status {done.returncode}, expected {status}"):
            test.stop("\n".join(printed)[-2000:])
        at = 0
        for want in excerpt:
            hit = next((i for i in range(at, len(printed)) if same_line(printed[i], want)), None)
            test.check(hit is not None, f"  prints {want[:90]!r}" + (
                "" if hit is not None else ", but:\n" + "\n".join(printed)[-2000:]))
            at = at if hit is None else hit + 1
    return page


def metrics(test, name):
    """Metric -> array over the steps."""
    rows = [json.loads(line) for line in (test.temp / f"{name}.jsonl").read_text().splitlines()]
    return {key: np.array([float(row[key]) for row in rows]) for key in rows[0]}


def initializers(test, name="model.onnx"):
    model = onnx.load(test.temp / name)
    return {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}


def unmoved(test, state, start, names):
    return all(state[n].tobytes() == np.ascontiguousarray(start[n]).tobytes() for n in names)


def panel(title, curves, log=False):
    return {"title": title, "log": log, "curves": {k: [float(v) for v in values] for k, values in curves.items()}}


def no_loss_scale(test):
    runs = {name: metrics(test, name) for name in ("unscaled", "dynamic", "f32")}
    loss = {name: run["loss"] for name, run in runs.items()}
    state = kit.load(test.temp / "unscaled.safetensors")
    test.check(unmoved(test, state, initializers(test), ("w1", "w2")), "unscaled: no bit of any parameter changes")
    test.check(np.array_equal(loss["unscaled"][:4], loss["unscaled"][-4:]),
               "unscaled: the last epoch's losses are the first's")
    for parameter in ("w1", "w2"):
        test.check((runs["unscaled"][f"grad_underflow.{parameter}"] == 1).all()
                   and (runs["unscaled"][f"grad_amax.{parameter}"] == 0).all(),
                   f"unscaled: the whole gradient of {parameter} vanishes, at every step")
    ends = {name: values[-4:].mean() for name, values in loss.items()}  # an epoch has 4 batches
    test.check(ends["f32"] < 0.2 * loss["f32"][:4].mean(), f"f32: the loss falls to {ends['f32']:.3g}")
    test.close("dynamic: the loss of the last epoch is that of f32", ends["dynamic"], ends["f32"], NUMBERS_DIFFER)
    scale, small = runs["dynamic"]["loss_scale"], runs["dynamic"]["grad_underflow.w1"]
    test.check(scale[9] == 65536 and small[9] > 0.99,
               f"dynamic: at a scale of {scale[9]:g}, {small[9]:.0%} of w1's gradient underflows")
    test.check(small[-1] < 0.1, f"dynamic: at a scale of {scale[-1]:g} {small[-1]:.1%}")
    return [panel("loss", loss, log=True),
            panel("share of w1's gradient that underflows",
                  {n: runs[n]["grad_underflow.w1"] for n in ("unscaled", "dynamic")})]


def clip_before_unscale(test):
    runs = {name: metrics(test, name) for name in ("clip-last", "clip-first")}
    parameters, rate, bound = ("w1", "b1", "w2", "b2"), 0.1, 1.0
    moved = {}
    for name in runs:
        state, start = kit.load(test.temp / f"{name}.safetensors"), initializers(test, f"{name}.onnx")
        moved[name] = kit.norm(np.concatenate([(state[n] - start[n]).ravel() for n in parameters]))
    # An update is at most rate * bound / scale long; besides, each rounds a parameter by half of its last place.
    rounding = len(runs["clip-first"]["loss"]) * 2.0**-24 * kit.norm(np.concatenate(
        [initializers(test, "clip-first.onnx")[n].ravel() for n in parameters]))
    reach = (rate * bound / runs["clip-first"]["loss_scale"]).sum() + rounding
    test.check(moved["clip-first"] <= reach * (1 + 1e-5),
               f"clip-first: all parameters together move by {moved['clip-first']:.3g}; the scales allow {reach:.3g}")
    test.check(moved["clip-last"] > 1000 * moved["clip-first"], f"clip-last: they move by {moved['clip-last']:.3g}")
    ends = {name: run["loss"][-20:].mean() for name, run in runs.items()}
    test.check(ends["clip-last"] < ends["clip-first"] / 4,
               f"the last 20 losses: {ends['clip-last']:.3g} on average, {ends['clip-first']:.3g} with the clip first")
    scale = runs["clip-first"]["loss_scale"]
    return [panel("loss", {n: r["loss"] for n, r in runs.items()}),
            panel("bound on the true gradient's norm",
                  {"clip-last": np.full(len(scale), bound), "clip-first": bound / scale}, log=True)]


def scale_too_large(test):
    run = metrics(test, "run")
    scale, skipped, factor, interval = run["loss_scale"], run["found_inf"] == 1, 2.0, 20
    recovered = int(np.argmin(skipped))
    test.check(recovered > 10, f"the first {recovered} steps are skipped, one halving each")
    expected, good = [float(2**40)], 0
    for bad in skipped[:-1]:
        good = 0 if bad else good + 1
        expected.append(expected[-1] / factor if bad else expected[-1] * (factor if good == interval else 1))
        good %= interval
    test.check(np.array_equal(scale, expected), "the scale of every step follows from the skips before it, exactly")
    step, state = test.temp / "step.onnx", test.temp / "skipped.safetensors"
    test.tool("recast-run", step, "--data=data.safetensors", "--batch-size=64", f"--steps={recovered}",
              f"--state-out={state}")
    after, start = kit.load(state), initializers(test)
    test.check(unmoved(test, after, start, ("w1", "b1", "w2")) and after["step"] == 0,
               "after them no bit of a parameter has changed, and no step is counted")
    later = skipped[recovered + 10:]
    test.check(0 < later.sum() < 0.1 * len(later),
               f"later {later.sum()} of {len(later)} steps are skipped, as the scale probes")
    test.check(run["loss"][-16:].mean() < 0.5 * run["loss"][:16].mean(),
               "the loss of the last epoch is under half of the first's")
    return [panel("loss scale", {"scale": scale, "skipped": np.where(skipped, scale, np.nan)}, log=True),
            panel("loss", {"loss": run["loss"]})]


def class_shares(test, state):
    """Over all labels that count, in double: (mean loss, share taken for class 0, share that is class 0)."""
    data = kit.load(test.temp / "data.safetensors")
    logits = data["x"].astype(np.float64) @ state["w"] + state["b"]
    kept = data["label"] >= 0
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    label = data["label"][kept]
    return -logs[kept, label].mean(), (logits[kept].argmax(axis=1) == 0).mean(), (label == 0).mean()


def mean_of_means(test):
    runs = {name: metrics(test, name) for name in ("one", "tokens", "means")}
    for key in ("loss", "grad_norm"):
        test.close(f"tokens: {key} of every step is that of one batch", runs["tokens"][key], runs["one"][key], F32)
        gap = kit.relative(runs["means"][key], runs["one"][key])
        test.check(gap > 0.2, f"means: {key} of the steps is off by {gap:.0%}")
    ends = {name: class_shares(test, kit.load(test.temp / f"{name}.safetensors")) for name in runs}
    test.check(ends["means"][0] > 1.1 * ends["tokens"][0],
               f"over all labels the trained loss is {ends['means'][0]:.3g} for {ends['tokens'][0]:.3g}")
    true = ends["tokens"][2]
    test.check(ends["means"][1] > true + 0.1 and abs(ends["tokens"][1] - true) < 0.1,
               f"class 0: {true:.0%} of the labels, {ends['tokens'][1]:.0%} to tokens, {ends['means'][1]:.0%} to means")
    return [panel("loss as reported", {n: r["loss"] for n, r in runs.items()}),
            panel("norm of the gradient", {n: r["grad_norm"] for n, r in runs.items()})]


def check_scales(test, name, got, healthy, scales, stale, zeros):
    """Scales are those of the healthy run, to a factor of 2^10, after `stale` steps and not before; where the gradient
    was zero, its own is one step later. Wrong ones are off by a million, 2^20."""
    for scale in scales:
        steps = stale + (zeros and scale.startswith("grad/"))
        found = got[scale].ravel()
        wrong = np.abs(np.log2(found / healthy[scale].ravel()[:len(found)])) > 10
        # Element t is what step t leaves to the next one.
        test.check(wrong[:steps - 1].all() and not wrong[steps - 1:].any(),
                   f"{name}: {scale.removesuffix('.next')} is wrong in {steps} steps")


def stale_fp8_scale(test):
    runs = {name: metrics(test, name) for name in ("healthy", "large", "small")}
    outputs = {name: kit.load(test.temp / f"{name}.outputs") for name in runs}
    scales = [name for name in outputs["healthy"] if name.endswith(".fp8_scale.next")]
    test.check(len(scales) == 3 and not any(r["found_inf"].any() for r in runs.values()),
               f"{len(scales)} tensors have a scale, and no step is skipped")
    loss = {name: run["loss"] for name, run in runs.items()}
    target = kit.load(test.temp / "data.safetensors")["target"].astype(np.float64).reshape(-1, 64, 16)
    zero = (target**2).mean(axis=(1, 2))
    history = 8
    for name, stale in (("large", history), ("small", 1)):
        # A millionth of the signal is left, or less: 1e-5 of the loss, and the rounding of f32.
        test.close(f"{name}: the losses of the first {stale} are those of the answer 0", loss[name][:stale],
                   zero[:stale], 1e-5)
        check_scales(test, name, outputs[name], outputs["healthy"], scales, stale, zeros=name == "large")
    test.check(loss["healthy"][:history].max() < 0.5 * zero.min(),
               f"healthy: the loss begins at {loss['healthy'][0]:.3g}")
    test.check((runs["large"]["grad_norm"][:history] == 0).all(), f"large: gradients of the first {history} are zero")
    test.tool("recast-opt", "model.onnx", "--precision=fp8-delayed", f"--fp8-history={history}",
              "--fp8-amax=most_recent", "--optimizer=adam", "--lr=0.003", "-o", "recent.onnx")
    test.tool("recast-run", "recent.onnx", "--data=data.safetensors", "--batch-size=64", "--steps=4",
              "--state-in=large.safetensors", "--outputs=recent.outputs")
    recent = kit.load(test.temp / "recent.outputs")
    test.check(recent["loss"].ravel()[0] == loss["large"][0], "--fp8-amax=most_recent: the first loss is large's")
    check_scales(test, "--fp8-amax=most_recent", recent, outputs["healthy"], scales, 1, zeros=True)
    epoch = 16
    for name in ("large", "small"):
        # As fp8 against f32 in fp8_training.py; the stale steps are lost.
        test.close(f"{name}: the last epoch's loss is the healthy run's", loss[name][-epoch:].mean(),
                   loss["healthy"][-epoch:].mean(), 0.05)
    first = next(s for s in scales if s.startswith("h1"))
    return [panel("loss", loss, log=True),
            panel("scale of h1", {n: o[first].ravel() for n, o in outputs.items()}, log=True)]


def bf16_weights(test):
    runs = {name: metrics(test, name) for name in ("bf16", "masters")}
    start, state = initializers(test, "bf16-step.onnx"), kit.load(test.temp / "bf16.safetensors")
    weights, data = start["w"].astype(np.float64), kit.load(test.temp / "data.safetensors")
    x, target = data["x"].reshape(-1, 64, 16), data["target"].reshape(-1, 64, 8)
    gradients = x.transpose(0, 2, 1) @ (x @ weights - target) * (2 / 512)
    size, longest = np.abs(weights), 0.02 * np.abs(gradients).max()
    test.check(size.min() >= 1 and size.max() < 2 and longest < 2.0**-8,
               f"the longest update, {longest:.3g}, is under half of the way to the next bf16 number, {2.0**-8:.3g}")
    test.check(unmoved(test, state, start, ["w"]), "bf16: no bit of the weights changes")
    epoch = 16
    loss = {name: run["loss"] for name, run in runs.items()}
    test.check(np.array_equal(loss["bf16"][:epoch], loss["bf16"][-epoch:]),
               "bf16: the last epoch's losses are the first's")
    test.check(loss["masters"][-epoch:].mean() < 0.2 * loss["masters"][:epoch].mean(),
               f"masters: the loss falls from {loss['masters'][0]:.3g} to {loss['masters'][-1]:.3g}")
    test.check(loss["masters"][0] == loss["bf16"][0],
               "both begin at the same loss: the masters start as the bf16 weights")
    return [panel("loss", loss, log=True)]


def batch_norm(test):
    runs = {name: metrics(test, name) for name in ("one", "eight")}
    epoch = 50
    ends = {name: run["loss"][-epoch:].mean() for name, run in runs.items()}
    test.check(ends["eight"] > 3 * ends["one"],
               f"the last epoch's loss is {ends['eight']:.3g} for {ends['one']:.3g}")
    state = test.temp / "first.safetensors"
    test.tool("recast-run", "eight.onnx", "--data=data.safetensors", "--batch-size=8", "--steps=1",
              f"--state-out={state}")
    x, start = kit.load(test.temp / "data.safetensors")["x"], initializers(test)
    mean = start["mean"].astype(np.float64)
    for i in range(8):  # ONNX's default momentum of 0.9 is kept
        mean = 0.9 * mean + 0.1 * (x[8 * i:8 * i + 8].astype(np.float64) @ start["w1"]).mean(axis=0)
    test.close("the running mean takes in eight micro-batches in one step", kit.load(state)["mean"], mean, F32)
    return [panel("loss", {n: r["loss"] for n, r in runs.items()}, log=True)]


EXPERIMENTS = {"1-no-loss-scale": no_loss_scale, "2-clip-before-unscale": clip_before_unscale,
               "3-scale-too-large": scale_too_large, "4-mean-of-means": mean_of_means,
               "5-stale-fp8-scale": stale_fp8_scale, "6-bf16-weights": bf16_weights, "7-batch-norm": batch_norm}


def main():
    test = kit.Test(__doc__, "EXPERIMENT", [("--plots", "folder for the curves of the plot, as JSON")])
    name = test.subject.name
    breaking_models.EXPERIMENTS[name](test.temp)
    page = run_page(test, name)
    panels = EXPERIMENTS[name](test)
    test.check(f"]({name}.svg)" in page and (DOCS / f"{name}.svg").exists(), "the page shows a plot, and it is there")
    if test.options.plots:
        folder = Path(test.options.plots)
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"panels": panels}).replace("NaN", "null")
        (folder / f"{name}.json").write_text(text)
    test.finish()


if __name__ == "__main__":
    main()
