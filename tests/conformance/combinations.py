"""Random models with random flags: whatever is not refused for a stated limit keeps every promise of the tools.

The subject is a seed, or a range of them as 0-99. Of each combination: the same flags give the same bytes; the step
passes onnx.checker and `recast-inspect --verify`, and trains what --trainable lists; three steps are finite, or skipped
as the loss scale says, in the planned arena; and of the other promises those that apply, a few at random. Equal means
equal bits, for what only another plan, number of threads, tool, or way to resume differs. Other tolerances stand at
each check.
"""
import json
import re
import sys
import traceback

import combination_models
import kit
import numpy as np
import onnx
from checkpoint_kit import arena_of
from data_parallel import finish, start

STEPS = 3
SECONDS = 120  # For any one command: the largest model here takes a tenth.
# What recast says that it does not do: nothing else may be refused.
LIMITS = [
    "--normalize=tokens: the loss .* counts nothing",
    "--data-parallel: the ranks' losses have no one divisor",
    "the loss .* is the only output: without it nothing is left",  # --emit=inference
    "--memory-budget: an arena of .* cannot be reached",
]
LOW = ("f16", "bf16", "fp8-delayed", "fp8-current", "fp8-row", "fp8-block", "mxfp8")


class Broken(Exception):
    """A promise that was not kept."""


class Refused(Exception):
    """A limit that recast states."""


