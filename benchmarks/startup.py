"""How long the launcher takes to start, against importing the libraries that it stands on.

    python benchmarks/startup.py [--runs 15]

Runs the commands in turn, so that a busy moment of the machine hits all of them, and compares the medians. CPU time is
that of the process, user and system together; it is the steadier of the two where other work runs. Both the commands
and the libraries are compiled to bytecode first, into a folder of its own, as an installed package is. Exit code 1 if
``grpo plan`` is over a target.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGET_SECONDS = 0.4
TARGET_RATIO = 2.5
ROOT = Path(__file__).parents[1]
EXAMPLE = "configs/examples/three-node.toml"
GRPO = str(Path(sys.executable).with_name("grpo"))
BASELINE, PLAN = "import pydantic, typer, rich", f"grpo plan {EXAMPLE}"
COMMANDS = {
    BASELINE: [sys.executable, "-c", BASELINE],
    PLAN: [GRPO, "plan", EXAMPLE],
    f"grpo validate {EXAMPLE}": [GRPO, "validate", EXAMPLE],
    "grpo --help": [GRPO, "--help"],
}


def timed(command: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Run a command once; return its wall and CPU seconds."""
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
    return wall, usage.ru_utime + usage.ru_stime


def measure(runs: int) -> dict[str, tuple[float, float]]:
    """Return median wall and CPU seconds of each command."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        env["PYTHONPYCACHEPREFIX"] = folder
        for command in COMMANDS.values():
            timed(command, env)  # writes the bytecode
        for _ in range(runs):
            for name, command in COMMANDS.items():
                samples[name].append(timed(command, env))
    return {
        name: (statistics.median(wall for wall, _ in taken), statistics.median(cpu for _, cpu in taken))
        for name, taken in samples.items()
    }


def main() -> None:
    """Measure, print the table and judge ``grpo plan``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15, help="runs of each command (default 15)")
    medians = measure(parser.parse_args().runs)
    base_wall, base_cpu = medians[BASELINE]
    width = max(map(len, medians))
    print(f"{'command':<{width}}  wall, s   ratio   CPU, s   ratio")
    for name, (wall, cpu) in medians.items():
        print(f"{name:<{width}}  {wall:7.3f}  {wall / base_wall:5.2f}x  {cpu:7.3f}  {cpu / base_cpu:5.2f}x")
    wall = medians[PLAN][0]
    good = wall <= TARGET_SECONDS and wall <= TARGET_RATIO * base_wall
    print(
        f"grpo plan: {wall:.3f} s of {TARGET_SECONDS} s, {wall / base_wall:.2f}x of {TARGET_RATIO}x, wall: "
        f"{'within' if good else 'OVER'} the target"
    )
    raise SystemExit(not good)


if __name__ == "__main__":
    main()
