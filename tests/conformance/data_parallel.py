"""Several processes train one model: over MPI, and over Gloo where RANK and WORLD_SIZE are set.

Ranks that share a batch get the parameters of one process with all of it, to 1e-12 in f64 and 1e-6 in f32 (sums of the
same addends in another order), with one all-reduce a step. Where they accumulate and count tokens they are compared with
one process that accumulates over as many micro-batches. Scale and skips are compared exactly.
"""
import os
import signal
import socket
import subprocess
import time

import kit
import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import load_file, save_file

F64, F32 = 1e-12, 1e-6
ROOT_MAY_RUN = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def start(test, library, ranks, arguments, of_rank=lambda rank: [], tool="recast-run"):
    """The processes, of which MPI's are children of the only one."""
    command = [str(test.bin / tool), *map(str, arguments), "--threads=1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": test.temp}
    if library == "mpi":
        launch = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
        return [subprocess.Popen(launch + command, env=os.environ | ROOT_MAY_RUN, **pipes)]
    port = str(free_port())
    return [subprocess.Popen(command + of_rank(rank), **pipes,
                             env=os.environ | {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost",
                                               "MASTER_PORT": port}) for rank in range(ranks)]


def finish(processes, timeout=120):
    """Exit codes, and all that was said."""
    said = [process.communicate(timeout=timeout) for process in processes]
    return [process.returncode for process in processes], "".join(out + err for out, err in said)


class Run:
    """State, outputs and words of a run of `ranks` processes; one without a library."""

    def __init__(self, test, name, library, ranks, step, data, flags, tool="recast-run"):
        state, outputs = test.temp / f"{name}.state", test.temp / f"{name}.out"
        arguments = [step, f"--data={data}", f"--state-out={state}", f"--outputs={outputs}", *flags]
        if library:
            codes, self.said = finish(start(test, library, ranks, arguments, tool=tool))
            if any(codes):
                test.stop(f"{name}: exit status {codes}\n{self.said[-2000:]}")
        else:
            self.said = test.tool("recast-run", *arguments, "--threads=1").stderr
        self.state, self.outputs = kit.load(state), kit.load(outputs)


def opt(test, model, name, *flags):
    step = test.temp / f"{name}.onnx"
    test.tool("recast-opt", model, *flags, "-o", step)
    return step


def parameters(run, step):
    """All state that the optimizer changes."""
    return {name: value for name, value in run.state.items() if value.dtype.kind == "f"}


def compare(test, what, got, want, step, tolerance):
    test.all_close(what, {n: (got.state.get(n), v) for n, v in parameters(want, step).items()}, tolerance)
    for name in ("loss", "grad_norm"):
        test.close(f"{what}: {name}", got.outputs[name], want.outputs[name], tolerance)


def one_batch(test):
    """Ranks share what one process takes at once."""
    model, rng = test.corpus / "torch/mlp/model.onnx", np.random.default_rng(7)
    data, steps, batch = test.temp / "rows.safetensors", 6, 16
    # 96 rows: 6 steps of 16, or 5 and a smaller one of 8 at 88.
    rows = {"x": rng.standard_normal((96, 20)), "labels": rng.integers(0, 5, 96)}
    save_file(rows, data)
    short = test.temp / "short.safetensors"
    save_file({n: v[:88] for n, v in rows.items()}, short)
    for dtype, tolerance in (("f64", F64), ("f32", F32)):
        step = opt(test, model, f"mlp-{dtype}", "--data-parallel", f"--dtype={dtype}", "--optimizer=sgd", "--lr=0.1",
                   "--momentum=0.9", "--clip-grad-norm=0.5")
        alone = Run(test, f"alone-{dtype}", None, 1, step, data, [f"--batch-size={batch}", "--shuffle", "--seed=3"])
        for library, ranks in (("mpi", 2), ("mpi", 4), ("gloo", 2), ("gloo", 4)):
            name = f"{library} {ranks} ranks {dtype}"
            shared = Run(test, name.replace(" ", "-"), library, ranks, step, data,
                         [f"--batch-size={batch // ranks}", "--shuffle", "--seed=3"])
            compare(test, name, shared, alone, step, tolerance)
            test.check(f"{ranks} ranks: {steps} all-reduces in {steps} steps, {steps} buckets" in shared.said,
                       f"{name}: one all-reduce a step, as counted")
    plan, flags = test.temp / "mlp.plan", [f"--batch-size={batch // 2}"]
    test.tool("recast-opt", step, "--emit=plan", f"--dim=batch={batch // 2}", "--threads=1", "-o", plan)
    shared = Run(test, "of-model", "mpi", 2, step, data, flags)
    compiled = Run(test, "of-plan", "mpi", 2, plan, data, flags, tool="recast-exec")
    test.check(all(np.array_equal(v, compiled.state[n]) for n, v in shared.state.items()),
               "recast-exec on two ranks ends with the bits of recast-run")
    last = Run(test, "last", None, 1, step, short, [f"--batch-size={batch}"])
    shared = Run(test, "last-shared", "gloo", 2, step, short, [f"--batch-size={batch // 2}"])
    compare(test, "a smaller last batch", shared, last, step, F32)

    # The same file elsewhere: one process, no communication.
    step = opt(test, model, "mlp-ort", "--data-parallel", "--dtype=f32")
    onnx.checker.check_model(str(step), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(step), options, providers=["CPUExecutionProvider"])
    theirs = dict(zip([o.name for o in session.get_outputs()],
                      session.run(None, {"x": rows["x"][:batch].astype(np.float32), "labels": rows["labels"][:batch]})))
    ours = Run(test, "ort", None, 1, step, data, [f"--batch-size={batch}", "--steps=1"])
    for name in ("loss", "grad_norm"):
        test.close(f"onnxruntime: {name}", ours.outputs[name][0], theirs[name], 1e-5)
    return step, data


