"""recast-inspect --verify on mutated steps: written in another way they stay clean, and with a fault they are reported
under its rule, with a chain of nodes in the order of execution that passes the faulty one.

The subject is a seed, or a range of them as 0-23. Each takes one step of recast-opt, and one of plain_steps.py, which
another set of random rewrites (step_rewrites.py) disguises for every fault (step_faults.py).
"""
import json
import re
import traceback
from collections import Counter

import kit
import numpy as np
import onnx
import step_faults as faults
import step_rewrites as rewrites
import verify_rules

NORM, VALUE = "--clip-grad-norm=1", "--clip-grad-value=0.5"
STEPS = [
    ("mlp", "--precision=f16", NORM, "--ema=0.99"),
    ("mlp", "--precision=f16", VALUE, "--optimizer=sgd", "--momentum=0.9", "--nesterov", "--loss-scale=1024"),
    ("mlp", "--precision=bf16", "--loss-scale=dynamic", "--optimizer=adam", "--weight-decay=0.1", "--amsgrad"),
    ("mlp", "--precision=fp8-delayed", "--loss-scale=dynamic", NORM),
    ("mlp_gelu_mse", "--precision=f16", "--accumulate=3", NORM, "--ema=0.9"),
    ("mlp", "--loss-scale=dynamic", "--optimizer=rmsprop", "--centered", "--momentum=0.9", VALUE),
    ("lenet", "--precision=f16", "--optimizer=adagrad", NORM),
    ("mlp", "--precision=bf16", "--accumulate=2", "--loss-scale=65536", "--optimizer=nadam"),
    ("mlp_gelu_mse", "--precision=f16", "--optimizer=radam", VALUE, "--ema=0.99"),
    ("mlp", "--precision=f16", "--optimizer=lion", "--loss-scale-hysteresis=2", "--monitor=each"),
    ("nanogpt", "--precision=f16", "--checkpoint=sqrt", "--dim=batch=2", NORM),
    ("resnet_tiny", "--precision=f16", "--checkpoint=sqrt", "--optimizer=sgd", "--momentum=0.9"),
    ("mlp", "--precision=fp8-current", "--loss-scale=dynamic", "--clip-grad-norm-type=inf", NORM),
    ("bert_tiny", "--precision=bf16", "--loss-scale=dynamic", "--memory-budget=80%", NORM),
    ("mlp", "--precision=mxfp8", "--accumulate=2", "--loss-scale=dynamic", VALUE),
    ("gpt2_tiny", "--precision=fp8-delayed", "--accumulate=2", "--loss-scale=dynamic", NORM),
]
ORT = ["training_model.onnx", "adamw.onnx"]
FAULTS_EACH = 4  # Of a step and seed.


class Mutations:
    def __init__(self, test):
        self.test = test
        self.path, self.facts = test.temp / "step.onnx", test.temp / "facts.json"
        self.steps = {}

    def step(self, index):
        if index not in self.steps:
            model, *flags = STEPS[index]
            folder = self.test.corpus / "torch" / model
            self.test.tool("recast-opt", folder / "model.onnx", *flags, "-o", self.path)
            self.steps[index] = onnx.load(self.path)
            rewrites.name_nodes(self.steps[index])
        return rewrites.copy_of(self.steps[index])

    def mean_of_means(self):
        source = self.test.corpus / "dynamics" / "accumulation" / "model.onnx"
        self.test.tool("recast-opt", source, "--accumulate=4", "--normalize=micro-batches", "-o", self.path)
        model = onnx.load(self.path)
        rewrites.name_nodes(model)
        return model

    def disguise(self, rng, model, own, without=()):
        """Rewrites the model; in words how."""
        inputs = {v.name for v in model.graph.input}
        hasState = any(t.name not in inputs and np.prod(t.dims) > 4 for t in model.graph.initializer)
        # For onnxruntime an initializer that is no input is a constant, and no state.
        without = [*without, rewrites.optimize] if hasState else without
        chosen = [r for r in rewrites.REWRITES if rng.random() < 0.35 and r not in without]
        if own and rng.random() < 0.7 and rewrites.inline not in chosen:
            chosen.append(rewrites.inline)
        if rng.random() < 0.5:
            rng.shuffle(chosen)
        for rewrite in chosen:
            rewrite(model, rng)
        return ", ".join(r.__name__ for r in chosen) or "as it is"

    def verify(self, model):
        onnx.save(model, self.path)
        self.facts.unlink(missing_ok=True)
        done = self.test.tool("recast-inspect", self.path, "--verify", f"--json={self.facts}", ok=False)
        if done.returncode not in (0, 1) or not self.facts.exists():
            return None, done.stderr[:500]
        return json.loads(self.facts.read_text())["findings"], done.stderr

    def report(self, holds, what, model):
        if not self.test.check(holds, what) and self.test.options.keep:
            name = f"{self.test.options.keep}/{self.test.failures}.onnx"
            onnx.save(model, name)
            print(f"      {name}", flush=True)

    def clean(self, what, model):
        findings, said = self.verify(model)
        text = "" if findings == [] else f", but {said[:700] if findings is None else findings[:2]}"
        self.report(findings == [], f"{what}: clean{text}", model)

    def broken(self, what, model, rules, marks, exact):
        findings, said = self.verify(model)
        got = sorted({f["rule"] for f in findings or []})
        self.report(bool(got) and set(got) <= rules, f"{what}: {' or '.join(sorted(rules))}"
                    + ("" if got and set(got) <= rules else f", but got {got or said[:300]}"), model)
        chains = [f["chain"] for f in findings or []]
        if not got:
            return
        if exact:
            passes = any(is_of(link, mark) for chain in chains for link in chain for mark in marks)
            self.report(passes, f"{what}: the chain passes {marks[:3]}" + ("" if passes else f", but is {chains[:2]}"),
                        model)
        wrong = out_of_order(model, chains)
        self.report(not wrong, f"{what}: in the order of execution" + (f", but {wrong}" if wrong else ""), model)