class Flags:
    """Random flags of recast-opt for a subject, and of the run."""

    def __init__(self, rng, subject):
        self.rng, self.subject = rng, subject
        self.precision = self.one_of(["f32"] * 5 + ["tf32", "bf16", "f16", *LOW])
        self.optimizer = self.one_of(["sgd", "adam", "adamw", "adagrad", "rmsprop", "nadam", "radam", "lion"])
        self.accumulate = self.one_of([1, 1, 1, 2, 3])
        self.dtype = ""
        self.bound = bool(subject.sizes)  # Planning needs sizes: they are given unless drawn otherwise.
        self.memory = self.recompute()
        self.run = self.of_run()
        self.others = [*self.types(), *self.update(), *self.scale(), *self.groups(), *self.shape()]
        if self.memory and subject.sizes:
            self.bound = True
        elif self.maybe(0.3):
            self.bound = False

    def one_of(self, choices):
        return choices[int(self.rng.integers(len(choices)))]

    def maybe(self, probability):
        return self.rng.random() < probability

    def types(self):
        yield f"--precision={self.precision}"
        yield f"--loss={self.subject.loss}"
        if self.maybe(1 if "low" in self.subject.traits else 0.3):
            self.dtype = self.one_of(["f32", "f64"])
            yield f"--dtype={self.dtype}"
        if self.precision not in ("f32", "tf32") and self.maybe(0.3):
            yield f"--policy={self.one_of(['cuda', 'cpu'])}"
        if self.precision == "fp8-delayed":
            if self.maybe(0.4):
                yield f"--fp8-history={self.one_of([1, 2, 16])}"
            if self.maybe(0.3):
                yield f"--fp8-amax={self.one_of(['max', 'most_recent'])}"
            if self.maybe(0.3):
                yield f"--fp8-margin={self.one_of([-1, 0, 2])}"
            if self.maybe(0.3):
                yield "--fp8-nan=ignore"

    def update(self):
        yield f"--optimizer={self.optimizer}"
        if self.maybe(0.5):
            yield f"--lr={self.one_of(['0.1', '1e-3', '0'])}"
        if self.maybe(0.4):
            yield f"--weight-decay={self.one_of(['0', '0.01', '0.5'])}"
        if self.optimizer in ("sgd", "rmsprop") and self.maybe(0.5):
            yield "--momentum=0.9"
            if self.optimizer == "sgd" and self.maybe(0.4):
                yield self.one_of(["--nesterov", "--dampening=0.1"])
        if self.optimizer in ("adam", "adamw", "nadam", "radam", "lion") and self.maybe(0.3):
            yield "--betas=0.8,0.95"
        if self.optimizer in ("adam", "adamw") and self.maybe(0.3):
            yield "--amsgrad"
        if self.optimizer in ("adam", "nadam", "radam") and self.maybe(0.3):
            yield "--decoupled-weight-decay"
        if self.optimizer == "rmsprop" and self.maybe(0.3):
            yield "--centered"
        if self.optimizer == "adagrad" and self.maybe(0.4):
            yield from ("--lr-decay=0.1", "--initial-accumulator=0.1")
        if self.maybe(0.2):
            yield f"--ema={self.one_of(['0.9', '0', '1'])}"
        if self.maybe(0.4):
            yield f"--clip-grad-norm={self.one_of(['1', '1e-3', '0', '1e6'])}"
            if self.maybe(0.4):
                yield f"--clip-grad-norm-type={self.one_of(['1', '2', '3', 'inf'])}"
        if self.maybe(0.2):
            yield f"--clip-grad-value={self.one_of(['0.1', '0'])}"

    def scale(self):
        if self.maybe(0.4):
            yield f"--loss-scale={self.one_of(['none', 'dynamic', '128', '0.5'])}"
        if self.maybe(0.2):
            yield f"--loss-scale-init={self.one_of(['1024', '1e30', '1'])}"
        if self.maybe(0.2):
            yield f"--loss-scale-interval={self.one_of([1, 2])}"
        if self.maybe(0.1):
            yield from ("--loss-scale-hysteresis=2", "--loss-scale-min=1")

    def groups(self):
        names = [n.translate(str.maketrans(",=", "??")) for n in self.subject.parameters if n.isascii()]
        if self.subject.only_scalars or (names and self.maybe(0.1)):
            names = list(self.rng.permutation(names)[:3])
            yield f"--train={','.join(names)}"
        elif len(names) > 1 and self.maybe(0.25):
            yield f"--freeze={names.pop(int(self.rng.integers(len(names))))}"
        if names and self.maybe(0.2):
            yield f"--no-decay={self.one_of(names)}"
        if names and self.maybe(0.2):
            yield f"--lr-scale={self.one_of(names)}={self.one_of(['0', '0.5'])}"
        if names and self.maybe(0.1):
            yield f"--decay-scale=*={self.one_of(['0', '2'])}"
        if self.maybe(0.15):
            yield f"--monitor={self.one_of(['*', 'each'])}"

    def shape(self):
        if self.accumulate > 1:
            yield f"--accumulate={self.accumulate}"
        if self.maybe(0.15):
            yield f"--normalize={self.one_of(['samples', 'micro-batches', 'tokens'])}"
        if self.maybe(0.2):
            yield "--data-parallel"
        if self.maybe(0.3):
            yield f"--seed={self.one_of([1, 123456789])}"

    def recompute(self):
        if self.maybe(0.55):
            return []
        budget = [f"--memory-budget={self.one_of(['min', '90%', '75%', '1GiB'])}"] if self.maybe(0.6) else []
        policies = ["none", "every-1", "every-3", "sqrt", "selective"] + ["auto"] * bool(budget)
        rule = [f"--checkpoint={self.one_of(policies)}"] if self.maybe(0.5) or not budget else []
        return budget + rule

    def of_run(self):
        if not self.maybe(0.3):
            return []
        schedule = [f"--lr-schedule={self.one_of(['constant', 'linear', 'cosine'])}"]
        lowest = ["--min-lr=1e-5"] * (self.maybe(0.5) and "constant" not in schedule[0])
        return schedule + ["--warmup-steps=1"] * self.maybe(0.5) + lowest

    def dims(self):
        return [f"--dim={n}={s}" for n, s in self.subject.sizes.items()] if self.bound else []

    def all(self):
        return [*self.dims(), *self.others, *self.memory]

    def has(self, name):
        return any(f == name or f.startswith(name + "=") for f in self.all())

    def without(self, *names):
        return [f for f in self.all() if not any(f == n or f.startswith(n + "=") for n in names)]