def tokens(test):
    """One count over all micro-batches and ranks; a rank may have no token at all."""
    model, rng = test.corpus / "dynamics/accumulation/model.onnx", np.random.default_rng(11)
    trace = load_file(test.corpus / "dynamics/accumulation/trace.safetensors")
    shapes = {i.name: [d.dim_value or 2 for d in i.type.tensor_type.shape.dim]
              for i in kit.load_model(model).graph.input}
    ids, labels = (next(n for n in shapes if ("label" in n) == wanted) for wanted in (False, True))
    vocabulary = int(max(v.max() for v in trace.values() if v.dtype.kind == "i")) + 1
    steps, parts = 3, 4
    data = {ids: rng.integers(0, vocabulary, (steps * parts, *shapes[ids])),
            labels: rng.integers(0, vocabulary, (steps * parts, *shapes[labels]))}
    keep = rng.random(data[labels].shape) < np.linspace(0.1, 0.9, steps * parts).reshape(-1, *[1] * len(shapes[labels]))
    keep[2:4] = False  # Of the first step: all that the second of two ranks gets.
    data[labels] = np.where(keep, data[labels], -100)
    file = test.temp / "tokens.safetensors"
    save_file(data, file)
    flags = [*kit.ADAMW, "--dtype=f64"]
    one = opt(test, model, "window", *flags, f"--accumulate={parts}")
    alone = Run(test, "window", None, 1, one, file, ["--data-layout=batches"])
    for ranks in (2, 4):
        micro = parts // ranks
        step = opt(test, model, f"window-{ranks}", *flags, "--data-parallel", f"--accumulate={micro}")
        verified = test.tool("recast-inspect", step, "--verify", ok=False)
        test.check(verified.returncode == 0, f"tokens, {ranks} ranks: the step verifies clean")
        shared = Run(test, f"window-{ranks}", "mpi", ranks, step, file, ["--data-layout=batches"])
        compare(test, f"tokens, {ranks} ranks of {micro} micro-batches", shared, alone, step, F64)
        test.check(np.array_equal(shared.outputs["tokens_1"], alone.outputs["tokens_1"]),  # An input is called tokens.
                   f"tokens, {ranks} ranks: counted over all of them")


