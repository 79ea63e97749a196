"""If, Loop and Scan run in recast-run as onnxruntime runs them: the corpus's models and graphs of each feature.

Tolerance: both compute in f32 and sum a few dozen elements, in different orders: 1e-5 relative.
"""
import kit
import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import save_file

F32 = 1e-5
HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
GRAPHS = {
    "scan: states, slices, captured values": """
      g (float[5,3] x, float[3] start, float[3] w) => (float[3] last, float[5,3] all) {
        last, all = Scan <num_scan_inputs = 1, body = b (float[3] s, float[3] xi) => (float[3] t, float[3] o) {
          m = Mul (xi, w)
          t = Add (s, m)
          o = Identity (t)
        }> (start, x)
      }""",
    "scan: backwards, other axes": """
      g (float[3,5] x, float[5,3] y, float[3] start) => (float[3] last, float[3,5] all) {
        last, all = Scan <num_scan_inputs = 2, scan_input_axes = [1, -2], scan_input_directions = [1, 0],
                          scan_output_axes = [-1], scan_output_directions = [1],
                          body = b (float[3] s, float[3] xi, float[3] yi) => (float[3] t, float[3] o) {
          m = Mul (xi, yi)
          t = Sub (m, s)
          o = Exp (t)
        }> (start, x, y)
      }""",
    "scan: states that change places": """
      g (float[4,2] x, float[2] a, float[2] b) => (float[2] p, float[2] q, float[4,2] all) {
        p, q, all = Scan <num_scan_inputs = 1,
                          body = c (float[2] s, float[2] t, float[2] xi) => (float[2] v, float[2] u, float[2] o) {
          v = Identity (t)
          u = Add (s, xi)
          o = Mul (s, t)
        }> (a, b, x)
      }""",
    "scan in scan: slices read from two levels down": """
      g (float[3,4,2] x, float[2] a) => (float[2] p) {
        p = Scan <num_scan_inputs = 1, body = c (float[2] s, float[4,2] xi) => (float[2] t) {
          r = ReduceMean <keepdims = 0, noop_with_empty_axes = 0> (xi)
          t = Scan <num_scan_inputs = 1, body = d (float[2] v, float[2] xj) => (float[2] z) {
            y = Mul (xj, r)
            z = Add (v, y)
          }> (s, xi)
        }> (a, x)
      }""",
    "scan: a state without a use": """
      g (float[4,2] x, float[2] a, float[2] b) => (float[2] q, float[4,2] all) {
        nobody, q, all = Scan <num_scan_inputs = 1,
                               body = c (float[2] s, float[2] t, float[2] xi) => (float[2] v, float[2] u, float[2] o) {
          v = Add (s, xi)
          u = Mul (t, v)
          o = Mul (s, t)
        }> (a, b, x)
      }""",
    "loop: a state without a use": """
      g (float[2] x, float[2] z) => (float[2] y) <int64 n = {3}, bool go = {1}> {
        nobody, y = Loop <body = b (int64 i, bool c, float[2] s, float[2] t) => (bool c, float[2] u, float[2] v) {
          u = Add (s, x)
          v = Mul (t, u)
        }> (n, go, z, x)
      }""",
    "loop: count and condition, collected values": """
      g (float[2] x) => (float[2] y, float[4,2] all) <int64 n = {4}, bool go = {1}> {
        y, all = Loop <body = b (int64 i, bool c, float[2] s) => (bool c, float[2] t, float[2] o) {
          f = Cast <to = 1> (i)
          t = Add (s, f)
          o = Mul (t, x)
        }> (n, go, x)
      }""",
    "loop: ends by its condition": """
      g (float[2] x) => (float[2] y) {
        go = Constant <value = bool {1}> ()
        limit = Constant <value_float = 100.0> ()
        y = Loop <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t) {
          t = Add (s, s)
          a = Abs (t)
          m = ReduceMax <keepdims = 0> (a)
          d = Less (m, limit)
        }> (, go, x)
      }""",
    "loop: no iteration": """
      g (float[2] x, int64 n) => (float[2] y) {
        go = Constant <value = bool {1}> ()
        y = Loop <body = b (int64 i, bool c, float[2] s) => (bool c, float[2] t) {
          t = Add (s, s)
        }> (n, go, x)
      }""",
    "if: both branches, else named first": """
      g (float[2] x, float[2] w) => (float[2] y, float[2] z) {
        zero = Constant <value_float = 0.0> ()
        s = ReduceSum <keepdims = 0> (x)
        c = Less (s, zero)
        y = If (c) <else_branch = e () => (float[2] u) { u = Mul (x, w) }, then_branch = t () => (float[2] v) { v = Neg (x) }>
        d = Not (c)
        z = If (d) <then_branch = t2 () => (float[2] v2) { v2 = Neg (w) }, else_branch = e2 () => (float[2] u2) { u2 = Add (x, w) }>
      }""",
    "if: a constant condition, another branch of another shape": """
      g (float[2] x) => (float[2] y) {
        c = Constant <value = bool {0}> ()
        y = If (c) <then_branch = t () => (float[1,2] v) { a = Constant <value_ints = [0]> () v = Unsqueeze (x, a) },
                    else_branch = e () => (float[2] u) { u = Neg (x) }>
      }""",
}


def inputs_of(session, rng):
    data = {}
    for i in session.get_inputs():
        shape = [d if isinstance(d, int) else 3 for d in i.shape]
        if i.type == "tensor(int64)":
            data[i.name] = np.zeros(shape, np.int64)
        else:
            data[i.name] = rng.standard_normal(shape).astype(np.float32)
    return data


def without_unused(path, target):
    """The model with the outputs called nobody left out, which onnxruntime cannot run."""
    model = onnx.load(str(path))
    for node in model.graph.node:
        node.output[:] = ["" if output == "nobody" else output for output in node.output]
    onnx.save(model, str(target))


def compare(test, name, path, data):
    """`data` holds one more axis in front: a step each."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    file, outputs = test.temp / "in.safetensors", test.temp / "out.safetensors"
    save_file({n: np.ascontiguousarray(v) for n, v in data.items()}, file)
    ours = test.temp / "ours.onnx"
    without_unused(path, ours)
    test.tool("recast-run", ours, f"--data={file}", "--data-layout=batches", f"--outputs={outputs}")
    got = kit.load(outputs)
    for step in range(len(next(iter(data.values())))):
        want = session.run(None, {n: np.asarray(v[step]) for n, v in data.items()})
        for output, value in zip(session.get_outputs(), want):
            test.close(f"{name}: step {step}, {output.name}", got[output.name][step], value, F32)


def main():
    test = kit.Test(__doc__)
    rng = np.random.Generator(np.random.PCG64(0))
    for name, text in GRAPHS.items():
        model = onnx.parser.parse_model(HEAD + text)
        onnx.checker.check_model(model)
        path = test.temp / "model.onnx"
        onnx.save(model, path)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        batches = [inputs_of(session, rng) for _ in range(3)]
        compare(test, name, path, {n: np.stack([b[n] for b in batches]) for n in batches[0]})
    for name in ("ctrl_if", "ctrl_scan"):
        folder = test.corpus / "torch" / name
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
        reference, data = kit.load(folder / "reference.safetensors"), {}
        for i in session.get_inputs():
            data[i.name] = reference["in." + i.name].astype(np.float32 if i.type == "tensor(float)" else np.int64)
        compare(test, name, folder / "model.onnx", data)
    test.finish()


if __name__ == "__main__":
    main()
