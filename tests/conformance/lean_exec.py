"""recast-exec needs no compiler: neither it nor any library that it loads is of MLIR, LLVM, ONNX or protobuf."""
import re
import subprocess

import kit

HEAVY = re.compile(r"mlir|llvm|onnx|proto|clang", re.IGNORECASE)


def needed(path):
    """What the dynamic section asks for."""
    shown = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", shown))


def resolved(path):
    """Where the loader finds each library, those of libraries included."""
    shown = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r"^\s*(\S+) => (/\S+)", shown, re.MULTILINE))


def main():
    test = kit.Test(__doc__)
    program = test.bin / "recast-exec"
    found, files = set(), resolved(program)
    todo = {str(program)}
    while todo:
        path = todo.pop()
        libraries = needed(path)
        text = f"{path}: {', '.join(sorted(libraries)) or 'nothing'}"
        test.check(not any(HEAVY.search(name) for name in libraries), text)
        todo |= {files[name] for name in libraries - found if name in files}
        found |= libraries
    test.check(any(name.startswith("libdnnl") for name in found),
               "oneDNN is among them: the search saw the libraries")
    # The same question to a program that does link a compiler: the test can fail.
    test.check(any(HEAVY.search(name) for name in needed(test.bin / "recast-run")), "recast-run links MLIR")
    symbols = subprocess.run(["nm", "-C", str(program)], capture_output=True, text=True, check=True).stdout
    heavy = re.findall(r" [TtWwVv] ((?:mlir|llvm|onnx|google::protobuf)::\S+)", symbols)
    test.check(not heavy, f"no code of theirs is linked statically: {', '.join(heavy[:3])}")
    test.finish()


if __name__ == "__main__":
    main()
