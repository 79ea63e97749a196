"""tools/check-cuda packs plans and runs them: here on the checking device, with recast-exec; and it can fail."""
import importlib.machinery
import importlib.util
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import kit


def main():
    test = kit.Test(__doc__)
    script = Path(__file__).resolve().parents[2] / "tools/check-cuda"
    folder = test.temp / "packed"

    def call(*arguments):
        return subprocess.run([sys.executable, script, *map(str, arguments), "--device=check"], capture_output=True,
                              text=True)

    packed = call("pack", folder, "--models=mlp", f"--corpus={test.corpus}", f"--bin={test.bin}")
    if packed.returncode:
        test.stop(packed.stderr or packed.stdout)
    cases = json.loads((folder / "cases.json").read_text())
    loader = importlib.machinery.SourceFileLoader("check_cuda_script", str(script))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    plans = sum(1 + len(newer) for _, _, *newer in module.PRESETS.values())
    test.check(len(cases) == plans, f"{len(cases)} plans of one model: one a preset, and of fp8 one for its GPUs")
    archive = folder.with_name("packed.tar.xz")
    test.check(archive.stat().st_size < module.LIMIT_BYTES, "an archive is made for the other machine")
    shutil.rmtree(folder)
    with tarfile.open(archive) as tar:
        tar.extractall(test.temp / "there")
    folder = test.temp / "there" / folder.name
    done = call("run", folder, "--jobs=2")
    for line in done.stdout.splitlines():
        if line.startswith("|"):
            test.check("| ok |" in line, line)
    test.check(done.returncode == 0 and f"met {len(cases)} of {len(cases)}" in done.stdout, done.stdout.splitlines()[-1])
    test.check(len(list((folder / "results").glob("*.md"))) == 1, "a result file is written")

    # What another machine may need: the C library from here, and CUDA's libraries of Python's packages.
    packages = test.temp / "packages" / "nvidia/cu13/lib"
    packages.mkdir(parents=True)
    (packages / "libcublasLt.so.13").touch()
    sys.path.append(str(test.temp / "packages"))
    _, found, notes = module.find_program(folder)
    test.check(str(packages) in found["LD_LIBRARY_PATH"].split(":") and f"libcublasLt.so.13 is in {packages}" in notes,
               f"libraries of Python's packages are found: {notes}")
    program = (folder / "recast-exec").read_bytes()
    foreign = program.replace(b"/lib64/ld-linux-x86-64.so.2", b"/lib64/is-of-another-libc!!")
    (folder / "recast-exec").write_bytes(foreign)
    command, found, notes = module.find_program(folder)
    test.check(command[0] == folder / "glibc/ld-linux-x86-64.so.2" and "with its own C library" in notes[-1],
               f"without a C library that fits it runs with its own: {notes[-1]}")
    code, said = module.call([*command, folder / "plans" / f"{cases[0]['name']}.plan", "--device=check", "--explain"],
                             env=found)
    test.check(code == 0, f"and loads a plan: {said[-1]}")
    code, said = module.call(["sleep", "9"], timeout=0.1)
    test.check(code == -1 and "timed out" in said[-1], f"what hangs is ended: {said[-1]}")
    (folder / "recast-exec").write_bytes(program)

    cases[0]["want"]["loss"][-1] *= 1.1
    (folder / "cases.json").write_text(json.dumps(cases))
    (folder / "plans" / f"{cases[1]['name']}.plan").write_bytes(b"no plan")
    done = call("run", folder)
    test.check(done.returncode == 1 and f"met {len(cases) - 2} of {len(cases)}" in done.stdout,
               "another number and a plan that is none are told")
    test.finish()


if __name__ == "__main__":
    main()
