"""Writes a token stream for char_gpt.onnx from the licence texts that Debian ships in /usr/share/common-licenses.

    python make_data.py OUT.bin [TEXT...]

A token is one ASCII code as little-endian uint16 (the stream format of nanoGPT); other characters become `?`. About
230,000 tokens. The file is not kept in the repository: every Debian machine has the texts.
"""
import sys
from pathlib import Path

import numpy as np

TEXTS = Path("/usr/share/common-licenses")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    texts = [Path(p) for p in sys.argv[2:]] or sorted(p for p in TEXTS.glob("*") if p.is_file() and not p.is_symlink())
    if not texts:
        sys.exit(f"{TEXTS} holds no texts; name some on the command line")
    tokens = np.frombuffer(b"\n".join(p.read_bytes() for p in texts), np.uint8).astype("<u2")
    tokens[tokens > 127] = ord("?")
    Path(sys.argv[1]).write_bytes(tokens.tobytes())
    print(f"{sys.argv[1]}: {len(tokens)} tokens from {len(texts)} texts")


if __name__ == "__main__":
    main()
