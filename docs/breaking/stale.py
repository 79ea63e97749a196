#!/usr/bin/env python3
"""Makes the fp8 histories of a state stale: stale.py STATE FACTOR OUT multiplies every amax in them by FACTOR, and
divides every scale by it, as if the tensors had been FACTOR times as large until now."""
import sys

import numpy as np
from safetensors.numpy import load_file, save_file


def main():
    if len(sys.argv) != 4:
        print("usage: stale.py STATE FACTOR OUT", file=sys.stderr)
        sys.exit(2)
    factor = np.float32(sys.argv[2])
    state = load_file(sys.argv[1])
    for name in state:
        if name.endswith(".amax_history"):
            state[name] *= factor
        elif name.endswith(".fp8_scale"):
            state[name] /= factor
    save_file(state, sys.argv[3])


if __name__ == "__main__":
    main()
