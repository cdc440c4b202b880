"""MNIST to USPS with the prototxts that the original was trained with: our accuracies beside its own.

    python benchmarks/mnist_usps.py FOLDER RESULTS_DIR [--seeds N] [--device cpu|cuda]

FOLDER holds source, adabn, fixed and dial_train_val.prototxt and solver.prototxt, whose LMDBs lie where they say. Each
run's accuracy is kept in RESULTS_DIR/NAME_SEED.json, and a run whose file is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from seed_tables import mean_and_spread

from autodial.system.files import replacing
from autodial.training.solver import Solver

VARIANTS = {
    "source": ("source only", (72.4, 71.3)),
    "adabn": ("separate statistics, no entropy loss", (72.4,)),
    "fixed": ("AutoDIAL, alpha fixed to 1", (81.4, 81.7, 79.8)),
    "dial": ("AutoDIAL", (82.6, 84.5, 80.8)),
}
"""What each prototxt trains, and the original's accuracies on USPS, in %, over its seeds."""


def accuracy(folder: Path, results: Path, variant: str, seed: int, device: str) -> float:
    """Accuracy on the target's test set in %, from its file or from a run that writes it."""
    path = results / f"{variant}_{seed}.json"
    if not path.exists():
        with tempfile.TemporaryDirectory() as temporary:
            solver = Solver.from_file(
                folder / "solver.prototxt",
                device=device,
                seed=seed,
                overrides=[
                    f"solver.net={variant}_train_val.prototxt",
                    f"solver.snapshot_prefix={temporary}/{variant}",
                ],
            )
            solver.solve()
            value = 100 * solver.test()["acc"].item()
        results.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps({"accuracy": value}).encode())
    return float(json.loads(path.read_text("utf-8"))["accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    print("| variant | here: mean ± std | lowest to highest | the original's |\n|---|---|---|---|")
    for variant, (title, original) in VARIANTS.items():
        values = [
            accuracy(arguments.folder, arguments.results, variant, seed, arguments.device)
            for seed in range(1, arguments.seeds + 1)
        ]
        theirs = ", ".join(f"{value:.1f}" for value in original)
        print(
            f"| {title} | {mean_and_spread(values)} | {min(values):.1f} to {max(values):.1f} | {theirs} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
