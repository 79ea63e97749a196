"""Writes train.safetensors and test.safetensors: the 1,797 handwritten digits that scikit-learn ships.

    python make_data.py [--wheel FILE] [--out DIR]

Without --wheel the scikit-learn wheel is downloaded with pip into a temporary folder; only one table is read from it.
Each file holds `x`, f32 [N, 1, 8, 8] in [0, 1], and `labels`, i64 [N]. The split is a fixed permutation: 1,437 digits
to train with and 360 to test with.
"""
import argparse
import gzip
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save

WHEEL = "scikit-learn==1.9.1"
TABLE = "sklearn/datasets/data/digits.csv.gz"
TABLE_SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
TRAIN = 1437


def read_table(wheel):
    """The table as int64 [1797, 65]: 64 pixels in 0..16, then the digit."""
    with zipfile.ZipFile(wheel) as archive:
        packed = archive.read(TABLE)
    digest = hashlib.sha256(packed).hexdigest()
    if digest != TABLE_SHA256:
        sys.exit(f"{wheel}: {TABLE} has SHA-256 {digest}, expected {TABLE_SHA256}")
    rows = gzip.decompress(packed).decode().split()
    return np.array([[int(float(cell)) for cell in row.split(",")] for row in rows], np.int64)


def write(folder, table):
    # The file lists the digits writer by writer and in runs of 0..9; the permutation mixes both.
    order = np.random.Generator(np.random.PCG64(0)).permutation(len(table))
    for name, rows in (("train", table[order[:TRAIN]]), ("test", table[order[TRAIN:]])):
        x = (rows[:, :64].astype(np.float32) / np.float32(16)).reshape(-1, 1, 8, 8)
        labels = np.ascontiguousarray(rows[:, 64])
        (folder / f"{name}.safetensors").write_bytes(save({"x": x, "labels": labels}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path, help="a scikit-learn wheel that is already here")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temp:
        wheel = options.wheel
        if wheel is None:
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
                            "--only-binary", ":all:", "-d", temp, WHEEL], check=True)
            wheel = next(Path(temp).glob("*.whl"))
        write(options.out, read_table(wheel))


if __name__ == "__main__":
    main()
