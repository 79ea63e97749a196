"""tools/check-cuda packs plans and runs them: here on the checking device, with recast-exec; and it can fail.

Its speed part goes the same way with a tiny GPT and made-up peaks: all but the times is as on a GPU.
"""
import importlib.machinery
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import kit


def check_speed(test, folder, call, speed):
    """One run in two halves, what it writes, and the figures it comes to."""
    weights = next(iter(json.loads((folder / "cases.json").read_text())["speed"]), None)
    test.check(weights is not None, "the speed part is packed")
    test.check(not list(folder.rglob("*.weights")), "weights are not packed")
    begun = call("run", folder, "--part=speed", "--steps=1", "--minutes=0")
    test.check(begun.returncode == 1 and "turn 1" not in begun.stdout, "out of time, it begins nothing")
    flags = ["run", folder, "--part=speed", "--steps=1", "--peak=bf16=1e-3", "--peak=fp8=2e-3", "--peak=GB/s=1"]
    profile = folder / "speed/gpt2-tiny/fp8-delayed.trace.json"
    profile.mkdir()
    broken = call(*flags)
    test.check(broken.returncode == 1 and "fp8-delayed profile: recast-exec: error: cannot write" in broken.stdout
               and "bf16 profile: done" in broken.stdout, "one measurement that fails loses no other")
    profile.rmdir()
    done = call(*flags)
    again = [line for line in done.stdout.splitlines() if line.endswith(" s)")]
    test.check([line.split(":")[0] for line in again] == ["gpt2-tiny fp8-delayed profile"],
               f"the next run does what was left, and nothing else: {again}")
    jobs = re.search(r"speed: met (\d+) of (\d+)", done.stdout)
    test.check(jobs and jobs[1] == jobs[2], "all is measured then")
    size = (folder / "speed/gpt2-tiny/gpt.weights").stat().st_size
    test.check(size == weights["weights"], "weights are written where the plans run")

    cases = json.loads((folder / "cases.json").read_text())["speed"]
    model = cases[0]["sizes"]
    layers, width, vocabulary = model["layers"], model["width"], model["vocabulary"]
    # PaLM, appendix B: 6 N + 12 L H Q T a token, N the parameters that are multiplied with it.
    tokens, multiplied = model["batch"] * model["sequence"], 12 * layers * width**2 + vocabulary * width
    flops = tokens * (6 * multiplied + 12 * layers * width * model["sequence"])
    test.check(all(case["flops"] == flops for case in cases), f"model FLOPs are those of the formula: {flops}")
    page = next((folder / "results").glob("*.md")).read_text()
    kept = json.loads((folder / "results/done.json").read_text())["speed"]
    for case in cases:
        row = next((line.split(" | ") for line in page.splitlines()
                    if line.startswith(f"| {case['model']} | {case['preset']} |")), None)
        seconds = float(row[3]) / 1e3
        test.check(abs(float(row[4].replace(",", "")) - tokens / seconds) <= 0.01 * tokens / seconds + 1,
                   f"{case['preset']}: tokens a second follow from the time of a step")
        peak = {"bf16": 1e-3, "fp8-delayed": 2e-3}.get(case["preset"])
        share = float(row[6].rstrip("%")) / 100 if row[6].strip() else None  # In tenths of a percent.
        test.check(abs(share - flops / seconds / peak / 1e12) < 1e-3 if peak else share is None,
                   f"{case['preset']}: MFU by the peak that was given: {row[6]}")
        kinds = kept[f"gpt2-tiny {case['preset']} profile"]["kinds"]
        names = {kind for kind, *_ in kinds}
        wanted = {"products", "products of attention", "softmax of attention", "norms", "loss", "embedding",
                  "optimizer and clipping", "transposes and copies"}
        test.check(wanted <= names and sum(float(row[3][:-1]) for row in kinds) > 99,
                   f"{case['preset']}: where the time goes: {sorted(names)}")
        loss = kept[f"gpt2-tiny {case['preset']} turn 1"]["loss"]
        test.check(loss[1] < loss[0], f"{case['preset']}: it trains: {loss}")
    test.check("fp8-delayed: 1.3 times as fast as bf16" in page and "### Targets" in page, "targets are in the file")
    ratio = re.search(r"1.3 times as fast as bf16: ([\d.]+) times", page)
    test.check(done.returncode == (float(ratio[1]) < speed.FP8_TARGET), f"a missed target is told: {ratio[1]}")


def check_targets(test, speed):
    """At half of the peak the one model's target is reached, and the other's is not."""
    peaks = speed.PEAKS["NVIDIA H200"]
    cases, done = [], {}
    for model in speed.MODELS:
        for preset, share in (("bf16", 0.5), ("fp8-delayed", 0.35)):
            cases.append({"model": model, "preset": preset, "flops": 10**13, "sizes": speed.MODELS[model]})
            seconds = 10 / (share * peaks["fp8" if preset.startswith("fp8") else preset])
            done |= {f"{model} {preset} turn {turn + 1}": {"seconds": [seconds] * 3} for turn in range(speed.ROUNDS)}
    options = type("Options", (), {"device": "cuda", "folder": Path(), "steps": 3})
    found = speed.Speed(cases, [], {}, options, peaks).targets(done)
    test.check([(got, reached) for _, got, reached in found] ==
               [("50.0%", True), ("50.0%", False), ("1.40 times", True), ("1.40 times", True)], f"targets: {found}")
    unknown = speed.Speed(cases, [], {}, options, speed.parse_peaks("another device", [])).targets(done)
    test.check([reached for *_, reached in unknown] == [None, None, True, True],
               "where the device's peak is not known, only ratios are judged")


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
    cases = json.loads((folder / "cases.json").read_text())["numbers"]
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
    check_targets(test, module.speed)
    check_speed(test, folder, call, module.speed)
    done = call("run", folder, "--part=numbers", "--jobs=2")
    for line in done.stdout.splitlines():
        if line.startswith("|"):
            test.check("| ok |" in line, line)
    test.check(done.returncode == 0 and f"met {len(cases)} of {len(cases)}" in done.stdout, done.stdout.splitlines()[-1])
    pages = list((folder / "results").glob("*.md"))
    test.check(len(pages) == 1 and "### Targets" in pages[0].read_text() and "## Numbers" in pages[0].read_text(),
               "one result file has both parts, whichever ran")
    done = call("run", folder, "--part=numbers")
    test.check(done.returncode == 0 and "| ok |" not in done.stdout, "what is done is not done again")

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
    (folder / "cases.json").write_text(json.dumps({"numbers": cases, "speed": []}))
    (folder / "plans" / f"{cases[1]['name']}.plan").write_bytes(b"no plan")
    done = call("run", folder)
    test.check(done.returncode == 1 and f"numbers: met {len(cases) - 2} of {len(cases)}" in done.stdout,
               "another number and a plan that is none are told")
    test.finish()


if __name__ == "__main__":
    main()
