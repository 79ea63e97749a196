#!/usr/bin/env python3
"""Draws the plots of docs/breaking from the curves that tests/conformance/breaking.py --plots=DIR wrote: plot.py DIR.

matplotlib is installed into an environment of its own below the cache folder (RECAST_CACHE, default ~/.cache/recast).
"""
import json
import os
import subprocess
import sys
from pathlib import Path

PACKAGE = "matplotlib==3.10.3"
# Curves that lie on each other stay visible: later ones are thinner.
STYLES = [("#54aeff", 2.6), ("#cf222e", 1.4), ("#24292f", 0.8)]


def enter_environment():
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("RECAST_CACHE") or caches / "recast") / PACKAGE.replace("==", "-")
    if Path(sys.prefix) == folder:
        return
    python, complete = folder / "bin" / "python", folder / ".complete"
    if not complete.exists():
        print(f"plot: installing {PACKAGE} into {folder} (once)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", PACKAGE], check=True)
        complete.touch()
    os.execv(python, [str(python), *sys.argv])


def draw(curves, path):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    # No dates, no random ids, text as text: the same curves give the same file, and a small one.
    matplotlib.rcParams.update({"svg.hashsalt": "recast", "svg.fonttype": "none", "font.family": "sans-serif",
                                "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
                                "path.simplify_threshold": 0.5})
    panels = curves["panels"]
    figure, axes = plt.subplots(1, len(panels), figsize=(4.4 * len(panels), 2.7), squeeze=False, layout="constrained")
    for axis, panel in zip(axes[0], panels):
        for (colour, width), (label, values) in zip(STYLES, panel["curves"].items()):
            numbers = [float("nan") if v is None else v for v in values]
            if label == "skipped":
                axis.plot(range(1, len(numbers) + 1), numbers, "o", color=colour, markersize=3, label=label)
            else:
                axis.plot(range(1, len(numbers) + 1), numbers, color=colour, linewidth=width, label=label)
        axis.set_title(panel["title"], fontsize=9)
        axis.set_xlabel("step")
        if panel["log"]:
            axis.set_yscale("log")
        axis.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)


def main():
    if len(sys.argv) != 2:
        print("usage: plot.py DIR", file=sys.stderr)
        sys.exit(2)
    enter_environment()
    for file in sorted(Path(sys.argv[1]).glob("*.json")):
        path = Path(__file__).resolve().parent / f"{file.stem}.svg"
        draw(json.loads(file.read_text()), path)
        print(f"plot: {path} ({path.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