class Combination:
    """One seed: the subject, the flags, and the checks."""

    def __init__(self, test, seed):
        self.test, self.rng = test, np.random.Generator(np.random.PCG64(seed))
        for old in test.temp.iterdir():
            if old.is_file():
                old.unlink()
        self.subject = combination_models.draw(test, self.rng)
        self.flags = Flags(self.rng, self.subject)
        self.data = test.temp / "data.safetensors"
        kit.save(self.data, self.subject.batches)
        self.words = f"{self.subject.description}; {' '.join(self.flags.all())}; run {' '.join(self.flags.run)}"
        # The types in which the step computes.
        self.exact = self.flags.precision in ("f32", "tf32")

    def tool(self, name, *arguments):
        done = self.test.tool(name, *arguments, ok=False, timeout=SECONDS)
        if done.returncode not in (0, 1):
            command = " ".join(map(str, [name, *arguments]))
            raise Broken(f"{command}: exit status {done.returncode}: {done.stderr[-1500:]}")
        return done

    def must(self, name, *arguments):
        done = self.tool(name, *arguments)
        if done.returncode:
            raise Broken(f"{name} {' '.join(map(str, arguments))}: {done.stderr.strip()[-1500:]}")
        return done

    def opt(self, flags, name, model=None):
        """The file; Refused where recast states a limit."""
        out = self.test.temp / name
        done = self.tool("recast-opt", model or self.subject.path, *flags, "-o", out)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error: " in line]
            if len(errors) != 1:
                raise Broken(f"{len(errors)} errors: {done.stderr.strip()[-1500:]}")
            if out.exists():
                raise Broken(f"an output beside an error: {errors[0]}")
            if not any(re.search(limit, errors[0]) for limit in LIMITS):
                raise Broken(f"refused: {errors[0]}")
            raise Refused(errors[0])
        return out

    def train(self, step, name, *flags, tool="recast-run", steps=STEPS):
        """(outputs of all steps, state) as bytes and as tensors."""
        outputs, state = self.test.temp / f"{name}.outputs", self.test.temp / f"{name}.state"
        self.must(tool, step, f"--data={self.data}", "--data-layout=batches", f"--steps={steps}", *self.flags.run,
                  f"--outputs={outputs}", f"--state-out={state}", *flags)
        return kit.load(outputs), kit.load(state)

    def equal(self, what, got, want):
        for kind, mine, theirs in zip(("output", "state"), got, want):
            wrong = [n for n in theirs if n not in mine or mine[n].tobytes() != theirs[n].tobytes()]
            if wrong or len(mine) != len(theirs):
                raise Broken(f"{what}: {kind} differs: {wrong[:4] or sorted(set(mine) - set(theirs))[:4]}")

    def close(self, what, got, want, tolerance):
        """Floating-point tensors, as one vector: some are zero but for rounding."""
        names = [n for n, v in want.items() if v.dtype.kind == "f" and np.isfinite(v).all()]
        a, b = (np.concatenate([np.asarray(t[n], np.float64).ravel() for n in names] + [np.zeros(1)])
                for t in (got, want))
        if not kit.norm(a - b) <= tolerance * max(kit.norm(b), 1e-3):
            raise Broken(f"{what}: off by {kit.norm(a - b) / max(kit.norm(b), 1e-3):.3g}, allowed {tolerance:g}")

    # The checks.

    def check_file(self):
        step = self.opt(self.flags.all(), "step.onnx")
        again = self.opt(self.flags.all(), "again.onnx")
        if step.read_bytes() != again.read_bytes():
            raise Broken("the same flags give other bytes")
        chosen = [f for f in self.flags.all() if f.startswith(("--train", "--freeze", "--loss="))]
        listed = json.loads(self.must("recast-inspect", self.subject.path, "--trainable", "--json=-", *chosen).stdout)
        trained = json.loads(kit.metadata(kit.load_model(step))["recast.parameters"])
        if trained != [entry["name"] for entry in listed["trainable"]]:
            raise Broken(f"{trained} are trained, and listed {listed['trainable']}")
        try:
            onnx.checker.check_model(str(step), full_check=True)
        except Exception as error:  # the checker has no common base class for its errors
            raise Broken(f"onnx.checker: {str(error)[:600]}") from None
        verified = self.tool("recast-inspect", step, "--verify")
        rules = set(re.findall(r"error: ([a-z-]+):", verified.stderr))
        # The mean of means is what --normalize may ask for.
        if verified.returncode and not (rules == {"mean-of-means"} and self.flags.has("--normalize")):
            raise Broken(f"--verify: {verified.stderr[-1500:]}")
        return step

    def check_run(self, step):
        planned, used = arena_of(self.must("recast-run", step, f"--data={self.data}", "--data-layout=batches",
                                           "--explain"))
        if planned != used:
            raise Broken(f"arena: {planned} planned, {used} used")
        result = outputs, state = self.train(step, "run", "--threads=1")
        wild = [n for n, v in state.items() if v.dtype.kind in "fV" and not np.isfinite(v.astype(np.float64)).all()]
        if wild:
            raise Broken(f"state is not finite: {wild[:5]}")
        names = self.metrics(step)
        skipped = outputs[names["found_inf"]].ravel().astype(bool) if "found_inf" in names else np.zeros(STEPS, bool)
        for metric in ("loss", "grad_norm"):
            if metric in names and not np.isfinite(outputs[names[metric]].ravel().astype(np.float64)[~skipped]).all():
                raise Broken(f"{metric} is not finite in a step that was not skipped: {outputs[names[metric]].ravel()}")
        if skipped.any() and self.exact and not self.flags.has("--loss-scale") and self.flags.precision != "f16":
            raise Broken(f"steps are skipped: {skipped}")
        return result

    def metrics(self, step):
        """Metric -> the output that has it: a name that the model takes gets a suffix."""
        facts = kit.metadata(kit.load_model(step))
        names = {re.sub(r"_\d+$", "", name): name for name in json.loads(facts["recast.metrics"])}
        return names | {"loss": facts["recast.loss"]}

    def check_threads(self, step, want):
        """Convolutions are left out: the library that runs them sums in an order that depends on the threads."""
        if "Conv" in combination_models.operators(kit.load_model(self.subject.path)):
            return
        self.equal("two threads", self.train(step, "two", "--threads=2"), want)

    def check_reference(self, step, want):
        """f32: a difference starts in the last place and grows like that of another order of summation."""
        if self.flags.precision != "f32":
            return
        generated, reference = (self.train(step, k, f"--kernels={k}", steps=1) for k in ("generated", "reference"))
        names = set(self.metrics(step).values())
        pick = lambda run: {n: v for n, v in run[0].items() if n in names}
        self.close("generated against reference", pick(generated), pick(reference), 1e-5)

    def check_plan(self, step, want):
        if self.subject.sizes and not self.flags.bound:
            return
        plan = self.opt(["--emit=plan", "--threads=1"], "step.plan", step)
        self.equal("recast-exec", self.train(plan, "exec", "--threads=1", tool="recast-exec"), want)
        direct = self.opt([*self.flags.all(), "--emit=plan", "--threads=1"], "direct.plan")
        self.equal("recast-exec, from the model", self.train(direct, "direct", "--threads=1", tool="recast-exec"), want)

    def check_resume(self, step, want):
        folder = [f"--checkpoint-dir={self.test.temp / 'checkpoints'}", "--threads=1"]
        data = [step, f"--data={self.data}", "--data-layout=batches"]
        if not self.flags.run:
            self.must("recast-run", *data, "--steps=2", "--checkpoint-every=1", *folder)
            state = self.test.temp / "resumed.state"
            self.must("recast-run", *data, f"--steps={STEPS}", "--resume", f"--state-out={state}", *folder)
            for file in (self.test.temp / "checkpoints").iterdir():
                file.unlink()
            self.equal("resumed", (kit.load(state),), (want[1],))

    def check_recompute(self, step, want):
        if not self.flags.memory or not self.exact:
            return
        plain = self.opt(self.flags.without("--memory-budget", "--checkpoint"), "plain.onnx")
        self.equal("without recomputing", self.train(plain, "plain", "--threads=1"), want)

    def check_device(self, step, want):
        plain = self.flags.precision == "f32" and self.flags.optimizer == "sgd" and not self.flags.has("--dtype")
        if not plain or {"f64", "dropout"} & self.subject.traits:
            return
        done = self.test.tool("recast-run", step, f"--data={self.data}", "--data-layout=batches", "--steps=1",
                              "--device=check", f"--outputs={self.test.temp / 'device.outputs'}", ok=False, timeout=300)
        if done.returncode:
            raise Broken(f"--device=check: {done.stderr.strip()[-600:]}")
        names = set(self.metrics(step).values())
        self.close("the checking device", {n: v for n, v in kit.load(self.test.temp / "device.outputs").items()
                                           if n in names},
                   {n: v[:1] for n, v in want[0].items() if n in names}, 1e-5)

    def check_forms(self, step, want):
        for form in ("gradient", "training-info", "inference", "forward", "mlir"):
            keep = {"gradient": ("--precision", "--dtype", "--dim", "--freeze", "--accumulate", "--memory-budget",
                                 "--checkpoint", "--policy", "--train", "--loss"),
                    "inference": ("--dim", "--dtype", "--loss"),
                    "forward": ("--precision", "--dim", "--policy")}.get(form)
            flags = [f for f in self.flags.all() if not keep or f.split("=")[0] in keep]
            ending = "mlir" if form == "mlir" else "onnx"
            out = self.opt([*flags, f"--emit={form}"], f"{form}.{ending}")
            if form == "mlir":
                text = self.opt(["--emit=step"], "text.onnx", out)
                self.equal("through MLIR text", self.train(text, "text", "--threads=1"), want)
                continue
            try:
                onnx.checker.check_model(str(out), full_check=True)
            except Exception as error:
                raise Broken(f"--emit={form}: onnx.checker: {str(error)[:600]}") from None
            if form == "training-info":
                joined = self.opt([], "joined.onnx", out)
                self.close("training-info", self.train(joined, "joined", "--threads=1")[1], want[1], 1e-6)

    def check_shares(self, step, want):
        """Micro-batches and ranks share what one batch has. In f64 both sides round at 1e-16; sums in another order,
        and gradients that cancel, lose some digits."""
        if not self.flags.bound or not self.flags.subject.batch or self.subject.traits & {"statistics", "dropout"}:
            return
        k, s = 2, self.subject
        gone = ("--accumulate", "--precision", "--dtype", "--normalize", "--data-parallel", "--dim", "--memory-budget",
                "--checkpoint", "--policy", "--optimizer", "--loss-scale", "--amsgrad", "--betas", "--centered",
                "--momentum", "--nesterov", "--dampening", "--lr-decay", "--initial-accumulator",
                "--decoupled-weight-decay", "--weight-decay")
        flags = [f for f in self.flags.without(*gone) if not f.startswith("--fp8")]
        flags += ["--optimizer=sgd", "--dtype=f64"]
        whole = self.opt(flags, "whole.onnx")
        parts = self.opt([*flags, f"--accumulate={k}"], "parts.onnx")
        rows = self.test.temp / "rows.safetensors"
        # Batches of k times the rows: two batches in a row are one.
        symbolic = {v.name for v in kit.load_model(s.path).graph.input
                    if v.name in s.batches and v.type.tensor_type.shape.dim and
                    v.type.tensor_type.shape.dim[0].dim_param == s.batch}
        if symbolic != set(s.batches):
            return
        kit.save(rows, {n: v.reshape(v.shape[0] // k, k * v.shape[1], *v.shape[2:]) for n, v in s.batches.items()})
        got = self.train(parts, "parts", "--threads=1")
        data, self.data = self.data, rows
        want = self.train(whole, "whole", "--threads=1")
        self.data = data
        self.close("micro-batches", got[1], want[1], 1e-10)
        ranks = self.opt([*flags, "--data-parallel"], "ranks.onnx")
        out = self.test.temp / "ranks.state"
        codes, said = finish(start(self.test, "gloo", 2, [ranks, f"--data={self.data}", "--data-layout=batches",
                                                          f"--steps={STEPS}", f"--state-out={out}", *self.flags.run]))
        if any(codes):
            raise Broken(f"two ranks: exit status {codes}: {said[-1000:]}")
        self.close("two ranks", kit.load(out), want[1], 1e-12)

    def check(self):
        step = self.check_file()
        want = self.check_run(step)
        checks = [self.check_threads, self.check_reference, self.check_plan, self.check_resume, self.check_device,
                  self.check_forms, self.check_shares]
        self.check_recompute(step, want)
        for index in self.rng.permutation(len(checks))[:3]:
            checks[index](step, want)


def main():
    test = kit.Test(__doc__, "SEEDS")
    for seed in test.seeds():
        words = ""
        try:
            combination = Combination(test, seed)
            words = combination.words
            combination.check()
            test.check(True, f"{seed}: {words}")
        except Refused as limit:
            test.check(True, f"{seed}: {limit}: {words}")
        except Broken as broken:
            test.check(False, f"{seed}: {broken}\n      {words}")
        except Exception:
            test.check(False, f"{seed}: {traceback.format_exc()}\n      {words}")
    test.finish()


if __name__ == "__main__":
    sys.exit(main())