def overflow(test):
    """One rank alone overflows: all skip, and the scale is that of one process."""
    model, rng = test.corpus / "dynamics/loss_scale/model.onnx", np.random.default_rng(5)
    rows = {"x": rng.standard_normal((12 * 8, 16)).astype(np.float32), "labels": rng.integers(0, 4, 12 * 8)}
    rows["x"][3 * 8 + 6] = 6e4  # Step 4, the last rank's.
    rows["x"][8 * 8] = -6e4  # Step 9, the first rank's.
    file = test.temp / "overflow.safetensors"
    save_file(rows, file)
    step = opt(test, model, "f16", "--precision=f16", "--data-parallel", "--loss-scale-init=1024",
               "--loss-scale-interval=3", "--optimizer=sgd", "--lr=0.01")
    alone = Run(test, "f16", None, 1, step, file, ["--batch-size=8"])
    skips = alone.outputs["found_inf"].ravel().astype(bool)
    test.check(skips.any() and not skips.all(), f"one process skips steps {np.flatnonzero(skips) + 1}")
    for library, ranks in (("mpi", 2), ("mpi", 4), ("gloo", 2)):
        shared = Run(test, f"f16-{library}-{ranks}", library, ranks, step, file, [f"--batch-size={8 // ranks}"])
        for name in ("found_inf", "loss_scale.next"):
            test.check(np.array_equal(shared.outputs[name], alone.outputs[name]),
                       f"f16, {library} {ranks} ranks: {name} is that of one process at every step")


def several_buckets(test):
    """Gradients of 48 MiB: the first of two buckets is on its way while the backward goes on."""
    rng, width, depth, batch, steps = np.random.default_rng(4), 2048, 3, 8, 3
    nodes, values, x = [], {}, "x"
    for i in range(depth):
        values[f"w{i}"] = (rng.standard_normal((width, width)) * width ** -0.5).astype(np.float32)
        nodes += [onnx.helper.make_node("MatMul", [x, f"w{i}"], [f"h{i}"]),
                  onnx.helper.make_node("Tanh", [f"h{i}"], [f"y{i}"])]
        x = f"y{i}"
    nodes += [onnx.helper.make_node("Mul", [x, x], ["q"]),
              onnx.helper.make_node("ReduceMean", ["q"], ["loss"], keepdims=0)]
    graph = onnx.helper.make_graph(
        nodes, "wide", [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", width])],
        [onnx.helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])],
        [onnx.numpy_helper.from_array(v, n) for n, v in values.items()])
    model, file = test.temp / "wide.onnx", test.temp / "wide.safetensors"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), model)
    save_file({"x": rng.standard_normal((batch * steps, width)).astype(np.float32)}, file)
    buckets = -(-4 * depth * width * width // (32 << 20))  # And a few bytes that fit into the last.
    for micro in (1, 2):
        step = opt(test, model, f"wide-{micro}", "--data-parallel", "--optimizer=sgd", "--lr=10",
                   f"--accumulate={micro}")
        alone = Run(test, f"wide-{micro}-alone", None, 1, step, file, [f"--batch-size={batch // micro}"])
        for library in ("mpi", "gloo"):
            shared = Run(test, f"wide-{micro}-{library}", library, 2, step, file,
                         [f"--batch-size={batch // micro // 2}"])
            test.all_close(f"{library}, {micro} micro-batches: {buckets} buckets",
                           {n: (shared.state[n], alone.state[n]) for n in values}, F32)
            test.check(f"{steps} all-reduces in {steps} steps, {steps * buckets} buckets" in shared.said,
                       f"{library}, {micro} micro-batches: {buckets} buckets a step, as counted")
    return opt(test, model, "wide", "--data-parallel", "--optimizer=sgd"), file


def own_masks(test):
    """Ranks with the same rows draw other dropout masks."""
    rng = np.random.default_rng(2)
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 64])
    loss = onnx.helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["h"]),
             onnx.helper.make_node("Dropout", ["h", "ratio", "train"], ["d"]),
             onnx.helper.make_node("Mul", ["d", "d"], ["q"]),
             onnx.helper.make_node("ReduceMean", ["q"], ["loss"], keepdims=0)]
    values = {"w": rng.standard_normal((64, 8)).astype(np.float32), "ratio": np.float32(0.5), "train": np.bool_(True)}
    graph = onnx.helper.make_graph(nodes, "dropout", [x], [loss],
                                   [onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()])
    model = test.temp / "dropout.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), model)
    rows = rng.standard_normal((4, 64)).astype(np.float32)
    once, twice = test.temp / "once.safetensors", test.temp / "twice.safetensors"
    save_file({"x": rows}, once)
    save_file({"x": np.concatenate([rows, rows])}, twice)
    step = opt(test, model, "masks", "--data-parallel")
    alone = Run(test, "masks-1", None, 1, step, once, ["--batch-size=4"])
    shared = Run(test, "masks-2", "mpi", 2, step, twice, ["--batch-size=4"])
    test.check(abs(shared.outputs["loss"][0] - alone.outputs["loss"][0]) > 1e-3,
               "two ranks with the rows of one process have another loss: their masks differ")
    test.check(shared.state["rng_key"] == alone.state["rng_key"], "and all have the same key in the state")


