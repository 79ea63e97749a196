"""What the parts of tools/check-cuda share. Nothing but Python is needed."""
import array
import json
import struct
import subprocess
from pathlib import Path


def call(command, **more):
    """The exit status, and the last lines of what the command said."""
    try:
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, errors="replace", **more)
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, [str(error)]
    said = (done.stderr.strip() or done.stdout.strip()).splitlines() or [f"it ended with {done.returncode} and no word"]
    return done.returncode, [f"signal {-done.returncode}: {said[-1]}"] if done.returncode < 0 else said


def load(path):
    """The numeric tensors of a safetensors file: shapes and values. 16-bit floats become f32."""
    raw = Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header, body, tensors = json.loads(raw[8:8 + size]), raw[8 + size:], {}
    types = {"F64": "d", "F32": "f", "I64": "q", "I32": "i", "BOOL": "b"}
    for name, facts in header.items():
        if name == "__metadata__":
            continue
        begin, end = facts["data_offsets"]
        if facts["dtype"] == "BF16":
            wide = array.array("I", [bits << 16 for bits in array.array("H", body[begin:end])])
            tensors[name] = facts["shape"], array.array("f", wide.tobytes())
        elif facts["dtype"] == "F16":
            tensors[name] = facts["shape"], array.array("f", struct.unpack(f"<{(end - begin) // 2}e", body[begin:end]))
        elif facts["dtype"] in types:
            tensors[name] = facts["shape"], array.array(types[facts["dtype"]], body[begin:end])
    return tensors


def save(path, tensors):
    """Writes a safetensors file of names, types, shapes and bytes."""
    header, offset = {}, 0
    for name, kind, shape, data in tensors:
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for *_, data in tensors))
