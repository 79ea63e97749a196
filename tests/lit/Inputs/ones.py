"""Writes x = ones [4, 64]."""
import sys

import numpy as np
from safetensors.numpy import save_file

save_file({"x": np.ones((4, 64), np.float32)}, sys.argv[1])