def is_of(link, mark):
    return re.search(rf"['/]{re.escape(mark)}(#\d+)?['/]", link) is not None


def label(node):
    return node.name or next((o for o in node.output if o), "")


def out_of_order(model, chains):
    """Two successive nodes of a chain, of which the second does not depend on the first; None without such."""
    labels = Counter(label(n) for body in rewrites.all_bodies(model) for n in body.node)
    nodes = {label(n): n for n in model.graph.node if labels[label(n)] == 1}
    maker = {o: n for n in model.graph.node for o in n.output}
    before = {}

    def ancestors(node):
        if label(node) not in before:
            before[label(node)] = names = set()
            work = [node]
            while work:
                for value in rewrites.read_by(work.pop()):
                    other = maker.get(value)
                    if other is not None and label(other) not in names:
                        names.add(label(other))
                        work.append(other)
        return before[label(node)]

    for chain in chains:
        tops = [m[0] for m in (re.findall(r"'([^']*)' \(", link) for link in chain) if m and m[0] in nodes]
        for first, second in zip(tops, tops[1:]):
            if first != second and first not in ancestors(nodes[second]):
                return f"{first} does not lead to {second} in {chain}"
    return None


def mutate(run, seed):
    rng = np.random.default_rng(seed)
    index = seed % len(STEPS)
    name = " ".join(STEPS[index])
    base = run.step(index)
    for i in range(2):
        model = rewrites.copy_of(base)
        if i:
            check = faults.pick(rng, faults.HARMLESS)
            check(faults.Step(model), rng)
            rewrites.shuffle(model, rng)
        how = run.disguise(rng, model, True)
        run.clean(f"{seed}: {name}, {check.__name__ if i else 'whole'}; {how}", model)
    found = []
    for fault in faults.FAULTS:
        model = rewrites.copy_of(base)
        if (made := fault(faults.Step(model), rng)) is not None:
            found.append((fault, model, made))
    for i in sorted(rng.permutation(len(found))[:FAULTS_EACH]):
        fault, model, made = found[i]
        rewrites.shuffle(model, rng)
        # Without barriers nothing tells a recomputation from the first one.
        how = "as it is" if fault is faults.statistics_of_recompute else run.disguise(rng, model, True)
        run.broken(f"{seed}: {name}, {fault.__name__}; {how}", model, *made, exact="optimize" not in how)


def mutate_plain(run, seed):
    """Steps in standard operators, whole and broken, and graphs of ONNX Runtime Training."""
    rng = np.random.default_rng([seed, 1])
    clean, broken = sorted(verify_rules.CLEAN), sorted(verify_rules.BROKEN)
    kind = clean[seed % len(clean)]
    model = verify_rules.CLEAN[kind]()
    how = run.disguise(rng, model, False)
    run.clean(f"{seed}: {kind}; {how}", model)
    for k in range(2):
        kind = broken[(2 * seed + k) % len(broken)]
        rule, build, _ = verify_rules.BROKEN[kind]
        model = build()
        # Folded into other constants, a constant scale is gone; what was unrolled is not alike any more.
        isFolded = "constant scale" in kind or "unrolled" in kind
        how = run.disguise(rng, model, False, without=[rewrites.optimize] if isFolded else [])
        run.broken(f"{seed}: {kind}; {how}", model, {rule}, [], exact=False)
    model = run.mean_of_means()
    how = run.disguise(rng, model, True)
    run.broken(f"{seed}: --normalize=micro-batches; {how}", model, {"mean-of-means"}, [], exact=False)
    file = ORT[seed % len(ORT)]
    model = kit.load_model(run.test.corpus / "ort" / file)
    how = run.disguise(rng, model, False, without=[rewrites.no_names, rewrites.new_names, rewrites.optimize])
    run.clean(f"{seed}: {file}; {how}", model)


def main():
    test = kit.Test(__doc__, "SEEDS", [("--keep", "a folder for models that fail")])
    run = Mutations(test)
    for seed in test.seeds():
        try:
            mutate(run, seed)
            mutate_plain(run, seed)
        except Exception:
            test.check(False, f"{seed}: {traceback.format_exc()}")
    test.finish()


if __name__ == "__main__":
    main()
