"""How fast GPT-2 trains on the device: step time, share of the device's peak (MFU), and where the time goes.

Plans are made here, of graphs alone. All their matrices are stretches of one file (bench/gpt_model.py), which is made
again wherever they run: random numbers of the generator that Python itself has, the same everywhere, with the standard
deviation that GPT-2's weights begin with.

The model FLOPs of a step are those of its matrix products, forward and backward, by recast's cost model on the graph
without recomputation; MFU is model FLOPs / (time of a step * peak), as in PaLM (Chowdhery et al. 2022, appendix B). A
product of attention counts as a whole, its masked half included, as there.
"""
import array
import collections
import fnmatch
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from check_cuda.common import call, save

HERE = Path(__file__).resolve().parent
# Radford et al. 2019. The vocabulary of 50,257 is padded to a multiple of 128, as usual: fp8 needs a multiple of 16.
# Batches fit into DEVICE_BYTES by the plan's own figures.
MODELS = {
    "gpt2-124M": {"layers": 12, "width": 768, "heads": 12, "vocabulary": 50304, "sequence": 1024, "batch": 32},
    "gpt2-1.5B": {"layers": 48, "width": 1600, "heads": 25, "vocabulary": 50304, "sequence": 1024, "batch": 8},
}
PRESETS_OF = {"gpt2-124M": ["bf16", "fp8-delayed", "tf32", "f32"], "gpt2-1.5B": ["bf16", "fp8-delayed"]}
# For the checking device, which takes minutes for what a GPU does in a millisecond.
TINY = {"gpt2-tiny": {"layers": 2, "width": 32, "heads": 2, "vocabulary": 64, "sequence": 16, "batch": 2}}
ARCHITECTURES = {"fp8-delayed": "sm_89"}  # From which on they multiply 8-bit floats; the others: sm_80.
DEVICE_BYTES = 139 << 30  # H200. A twentieth is left to the driver and the libraries.
STATE_BYTES = 12          # Of a parameter: itself and two moments, in f32.
TARGETS = {("gpt2-124M", "bf16"): 0.45, ("gpt2-1.5B", "bf16"): 0.55}
FP8_TARGET = 1.3
WARM_UP, ROUNDS = 3, 2

# Dense TFLOP/s by type, and GB/s of memory. Data sheets print rates of sparse matrices: half of these. NVIDIA H100 and
# H200 Tensor Core GPU data sheets (SXM), with the digits of the H100 architecture paper; NVIDIA A100 data sheet; HGX
# B200 of the Blackwell data sheet (its 2.2 PFLOP/s of sparse TF32 are rounded: half of BF16's).
HOPPER = {"bf16": 989.4, "fp8": 1978.9, "tf32": 494.7, "f32": 66.9}
AMPERE = {"bf16": 312, "tf32": 156, "f32": 19.5}
PEAKS = {
    "NVIDIA H200": {**HOPPER, "GB/s": 4800},
    "NVIDIA H100 80GB HBM3": {**HOPPER, "GB/s": 3350},
    "NVIDIA A100-SXM4-40GB": {**AMPERE, "GB/s": 1555},
    "NVIDIA A100-SXM4-80GB": {**AMPERE, "GB/s": 2039},
    "NVIDIA B200": {"bf16": 2250, "fp8": 4500, "tf32": 1125, "f32": 75, "GB/s": 7700},
}

# Kinds of work by the operators of a step, the first that matches. Operators of domain recast have no prefix here.
KINDS = [
    ("all-reduce", r"all_reduce|rank"),
    ("optimizer and clipping", r"adam\w*|sgd|lion|rmsprop|adagrad|clip_grad_\w+|check_finite|grad_\w+|unscale|keep_if"),
    ("loss", r"SoftmaxCrossEntropyLoss|NegativeLogLikelihoodLoss|cross_entropy\w*"),
    ("softmax of attention", r"Softmax|softmax_grad"),
    ("norms", r"\w*Normalization|\w+_norm_grad\w*"),
    ("fp8 scales and casts", r"\w*quantize\w*|update_amax|amax"),
    ("embedding", r"Gather\w*|gather_grad"),
    ("transposes and copies", r"copy|Transpose|Split|Concat|Slice|Pad|Expand|Tile|Identity"),
]