def statistics(test):
    """Running statistics become the mean over the ranks."""
    model = test.corpus / "torch/resnet_tiny/model.onnx"
    reference = load_file(test.corpus / "torch/resnet_tiny/reference.safetensors")
    rows = {i.name: reference["in." + i.name] for i in kit.load_model(model).graph.input}
    step = opt(test, model, "bn", "--data-parallel", "--dtype=f64")
    halves = []
    for k in range(2):
        file = test.temp / f"half{k}.safetensors"
        save_file({n: np.ascontiguousarray(v[k:k + 1]) for n, v in rows.items()}, file)
        halves.append(Run(test, f"half{k}", None, 1, step, file, ["--data-layout=batches"]))
    file = test.temp / "halves.safetensors"
    save_file({n: np.ascontiguousarray(v[:2]) for n, v in rows.items()}, file)
    shared = Run(test, "halves", "mpi", 2, step, file, ["--data-layout=batches"])
    names = [n for n in shared.state if "running" in n]
    test.check(bool(names), "resnet_tiny has running statistics")
    test.all_close("running statistics are the mean over two ranks",
                   {n: (shared.state[n], (halves[0].state[n] + halves[1].state[n]) / 2) for n in names}, F64)


def amaxes(test):
    """The amax history holds the largest over the ranks."""
    model, rng = test.corpus / "dynamics/loss_scale/model.onnx", np.random.default_rng(9)
    rows = {"x": rng.standard_normal((16, 16)).astype(np.float32), "labels": rng.integers(0, 4, 16)}
    rows["x"][13] *= 8  # Of the second rank.
    file = test.temp / "amax.safetensors"
    save_file(rows, file)
    step = opt(test, model, "fp8", "--precision=fp8-delayed", "--data-parallel")
    alone = Run(test, "fp8-1", None, 1, step, file, ["--batch-size=16"])
    shared = Run(test, "fp8-2", "mpi", 2, step, file, ["--batch-size=8"])
    names = [n for n in alone.state if n.endswith(".amax_history")]
    test.check(bool(names), f"{len(names)} tensors have an amax history")
    # Operands of the forward products do not depend on how the batch is shared.
    same = [n for n in names if np.array_equal(alone.state[n], shared.state[n])]
    test.check(len(same) >= 2 * len(names) // 3, f"{len(same)} of {len(names)} histories are those of one process; the "
               "rest belong to gradients, which a rank's own mean scales")


def devices(test, step, data):
    """CUDA plans on the checking device, one a rank: what ranks on CPUs do, to sums in another order."""
    for library in ("mpi", "gloo"):
        flags = ["--batch-size=8", "--steps=2"]
        on_cpu = Run(test, f"cpu-{library}", library, 2, step, data, flags)
        on_device = Run(test, f"device-{library}", library, 2, step, data, [*flags, "--device=check"])
        compare(test, f"{library}: 2 ranks on devices", on_device, on_cpu, step, F32)
        test.check("2 ranks: 2 all-reduces in 2 steps, 2 buckets" in on_device.said,
                   f"{library}: one all-reduce a step on devices, as counted")
    # fp8: maxima, and 8-bit products where the rank's batch allows them; one micro-batch after the other.
    model, rng = test.corpus / "dynamics/loss_scale/model.onnx", np.random.default_rng(9)
    file = test.temp / "devices.safetensors"
    save_file({"x": rng.standard_normal((64, 16)).astype(np.float32), "labels": rng.integers(0, 4, 64)}, file)
    step = opt(test, model, "fp8-devices", "--precision=fp8-delayed", "--data-parallel", "--accumulate=2",
               "--optimizer=sgd")
    flags = ["--batch-size=16", "--steps=1"]
    on_cpu = Run(test, "cpu-fp8", "mpi", 2, step, file, flags)
    on_device = Run(test, "device-fp8", "mpi", 2, step, file, [*flags, "--device=check", "--cuda-arch=sm_89"])
    compare(test, "fp8, 2 ranks on devices", on_device, on_cpu, step, F32)
    names = [n for n in on_cpu.state if n.endswith(".amax_history")]
    test.check(bool(names) and all(np.allclose(on_device.state[n], on_cpu.state[n], rtol=F32) for n in names),
               f"{len(names)} amax histories are those of ranks on CPUs")


