"""A broken file, or broken data, ends in exit status 1 and an error that names the fault; nothing is left behind."""
import json
import shutil

import kit

SECONDS = 20
# Enough for the libraries and the mapped file; far from the size that a bad file declares.
ADDRESS_SPACE = 16 << 30


def main():
    test = kit.Test(__doc__, "CASE")
    case = json.loads((test.subject / "case.json").read_text())
    # Away from the case's folder, whose name holds words that the error has to hold.
    folder = test.temp / "input"
    folder.mkdir()
    model, output = folder / "model.onnx", folder / "output"
    shutil.copyfile(test.subject / "model.onnx", model)
    if case["stage"] == "import":
        done = test.tool("recast-opt", model, "-o", output, ok=False, timeout=SECONDS, limit_bytes=ADDRESS_SPACE)
    else:
        done = test.tool("recast-run", model, f"--data={test.subject / 'expected.safetensors'}", "--data-layout=single",
                         "--steps=1", f"--outputs={output}", ok=False, timeout=SECONDS, limit_bytes=ADDRESS_SPACE)
    print("      " + "\n      ".join(done.stderr.strip().splitlines()[:8]))
    test.check(done.returncode == 1, f"exit status 1 (got {done.returncode})")
    for word in case["error_mentions"]:
        test.check(kit.mentions(done.stderr, word), f"the error mentions {word!r}")
    left = sorted(p.name for p in folder.iterdir() if p != model)
    test.check(not left, f"no output and no temporary file is left {left or ''}")
    test.finish()


if __name__ == "__main__":
    main()