def write_weights(path, size):
    """Sums of four numbers: nearly normal, with a standard deviation of 0.018. Integers until the last step: the same
    bits on every machine. A block of them repeats, at no multiple of a row."""
    if path.exists() and path.stat().st_size == size:
        return
    count = 1048583
    parts = array.array("H", random.Random(1).randbytes(8 * count))
    sums = map(sum, zip(parts[0::4], parts[1::4], parts[2::4], parts[3::4]))
    block = array.array("f", [(total - 131070) * 2**-21 for total in sums]).tobytes()
    partial = path.with_name(path.name + ".part")
    with open(partial, "wb") as file:
        for left in range(size, 0, -len(block)):
            file.write(block[:left])
    partial.rename(path)


def write_batch(path, model):
    """The same batch serves every step: what is measured does not depend on it."""
    numbers, shape = random.Random(2), (model["batch"], model["sequence"])
    save(path, [(name, "I64", shape, array.array("q", numbers.choices(range(model["vocabulary"]),
                                                                     k=shape[0] * shape[1])).tobytes())
                for name in ("tokens", "labels")])


def pack(options, tools, out):
    """Writes plans below `out`, and gives what is to be measured. The weights stay here."""
    sys.path.insert(0, str(HERE.parent.parent / "bench"))
    from gpt_model import write_gpt
    cases = []
    for name, model in (MODELS if options.device == "cuda" else TINY).items():
        if not fnmatch.fnmatch(name, options.speed_models):
            continue
        begin, folder = time.monotonic(), out / "speed" / name
        folder.mkdir(parents=True, exist_ok=True)
        graph, weights, gradient = (folder / f for f in ("gpt.onnx", "gpt.weights", "gradient.onnx"))
        parameters = write_gpt(graph, **model, dropout=0, shared=True)
        size = weights.stat().st_size
        weights.unlink()
        write_weights(weights, size)

        def run(*command):
            done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"check-cuda: {name}: {' '.join(map(str, command))}: {done.stderr.strip()}")
            return done.stdout

        run(tools / "recast-opt", graph, "--emit=gradient", "-o", gradient)
        run(tools / "recast-inspect", gradient, "--cost", f"--json={folder / 'cost.json'}")
        flops = json.loads((folder / "cost.json").read_text())["classes"]["product"]["flops"]
        budget = DEVICE_BYTES * 19 // 20 - STATE_BYTES * parameters
        for preset in PRESETS_OF.get(name, PRESETS_OF["gpt2-124M"]):
            plan = folder / f"{preset}.plan"
            run(tools / "recast-opt", graph, "--emit=plan", f"--device={options.device}", f"--precision={preset}",
                f"--cuda-arch={ARCHITECTURES.get(preset, 'sm_80')}", "--optimizer=adamw", "--lr=1e-4",
                "--clip-grad-norm=1", f"--memory-budget={budget}", "-o", plan)
            arena = re.search(r"^arena: (\d+) bytes",
                              run(tools / "recast-exec", plan, f"--device={options.device}", "--explain"), re.M)[1]
            cases.append({"model": name, "preset": preset, "arch": ARCHITECTURES.get(preset, "sm_80"), "sizes": model,
                          "parameters": parameters, "weights": size, "flops": flops, "arena": int(arena)})
        for path in (gradient, folder / "cost.json", weights):
            path.unlink()
        print(f"packed {name} for speed in {time.monotonic() - begin:.0f} s: {flops / 1e12:.3g} TFLOP a step")
    return cases


def kind_of(event):
    """What a piece of work is for; see KINDS."""
    facts = event["args"]
    names = [text.split(" ")[0].split(".")[-1] for text in facts.get("operators", [event["name"]])]
    if facts["kernel"].startswith("cublaslt"):
        return "products of attention" if facts["inputs"] and facts["inputs"][0].count(",") > 2 else "products"
    if facts["kernel"].startswith("nccl"):
        return "all-reduce"
    for kind, pattern in KINDS:
        if any(re.fullmatch(pattern, name) for name in names):
            return kind
    return "casts alone" if set(names) == {"Cast"} else "other element-wise work"


def peak_type(event, preset):
    """Which of the device's peaks bounds a product."""
    first = event["args"]["inputs"][0] if event["args"]["inputs"] else ""
    if first.startswith("f8"):
        return "fp8"
    return "bf16" if first.startswith(("bf16", "f16")) else "tf32" if preset == "tf32" else "f32"