def recovery(test, step, data, wide):
    """A rank that dies ends the run everywhere, and the last checkpoint is whole; going on from it is exact."""
    flags = ["--batch-size=4", "--shuffle", "--checkpoint-every=1"]
    for library, device, what in (("mpi", "cpu", (step, data)), ("gloo", "cpu", (step, data)), ("mpi", "cpu", wide),
                                  ("gloo", "cpu", wide), ("gloo", "check", (step, data))):
        folder = test.temp / f"killed-{library}-{device}-{what[0].stem}"
        processes = start(test, library, 2, [what[0], f"--data={what[1]}", *flags, "--steps=1000000",
                                             f"--device={device}", f"--checkpoint-dir={folder}"])
        until = time.time() + 60
        while time.time() < until and not list(folder.glob("step-*.safetensors")):
            time.sleep(0.05)
        if library == "mpi":
            children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(processes[0].pid)], capture_output=True,
                                      text=True).stdout.split()
            os.kill(int(children[-1]), signal.SIGKILL)
        else:
            processes[1].kill()
        killed = time.time()
        codes, said = finish(processes, timeout=60)
        seconds = time.time() - killed
        test.check(all(codes) and seconds < 10, f"{library}, {device}: a killed rank ends all ranks with {codes}, "
                   f"{seconds:.1f} s later")
        checkpoints = sorted(folder.glob("step-*.safetensors"))
        whole = [load_file(path) for path in checkpoints]
        test.check(bool(whole) and all(set(w) == set(whole[0]) for w in whole),
                   f"{library}, {device}: all {len(whole)} checkpoints are whole")
    through = Run(test, "through", "mpi", 2, step, data, ["--batch-size=4", "--shuffle", "--steps=8"])
    folder = test.temp / "resumed"
    for steps in (5, 8):
        resumed = Run(test, f"resumed-{steps}", "mpi", 2, step, data,
                      [*flags, f"--steps={steps}", f"--checkpoint-dir={folder}", "--resume"])
    test.check(all(np.array_equal(v, resumed.state[n]) for n, v in through.state.items()),
               "two ranks that stop and resume end with the same bits")


def refusals(test, data):
    model = test.corpus / "torch/mlp/model.onnx"
    plain, parallel = opt(test, model, "plain"), opt(test, model, "parallel", "--data-parallel")

    def refuse(what, arguments, wanted, of_rank=lambda rank: []):
        codes, said = finish(start(test, "gloo", 2, arguments, of_rank))
        test.check(all(codes) and wanted in said, f"{what}: {said.strip().splitlines()[-1] if said.strip() else codes}")

    refuse("a step without all-reduce", [plain, f"--data={data}"], "--data-parallel")
    odd = test.temp / "odd.safetensors"
    save_file({n: v[:87] for n, v in load_file(data).items()}, odd)
    refuse("rows that ranks cannot share", [parallel, f"--data={odd}", "--batch-size=8"], "cannot share evenly")
    refuse("one batch for all", [parallel, f"--data={data}", "--data-layout=single"], "--data-layout=single")
    refuse("GPUs that are not there", [parallel, f"--data={data}", "--batch-size=8", "--device=cuda"],
           "--device=cpu")
    refuse("ranks that do different things", [parallel, f"--data={data}", "--steps=2"], "does something else than rank 0",
           lambda rank: [f"--batch-size={8 if rank else 16}"])
    codes, said = finish([subprocess.Popen([str(test.bin / "recast-run"), str(parallel)], stdout=subprocess.PIPE,
                                           stderr=subprocess.PIPE, text=True,
                                           env=os.environ | {"RANK": "2", "WORLD_SIZE": "2"})])
    test.check(codes == [1] and "RANK=2" in said, f"a rank out of range: {said.strip()}")


def main():
    test = kit.Test(__doc__)
    step, data = one_batch(test)
    tokens(test)
    overflow(test)
    wide = several_buckets(test)
    own_masks(test)
    statistics(test)
    amaxes(test)
    devices(test, step, data)
    recovery(test, step, data, wide)
    refusals(test, data)
    test.finish()


if __name__ == "__main__":
    main()
