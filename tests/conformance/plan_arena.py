"""The memory that the plan predicts is the memory that the run allocates."""
import re

import kit

LINE = re.compile(r"arena: (\d+) bytes planned, (\d+) bytes used")


def main():
    test = kit.Test(__doc__, "MODEL")
    kit.reference(test)
    for precision in ("f32", "bf16"):
        step = test.temp / f"{precision}.onnx"
        test.tool("recast-opt", test.model, f"--precision={precision}", *kit.ADAMW, "-o", step)
        done = test.tool("recast-run", step, f"--data={test.data}", "--data-layout=batches", "--steps=1", "--explain")
        found = LINE.search(done.stdout + done.stderr)
        if test.check(found, f"{precision}: --explain says how large the arena is"):
            planned, allocated = map(int, found.groups())
            test.check(planned == allocated > 0, f"{precision}: {planned} bytes planned, {allocated} allocated")
    test.finish()


if __name__ == "__main__":
    main()
