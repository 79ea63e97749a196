"""Adam, Adagrad and Momentum of ai.onnx.preview.training run, and give the numbers of ONNX's reference.

The trace holds single steps at T = 0, 1, 2 and 1000, by onnx.reference in double: 1e-12 relative, both sides round at
1e-16. One node optimizes several tensors; early models spell the domain ai.onnx.preview. Such a node in f32 and f16 is
compared with f64: 2^-20 and 2^-9 of the largest value, a few roundings.
"""
import json

import kit
import numpy as np
import onnx
from onnx import TensorProto, helper
from safetensors.numpy import save_file

EXACT = 1e-12
DOMAIN = "ai.onnx.preview.training"


def model(kind, attributes, tensors, domain, element=TensorProto.DOUBLE):
    """tensors: for each optimized tensor the names of X, G and its states."""
    roles = list(zip(*tensors))
    flat = [name for role in roles for name in role]
    new = [f"{name}_new" for role, names in enumerate(roles) if role != 1 for name in names]
    node = helper.make_node(kind, ["R", "T", *flat], new, "update", domain=domain, **attributes)
    info = lambda name, shape, kind=element: helper.make_tensor_value_info(name, kind, shape)
    graph = helper.make_graph([node], "step", [info("R", []), info("T", [], TensorProto.INT64)]
                              + [info(n, [3, 4]) for n in flat], [info(n, [3, 4]) for n in new])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)],
                             ir_version=8)


def run(test, proto, feeds):
    path, data, outputs = test.temp / "m.onnx", test.temp / "d.safetensors", test.temp / "o.safetensors"
    onnx.save(proto, path)
    save_file({k: np.array(v) for k, v in feeds.items()}, data)
    test.tool("recast-run", path, f"--data={data}", "--data-layout=single", f"--outputs={outputs}")
    return {name: value[0] for name, value in kit.load(outputs).items()}


def main():
    test = kit.Test(__doc__)
    folder = test.corpus / "dynamics" / "optimizers"
    facts = json.loads((folder / "trace.json").read_text())["onnx_preview"]
    tensors = kit.load(folder / "trace.safetensors")
    x, g = tensors["init.matrix"], tensors["grad.matrix"][0]
    states = [np.abs(tensors["grad.matrix"][i]) for i in (1, 2)]
    for name, attributes in facts["attributes"].items():
        kind, count = name.split(".")[0], 2 if name == "Adam" else 1
        one = ["X", "G", *(f"S{i}" for i in range(count))]
        for t in (0, 1, 2, 1000):
            feeds = {"R": np.float64(facts["R"]), "T": np.int64(t), "X": x, "G": g,
                     **{f"S{i}": s for i, s in enumerate(states[:count])}}
            want = {n.rsplit(".", 1)[1]: v for n, v in tensors.items() if n.startswith(f"onnx.{name}.T{t}.")}
            test.check(len(want) == 1 + count, f"{name}, T = {t}: the trace has {sorted(want)}")
            for domain in (DOMAIN, "ai.onnx.preview"):
                got = run(test, model(kind, attributes, [one], domain), feeds)
                test.all_close(f"{name}, T = {t}, {domain}", {n: (got.get(n), v) for n, v in want.items()}, EXACT)
        # Two tensors in one node: the second is the first one's negative, which every formula mirrors.
        two = [one, [f"{n}b" for n in one]]
        mirrored = {f"{n}b": -v if n in ("X", "G") or kind == "Momentum" else v for n, v in feeds.items() if n in one}
        mirrored |= {"S0b": -states[0]} if kind == "Adam" else {}
        both = run(test, model(kind, attributes, two, DOMAIN), feeds | mirrored)
        test.all_close(f"{name}: two tensors, the first", {n: (both.get(n), v) for n, v in want.items()}, EXACT)
        test.close(f"{name}: two tensors, the second", -both["Xb_new"], want["X_new"], EXACT)
        for element, dtype, bits in ((TensorProto.FLOAT, np.float32, 20), (TensorProto.FLOAT16, np.float16, 9)):
            low = {n: v.astype(dtype) if n != "T" else v for n, v in feeds.items()}
            got = run(test, model(kind, attributes, [one], DOMAIN, element), low)
            worst = max(float(np.max(np.abs(got[n].astype(np.float64) - v)) / np.max(np.abs(v))) for n, v in want.items())
            test.check(worst <= 2.0 ** -bits, f"{name} in {np.dtype(dtype)}: worst {worst:.3g}, allowed {2.0 ** -bits:.3g}")
    broken = model("Momentum", {"alpha": 0.9, "beta": 0.5, "mode": "heavy", "norm_coefficient": 0.0},
                   [["X", "G", "S0"]], DOMAIN)
    onnx.save(broken, test.temp / "broken.onnx")
    done = test.tool("recast-run", test.temp / "broken.onnx", f"--data={test.temp / 'd.safetensors'}",
                     "--data-layout=single", ok=False)
    test.check(done.returncode == 1 and "update" in done.stderr and "heavy" in done.stderr,
               f"an unknown mode is refused: {done.stderr.strip()}")
    test.finish()


if __name__ == "__main__":
    main()