def summarize(trace, preset, peaks):
    """Of the trace's last step: kinds, the slowest pieces, and what of the peak each reaches, as text."""
    last = max(event["args"]["step"] for event in trace)
    events = [event for event in trace if event["args"]["step"] == last]
    busy = sum(event["dur"] for event in events)
    span = max(e["ts"] + e["dur"] for e in events) - min(e["ts"] for e in events)
    kinds = collections.defaultdict(lambda: [0, 0, 0, 0])
    for event in events:
        amounts = (event["dur"], 1, event["args"]["flops"], event["args"]["bytes"])
        kinds[kind_of(event)] = [a + b for a, b in zip(kinds[kind_of(event)], amounts)]

    def rate(duration, flops, size, peak_of):
        """`duration` in microseconds."""
        number, unit = (flops / 1e6, "TFLOP/s") if flops else (size / 1e3, "GB/s")
        number /= max(duration, 1e-3)
        peak = peaks.get(peak_of if flops else unit)
        return f"{number:.4g} {unit}" + (f" ({number / peak:.1%})" if peak else "")

    rows = []
    for kind, (duration, count, flops, size) in sorted(kinds.items(), key=lambda item: -item[1][0]):
        types = {peak_type(e, preset) for e in events if kind_of(e) == kind} if flops else {""}
        rows.append([kind, count, f"{duration / 1e3:.3f}", f"{duration / busy:.1%}",
                     rate(duration, flops, size, types.pop() if len(types) == 1 else None)])
    slowest = [[event["args"]["node"] or "the step's end", event["name"], event["args"]["kernel"],
                f"{event['dur'] / 1e3:.3f}", rate(event["dur"], event["args"]["flops"], event["args"]["bytes"],
                                                  peak_type(event, preset))]
               for event in sorted(events, key=lambda e: -e["dur"])[:10]]
    return {"busy_ms": busy / 1e3, "span_ms": span / 1e3, "pieces": len(events), "kinds": rows, "slowest": slowest}


