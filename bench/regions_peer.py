"""PyTorch's side of bench/regions: reads a line `case mode` and answers with JSON of milliseconds, eager and compiled.

Runs until its input ends. The case `copy` answers with the bandwidth of a large copy, in GB/s, read and written bytes.
"""
import json
import sys
import time

import torch
from torch.nn import functional as F


def best(run, seconds=0.6):
    """Milliseconds of the fastest call."""
    run(), run()
    least, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < seconds:
        before = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - before)
    return least * 1e3


FORWARD = {
    "bias_gelu_cast": lambda x, b: F.gelu(x + b, approximate="tanh").to(torch.bfloat16),
    "bias_relu": lambda x, b: F.relu(x + b),
    "residual_dropout": lambda x, r: r + F.dropout(x, 0.1),
    "layer_norm": lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b),
    "rms_norm": lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-5),
    "softmax": lambda x: F.softmax(x, -1),
    "masked_softmax": lambda x, m: F.softmax(x + m, -1),
    "cross_entropy": lambda x, labels: F.cross_entropy(x, labels),
    "swiglu": lambda g, u: F.silu(g) * u,
}


def timed(case, mode, shapes):
    torch.manual_seed(0)
    if case == "adamw":
        shape = shapes["w"]
        w = torch.nn.Parameter(torch.randn(shape))
        w.grad = torch.randn(shape)
        eager = torch.optim.AdamW([w], lr=1e-3, fused=True)
        plain = torch.optim.AdamW([w], lr=1e-3)
        return best(eager.step), best(torch.compile(plain.step))
    inputs = [torch.randint(0, 100, s) if n == "labels" else torch.randn(s) for n, s in shapes.items() if n != "dy"]
    function = FORWARD[case]
    compiled = torch.compile(function)
    if mode == "forward":
        with torch.no_grad():
            return best(lambda: function(*inputs)), best(lambda: compiled(*inputs))
    dy = torch.randn(shapes["dy"]) if "dy" in shapes else None
    for x, name in zip(inputs, shapes):
        if x.is_floating_point() and name != "m":
            x.requires_grad_()

    def both(f):
        y = f(*inputs)
        grads = torch.autograd.grad(y, [x for x in inputs if x.requires_grad],
                                    None if dy is None else dy.to(y.dtype))
        return grads
    return best(lambda: both(function)), best(lambda: both(compiled))


def main():
    torch.set_num_threads(int(sys.argv[1]))
    for line in sys.stdin:
        request = json.loads(line)
        if request["case"] == "copy":
            a, b = torch.randn(1 << 25), torch.empty(1 << 25)
            answer = 2 * a.nbytes / best(lambda: b.copy_(a)) / 1e6
        else:
            answer = timed(request["case"], request["mode"], request["shapes"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
