"""Assembles PTX with ptxas for an architecture, and prints what each kernel uses. Fails where one spills registers,
has a stack frame, or does not assemble.

    assemble.py PTXAS ARCHITECTURE FILE.ptx...
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ENTRY = re.compile(r"Compiling entry function '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def assemble(ptxas, architecture, source, folder):
    """(name, registers, shared bytes, stack bytes, spilled bytes) a kernel; the exit status and what ptxas said."""
    done = subprocess.run([ptxas, "-v", f"-arch={architecture}", source, "-o", Path(folder) / "out.cubin"],
                          capture_output=True, text=True)
    said, kernels, name, stack = done.stdout + done.stderr, [], None, None
    for line in said.splitlines():
        if found := ENTRY.search(line):
            name = found[1]
        elif found := STACK.search(line):
            stack = tuple(map(int, found.groups()))
        elif (found := USED.search(line)) and name:
            kernels.append((name, int(found[1]), int(found[2] or 0), stack[0], stack[1] + stack[2]))
    return kernels, done.returncode, said


def main():
    ptxas, architecture, *sources = sys.argv[1:]
    if not Path(ptxas).is_file():
        sys.exit(f"there is no {ptxas}: run tools/setup, which installs it")
    failures = total = 0
    with tempfile.TemporaryDirectory() as folder:
        for source in sources:
            kernels, status, said = assemble(ptxas, architecture, source, folder)
            entries = Path(source).read_text().count(".visible .entry")
            if status or len(kernels) != entries:
                failures += 1
                print(f"FAIL  {source}: exit status {status}, {len(kernels)} of {entries} kernels\n{said}")
            for name, registers, shared, stack, spilled in kernels:
                total += 1
                failures += bool(stack or spilled)
                print(f"{'FAIL ' if stack or spilled else 'ok   '} {architecture} {name}: {registers} registers, "
                      f"{shared} bytes shared, {stack} stack, {spilled} spilled")
    print(f"{total} kernels, {failures} failures")
    sys.exit(1 if failures or not total else 0)


if __name__ == "__main__":
    main()