class Speed:
    """Measures in small jobs, each of which is kept: whoever is stopped goes on from there."""

    def __init__(self, cases, command, environment, options, peaks):
        self.cases, self.command, self.environment = cases, command, environment
        self.options, self.peaks, self.folder = options, peaks, options.folder / "speed"
        self.is_judged = options.device == "cuda" or bool(peaks)  # The checking device's times mean nothing.

    def models(self):
        return list(dict.fromkeys(case["model"] for case in self.cases))

    def jobs(self):
        """Name, estimated seconds, and what to call. Presets of a model take turns."""
        jobs = []
        for model in self.models():
            cases = [case for case in self.cases if case["model"] == model]
            for turn in range(ROUNDS):
                jobs += [(f"{model} {c['preset']} turn {turn + 1}", self.estimate(c, self.steps()),
                          lambda c=c: self.time(c)) for c in cases]
            jobs += [(f"{model} {c['preset']} profile", self.estimate(c, 3), lambda c=c: self.profile(c))
                     for c in cases]
            eager = self.estimate(cases[0], self.steps())
            jobs += [(f"{model} PyTorch {kind}", seconds, lambda c=cases[0], kind=kind: self.torch(c, kind))
                     for kind, seconds in (("eager", eager), ("compiled", eager + 90))]
        return jobs

    def steps(self):
        return WARM_UP + self.options.steps

    @staticmethod
    def estimate(case, steps):
        """Seconds: state is written three times at 4 GB/s, and steps reach a fifth of an H200's bf16; f32 has less."""
        per_second = 2e13 if case["preset"] == "f32" else 2e14
        return 5 + 3 * STATE_BYTES * case["parameters"] / 4e9 + steps * case["flops"] / per_second

    def run(self, case, steps, *flags):
        """Runs steps of a plan and gives the lines of its metrics."""
        folder = self.folder / case["model"]
        write_weights(folder / "gpt.weights", case["weights"])
        batch, metrics = folder / "batch.safetensors", folder / f"{case['preset']}.jsonl"
        if not batch.exists():
            write_batch(batch, case["sizes"])
        code, said = call([*self.command, folder / f"{case['preset']}.plan", f"--device={self.options.device}",
                           f"--data={batch}", "--data-layout=single", f"--steps={steps}", f"--metrics={metrics}",
                           *flags], env=self.environment | {"CUDA_CACHE_PATH": str(self.cache(case))},
                          timeout=self.options.timeout)
        if code:
            raise RuntimeError(said[-1])
        return [json.loads(line) for line in metrics.read_text().splitlines()]

    def cache(self, case):
        """Where the driver keeps what it compiles of a plan: nothing at its first run."""
        return self.folder / case["model"] / f"cache-{case['preset']}"

    def time(self, case):
        is_cold, begin = not self.cache(case).exists(), time.monotonic()
        self.cache(case).mkdir(exist_ok=True)
        try:
            lines = self.run(case, self.steps())
        except RuntimeError:
            if is_cold:
                shutil.rmtree(self.cache(case))
            raise
        seconds = [line["seconds"] for line in lines]
        if not all(abs(line["loss"]) < float("inf") for line in lines):
            raise RuntimeError(f"the loss is not finite: {[line['loss'] for line in lines]}")
        return {"seconds": seconds[WARM_UP:], "first": time.monotonic() - begin - sum(seconds[1:]), "cold": is_cold,
                "loss": [lines[0]["loss"], lines[-1]["loss"]]}

    def profile(self, case):
        trace = self.folder / case["model"] / f"{case['preset']}.trace.json"
        self.run(case, 3, f"--profile={trace}")
        facts = summarize(json.loads(trace.read_text())["traceEvents"], case["preset"], self.peaks)
        trace.unlink()
        return facts

    def torch(self, case, kind):
        """A figure of a peer, where there is one; not having it is no failure."""
        command = [sys.executable, HERE / "gpt_torch.py", *(f"--{name}={size}" for name, size in case["sizes"].items()),
                   f"--steps={self.steps()}", *(["--compile"] if kind == "compiled" else []),
                   f"--device={'cuda' if self.options.device == 'cuda' else 'cpu'}"]
        try:
            done = subprocess.run([str(c) for c in command], capture_output=True, text=True,
                                  timeout=self.options.timeout)
            facts = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
        except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
            return {"none": str(error)}
        if not facts:
            return {"none": (done.stderr.strip().splitlines() or ["no word"])[-1]}
        return {"seconds": facts["seconds"][WARM_UP:], "version": facts["version"]}

    def mfu(self, case, seconds, preset):
        peak = self.peaks.get("fp8" if preset.startswith(("fp8", "mxfp8")) else preset)
        return case["flops"] / seconds / peak / 1e12 if peak else None

    def seconds_of(self, case, done):
        """The median of all turns; None where there is none."""
        turns = [done.get(f"{case['model']} {case['preset']} turn {turn + 1}", {}) for turn in range(ROUNDS)]
        values = [value for turn in turns for value in turn.get("seconds", [])]
        return statistics.median(values) if values else None

    def targets(self, done):
        """What was wanted, what came of it, and whether that is enough: None where it is not known."""
        found, times = [], {}
        for case in self.cases:
            seconds = times[case["model"], case["preset"]] = self.seconds_of(case, done)
            if wanted := TARGETS.get((case["model"], case["preset"])):
                share = self.mfu(case, seconds, case["preset"]) if seconds else None
                found.append((f"{case['model']} {case['preset']}: {wanted:.0%} of the device's peak",
                              "not measured" if not seconds else "this device's peak is not known" if share is None
                              else f"{share:.1%}", None if share is None else share >= wanted))
        for model in self.models():
            fp8, bf16 = times.get((model, "fp8-delayed")), times.get((model, "bf16"))
            if (model, "fp8-delayed") in times:
                ratio = bf16 / fp8 if fp8 and bf16 else None
                is_reached = ratio >= FP8_TARGET if ratio and self.is_judged else None
                found.append((f"{model} fp8-delayed: {FP8_TARGET} times as fast as bf16",
                              f"{ratio:.2f} times" if ratio else "not measured", is_reached))
        return found

    def report(self, done):
        """The part of the result file."""
        lines = ["## Speed", "",
                 "AdamW, clipping to norm 1, no accumulation, no dropout. Model FLOPs are those of matrix products, "
                 "forward and backward, by recast's cost model, recomputation not counted; MFU = model FLOPs / (time * "
                 "peak) (PaLM, Chowdhery et al. 2022, appendix B). Times are wall time, the median of "
                 f"{ROUNDS} turns of {self.options.steps} steps after {WARM_UP}; presets take turns. To the first step: "
                 "the time of a process less that of its later steps, with what the driver compiles, and again without.",
                 "Peaks (dense TFLOP/s, NVIDIA's data sheets): " +
                 (", ".join(f"{name} {peak:g}" for name, peak in self.peaks.items()) or "not known for this device"),
                 "", *map(self.describe, self.models()), "",
                 "| model | by | TFLOP a step | ms a step | tokens/s | TFLOP/s | MFU | arena GiB | to the first step, s "
                 "| again | loss |", "|---|---|---|---|---|---|---|---|---|---|---|"]
        shares = {}
        for case in self.cases:
            turns = [done.get(f"{case['model']} {case['preset']} turn {turn + 1}", {}) for turn in range(ROUNDS)]
            first = [next((f"{t['first']:.1f}" for t in turns if t.get("cold") == cold), "") for cold in (True, False)]
            loss = next((f"{t['loss'][0]:.3f} to {t['loss'][1]:.3f}" for t in turns if "loss" in t), "")
            lines.append(self.row(case, case["preset"], self.seconds_of(case, done), case["preset"],
                                  f"{case['arena'] / 2**30:.1f}", *first, loss))
            shares[case["model"], case["preset"]] = done.get(f"{case['model']} {case['preset']} profile", {})
        for model in self.models():
            case = next(case for case in self.cases if case["model"] == model)
            for kind in ("eager", "compiled"):
                peer = done.get(f"{model} PyTorch {kind}", {})
                if peer.get("seconds"):
                    lines.append(self.row(case, f"PyTorch {peer['version']} bf16, {kind}",
                                          statistics.median(peer["seconds"]), "bf16", "", "", "", ""))
                else:
                    lines.append(f"| {model} | PyTorch {kind}: {peer.get('none', peer.get('error', 'not run'))} |" +
                                 " |" * 9)
        errors = [f"- {name}: {facts['error']}" for name, facts in done.items() if "error" in facts]
        lines += ["", "### Targets", ""]
        for wanted, got, is_reached in self.targets(done):
            word = "not known" if is_reached is None else "reached" if is_reached else "**missed**"
            lines.append(f"- {word}: {wanted}: {got}")
            kinds = next((facts["kinds"] for (model, preset), facts in shares.items()
                          if is_reached is False and wanted.startswith(f"{model} {preset}:") and facts.get("kinds")), [])
            if kinds:
                lines.append("  - most of it: " + "; ".join(f"{kind} {share} at {rate}" for kind, _, _, share, rate
                                                             in kinds[:4]))
        if errors:
            lines += ["", "### Failed", "", *errors]
        for (model, preset), facts in shares.items():
            if not facts.get("kinds"):
                continue
            lines += ["", f"### Where the time goes: {model} {preset}", "",
                      f"One step, launched piece by piece ({facts['pieces']} pieces, {facts['busy_ms']:.2f} ms at work "
                      f"of {facts['span_ms']:.2f} ms). Rates: of products arithmetic, of the rest bytes of the operands.",
                      "", "| kind | pieces | ms | share | rate (of peak) |", "|---|---|---|---|---|"]
            lines += ["| " + " | ".join(map(str, row)) + " |" for row in facts["kinds"]]
            lines += ["", "| slowest | operator | kernel | ms | rate (of peak) |", "|---|---|---|---|---|"]
            lines += ["| " + " | ".join(row) + " |" for row in facts["slowest"]]
        return lines

    def describe(self, model):
        case = next(case for case in self.cases if case["model"] == model)
        sizes = ", ".join(f"{name} {size:,}" for name, size in case["sizes"].items())
        padded = " (the vocabulary of 50,257 padded)" if model in MODELS else ""
        return f"- {model}: {case['parameters']:,} parameters, {sizes}{padded}"

    def row(self, case, by, seconds, preset, *more):
        tokens = case["sizes"]["batch"] * case["sizes"]["sequence"]
        share = self.mfu(case, seconds, preset) if seconds else None
        figures = [f"{seconds * 1e3:.2f}", f"{tokens / seconds:,.0f}", f"{case['flops'] / seconds / 1e12:.4g}",
                   "" if share is None else f"{share:.1%}"] if seconds else ["not measured", "", "", ""]
        return "| " + " | ".join([case["model"], by, f"{case['flops'] / 1e12:.4g}", *figures, *more]) + " |"


def parse_peaks(name, given):
    """Of the device by its name, or what --peak says: ["bf16=989.4"]."""
    peaks = dict(PEAKS.get(name, {}))
    for text in given:
        key, _, value = text.partition("=")
        peaks[key] = float(value)
    return peaks


def drop_caches(folder):
    """What runs have left that is no result: --again measures the first start again."""
    for path in (folder / "speed").glob("*/cache-*"):
        shutil.rmtree(path, ignore_errors=True)
