"""Values that wait in the host's memory: within the budget to the byte, and not a bit of the numbers changes.

A profile in which all arithmetic is slow and copies are fast makes the solver offload; the default one may not. At each
budget: arena and host memory of the run are those planned, the arena fits, and losses, metrics and the whole new state
of two steps equal those without recomputing bit for bit. The step passes onnx.checker, and onnxruntime agrees with
itself without offload. The same with micro-batches, whose body has host memory of its own; and from a plan file. At
the least arena offload needs no more than recomputation alone does.
"""
import json

import kit
from checkpoint_kit import (arena_of, batch_dims, check_step, different, host_of, onnxruntime_metrics, report_of,
                            rewrite, train)
from safetensors.numpy import save_file

BUDGETS = (80, 50)
MICRO_BATCHES = 2


def slow_arithmetic(test):
    """A profile with which a copy costs less than any second run."""
    peaks = {kind: {"f32": 1e-3} for kind in ("product", "convolution", "element-wise", "reduction")}
    profile = {"version": 1, "machine": "slow arithmetic", "threads": 1, "step_overhead_ns": 1, "memory_gb_per_s": 1e-3,
               "moves_gb_per_s": 1e-3, "host_gb_per_s": 100, "host_latency_ns": 1, "peaks_gflop_per_s": peaks,
               "operators": []}
    path = test.temp / "profile.json"
    path.write_text(json.dumps(profile))
    return f"--cost-profile={path}"


def transfers(model):
    nodes = list(kit.walk_nodes(model.graph))
    return [[n for n in nodes if n.domain == "recast" and n.op_type == op] for op in ("offload", "fetch")]


def check_graph(test, name, step, report):
    """The file, the report and the run's plan say the same."""
    offloads, fetches = transfers(kit.load_model(step))
    named = [entry["tensor"] for entry in report_of(report)["offloaded"]]
    test.check(sorted(n.input[0] for n in offloads) == sorted(named) and len(set(named)) == len(named),
               f"{name}: {len(offloads)} values are offloaded once each, and reported")
    copies = {n.output[0] for n in offloads}
    test.check(len(fetches) >= len(copies) and {n.input[0] for n in fetches} == copies,
               f"{name}: {len(fetches)} fetches read all of them")


def check_host(test, name, step, data):
    """A plan has memory of the host where the file has copies, and no other."""
    done = test.tool("recast-run", step, f"--data={data}", "--data-layout=batches", "--steps=1", "--explain")
    (planned, used), (offloads, _) = host_of(done), transfers(kit.load_model(step))
    test.check(planned == used and (planned > 0) == bool(offloads),
               f"{name}: {planned} bytes of the host planned for {len(offloads)} values, {used} used")


def check_model(test, dims, fast):
    flags = [*kit.ADAMW, *dims, fast]
    plain, _ = rewrite(test, "plain", *flags, "--checkpoint=none")
    size, _, base = train(test, plain, "plain")
    reference = onnxruntime_metrics(plain, test.want)
    for percent in BUDGETS:
        report = test.temp / f"{percent}.json"
        step, done = rewrite(test, f"{percent}", *flags, f"--memory-budget={percent}%", "--offload",
                             f"--report={report}", ok=False)
        if done.returncode:
            test.check("the least that was found is" in done.stderr, f"{percent}%: refused, with a floor")
            continue
        check_step(test, f"{percent}%", step, size * percent // 100, base, reference)
        check_graph(test, f"{percent}%", step, report)
        check_host(test, f"{percent}%", step, test.data)
    recomputed, _ = rewrite(test, "recomputed", *flags, "--memory-budget=min")
    least, _ = rewrite(test, "min", *flags, "--memory-budget=min", "--offload")
    floor = arena_of(test.tool("recast-run", recomputed, f"--data={test.data}", "--data-layout=batches", "--steps=1",
                               "--explain"))[0]
    check_step(test, "min", least, floor, base, reference)
    check_host(test, "min", least, test.data)
    check_plan(test, least, base)


def check_plan(test, step, base):
    plan, outputs = test.temp / "step.plan", test.temp / "plan.safetensors"
    test.tool("recast-opt", step, "--emit=plan", "-o", plan)
    test.tool("recast-exec", plan, f"--data={test.data}", "--data-layout=batches", "--steps=2", f"--outputs={outputs}")
    wrong = different(kit.load(outputs), base)
    test.check(not wrong, f"the plan file gives the same bits {wrong[:4] or ''}")


def check_accumulated(test, dims, fast):
    """Micro-batches: the body of the Scan offloads."""
    data = test.temp / "micro.safetensors"
    save_file({n.removeprefix("in."): v[None, :MICRO_BATCHES].copy() for n, v in test.want.items()
               if n.startswith("in.")}, data)
    flags = [*kit.ADAMW, *dims, fast, f"--accumulate={MICRO_BATCHES}"]
    results = {}
    for name, more in (("plain", ["--checkpoint=none"]), ("offloaded", ["--memory-budget=min", "--offload"])):
        step, _ = rewrite(test, f"accumulated_{name}", *flags, *more)
        outputs = test.temp / f"accumulated_{name}.safetensors"
        test.tool("recast-run", step, f"--data={data}", "--data-layout=batches", "--steps=1", f"--outputs={outputs}")
        results[name] = kit.load(outputs)
    wrong = different(results["offloaded"], results["plain"])
    test.check(not wrong, f"accumulated: {len(results['plain'])} outputs equal bit for bit {wrong[:4] or ''}")
    check_host(test, "accumulated", step, data)
    main = [n for n in kit.load_model(step).graph.node if n.op_type in ("offload", "fetch")]
    test.check(not main, "accumulated: all copies are in the body")


def main():
    test = kit.Test(__doc__, "MODEL")
    _, test.want = kit.reference(test)
    dims, fast = batch_dims(test), slow_arithmetic(test)
    check_model(test, dims, fast)
    check_accumulated(test, dims, fast)
    for flags, says in ((["--offload"], "--memory-budget"),
                        (["--offload", "--memory-budget=80%", "--checkpoint=sqrt"], "--checkpoint")):
        _, done = rewrite(test, "wrong", *dims, *flags, ok=False)
        test.check(done.returncode == 2 and says in done.stderr and len(done.stderr.strip().splitlines()) == 1,
                   f"{' '.join(flags)} is refused")
    test.finish()


if __name__ == "__main__":
    main()
