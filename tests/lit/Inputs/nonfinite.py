"""Three batches for nonfinite.onnxtxt: a good one, a division by zero, a NaN in the data."""
import sys

import numpy as np
from safetensors.numpy import save_file

x = np.array([[1, 2], [1, 2], [np.nan, 2]], np.float32)
y = np.array([[1, 1], [1, 0], [1, 1]], np.float32)
save_file({"x": x, "y": y}, sys.argv[1])
