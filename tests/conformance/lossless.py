"""Import and export with no pass give the same protobuf, field by field, presence and unknown fields included."""
import shutil

import kit
import onnx
from google.protobuf import unknown_fields

MAX_REPORTED = 5


def unknown(message):
    return [(f.field_number, f.wire_type, repr(f.data)) for f in unknown_fields.UnknownFieldSet(message)]


def differences(a, b, path):
    """Yields a line for every field of two messages of one type that differs."""
    if unknown(a) != unknown(b):
        yield f"{path}: unknown fields differ"
    for field in a.DESCRIPTOR.fields:
        here = f"{path}.{field.name}"
        x, y = getattr(a, field.name), getattr(b, field.name)
        if field.is_repeated:
            if len(x) != len(y):
                yield f"{here}: {len(x)} entries became {len(y)}"
            elif field.message_type:
                for i, (left, right) in enumerate(zip(x, y)):
                    yield from differences(left, right, f"{here}[{getattr(left, 'name', '') or i}]")
            elif repr(list(x)) != repr(list(y)):  # repr: a NaN equals itself, -0.0 differs from 0.0
                yield f"{here}: {list(x)[:8]} became {list(y)[:8]}"
        elif field.has_presence and a.HasField(field.name) != b.HasField(field.name):
            yield f"{here}: {'set, became absent' if a.HasField(field.name) else 'absent, became set'}"
        elif field.message_type:
            if a.HasField(field.name):
                yield from differences(x, y, here)
        elif repr(x) != repr(y):
            yield f"{here}: {str(x)[:80]!r} became {str(y)[:80]!r}"


def main():
    test = kit.Test(__doc__, "FILE")
    # A copy of the file alone: a path that another model could need stays out of reach.
    source, copy = test.temp / "in" / "model.onnx", test.temp / "in" / "copy.onnx"
    source.parent.mkdir()
    shutil.copyfile(test.subject, source)
    # ONNX Runtime Training writes operators that the ONNX library does not know into the standard domains.
    extra = ["--allow-unknown"] if "ort" in test.subject.relative_to(test.corpus).parts else []
    test.tool("recast-opt", source, "--emit=forward", *extra, "-o", copy)
    before, after = onnx.ModelProto(), onnx.ModelProto()
    before.ParseFromString(source.read_bytes())
    after.ParseFromString(copy.read_bytes())
    found = list(differences(before, after, "model"))
    for line in found[:MAX_REPORTED]:
        print(f"      {line}")
    test.check(not found, f"{test.subject.relative_to(test.corpus)}: {len(found)} fields differ")
    test.finish()


if __name__ == "__main__":
    main()
