"""The committed models pass the ONNX checker and come out of their scripts byte for byte; the data is complete."""
import subprocess
import sys
import tempfile
from pathlib import Path

import kit
import numpy as np
import onnx

MODELS = Path(__file__).resolve().parents[2] / "models"


def main():
    failures = 0

    def check(holds, text):
        nonlocal failures
        failures += not holds
        print(("ok    " if holds else "FAIL  ") + text)

    with tempfile.TemporaryDirectory() as temp:
        for script in sorted(MODELS.glob("*/make_model*.py")):
            out = Path(temp) / script.parent.name
            done = subprocess.run([sys.executable, script, "--out", out], capture_output=True, text=True)
            check(done.returncode == 0, f"{script.relative_to(MODELS)} runs {done.stderr.strip()[-500:]}")
        committed = sorted(MODELS.glob("*/*.onnx"))
        check(committed, f"{len(committed)} committed models")
        for path in committed:
            name = path.relative_to(MODELS)
            try:
                onnx.checker.check_model(str(path), full_check=True)
                check(True, f"{name} passes onnx.checker")
            except Exception as error:  # the checker has no common base class for its errors
                check(False, f"{name}: {error}")
            again = Path(temp) / name
            check(again.exists() and again.read_bytes() == path.read_bytes(), f"{name} comes out of its script again")
            check(path.stat().st_size < 1 << 20, f"{name}: {path.stat().st_size} bytes, under 1 MiB")

    for split, count in (("train", 1437), ("test", 360)):
        data = kit.load(MODELS / "digits" / f"{split}.safetensors")
        x, labels = data["x"], data["labels"]
        check(x.shape == (count, 1, 8, 8) and x.dtype == np.float32 and x.min() == 0 and x.max() == 1,
              f"digits/{split}: x is f32 [{count}, 1, 8, 8] in [0, 1]")
        check(labels.shape == (count,) and labels.dtype == np.int64 and set(labels) == set(range(10)),
              f"digits/{split}: {count} labels, every digit among them")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
