"""Two sources of digits, MNIST and digits rendered from fonts, for USPS: each alone, pooled, apart, and as a mixture.

    python benchmarks/several_sources.py RESULTS_DIR [--data FOLDER] [--seeds 1 2 3] [--iterations 300] [--device cpu]

Each row is a way to train the digits net with the same number of iterations and images a batch. "Pooled" joins both
sources to one, "apart" gives each statistics of its own (`autodial init --source A --source B`). In the last row the
net is to find two domains among the pooled images (`--latent 2`); such a net has no alpha and no variants. FOLDER holds
the LMDBs mnist_train_lmdb, usps_train_lmdb and usps_test_lmdb; without them they are torchvision's, which it downloads
there. 2,000 MNIST, 2,000 rendered and 1,800 USPS images are drawn to train on, and all USPS test images are scored.

What is finished is kept in RESULTS_DIR and not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import adaptation_images as images
from demo_seeds import machine
from few_labels import digits, drawn
from seed_tables import mean_and_spread

from autodial.project.project import prepare
from autodial.system.files import replacing
from autodial.training.run import Training
from autodial.training.run_record import read_log

METHODS = {"source-only": "source only", "fixed-alpha": "AutoDIAL, alpha fixed to 1", "": "AutoDIAL"}
"""Variants of a net, and what the table calls them."""


class Row(NamedTuple):
    """A way to use the sources.

    Attributes:
        name: of its folder.
        title: in the table.
        sources: the folders to train on; those of one tuple are pooled.
        latent: how many domains are to be found among the images of all; None for none.
    """

    name: str
    title: str
    sources: tuple[tuple[str, ...], ...]
    latent: int | None = None

    @property
    def variants(self) -> list[str]:
        """The variants of METHODS that the row's net has."""
        return [""] if self.latent else list(METHODS)


ROWS = (
    Row("mnist", "MNIST alone", (("mnist",),)),
    Row("rendered", "rendered alone", (("rendered",),)),
    Row("pooled", "both, pooled", (("mnist", "rendered"),)),
    Row("apart", "both, apart", (("mnist",), ("rendered",))),
    Row("latent", "both, as a mixture of two domains to find", (("mnist",), ("rendered",)), latent=2),
)


def domains(data: Path, out: Path) -> dict[str, Path]:
    """The class folders, by name."""
    made = {
        "mnist": partial(drawn, digits("MNIST", "train", data), 2000),
        "rendered": partial(drawn, partial(images.rendered, 1), 2000),
        "target": partial(drawn, digits("USPS", "train", data), 1800),
        "test": digits("USPS", "test", data),
    }
    return {name: images.write(out / name, of) for name, of in made.items()}


def listed(folders: Sequence[Path], path: Path) -> Path:
    """A list of the images in several class folders, with labels.txt beside it; one folder is taken as it is."""
    if len(folders) == 1:
        return folders[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    files = sorted(file.resolve() for folder in folders for file in folder.glob("*/*.png"))
    path.write_text("".join(f"{file} {file.parent.name}\n" for file in files), encoding="utf-8")
    return path


def score(row: Row, variant: str, folder: Path, of: dict[str, Path], seed: int, iterations: int, device: str) -> Any:
    """Accuracy on the test images in [0, 1], and what it took, from the training's file or from a training."""
    project = folder / row.name / (variant or "autodial")
    result = project.with_suffix(".json")
    if not result.exists():
        if not (project / "solver.prototxt").exists():
            lists = folder / "lists" / row.name
            given = []
            for number, names in enumerate(row.sources):
                given.append(listed([of[name] for name in names], lists / f"{number}.txt"))
            prepare(project, "digits", given, of["target"], test=of["test"], latent=row.latent, epochs=1).write()
        for old in project.glob("solver_iter_*"):  # of a training that was interrupted
            old.unlink()
        started = time.process_time()
        run = Training(
            project / "solver.prototxt",
            device=device,
            seed=seed,
            workers=0,
            variants=[variant] if variant else [],
            overrides=[f"solver.max_iter={iterations}", "solver.snapshot=0", f"solver.test_interval={iterations}"],
        ).run()
        seconds = time.process_time() - started
        (tested,) = [event for event in read_log(run.folder) if event["event"] == "test"]
        record = {
            "accuracy": tested["outputs"]["accuracy"],
            "alphas": [event["alphas"] for event in read_log(run.folder) if event["event"] == "train"][-1],
            "seconds": seconds,
            "machine": machine(device),
        }
        with replacing(result) as file:
            file.write(json.dumps(record, indent=2).encode())
    return json.loads(result.read_text("utf-8"))


def table(folder: Path, of: dict[str, Path], seeds: Sequence[int], iterations: int, device: str) -> Iterator[str]:
    """The lines of a Markdown table."""
    yield f"| trained on | {' | '.join(METHODS.values())} |"
    yield f"|---|{'---|' * len(METHODS)}"
    records = []
    for row in ROWS:
        cells = []
        for variant in METHODS:
            if variant not in row.variants:
                cells.append("")
                continue
            found = [score(row, variant, folder / f"seed_{seed}", of, seed, iterations, device) for seed in seeds]
            values = [100 * record["accuracy"] for record in found]
            cells.append(f"{mean_and_spread(values)} ({', '.join(f'{value:.1f}' for value in values)})")
            records += found
        yield f"| {row.title} | {' | '.join(cells)} |"
    seconds = [record["seconds"] for record in records]
    yield ""
    yield (
        f"{min(seconds):.0f} to {max(seconds):.0f} s of a CPU for a training of {iterations} iterations; "
        f"{'; '.join(sorted({record['machine'] for record in records}))}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    folder = arguments.results.resolve()
    of = domains(arguments.data.resolve(), folder / "images")
    for line in table(folder, of, arguments.seeds, arguments.iterations, arguments.device):
        print(line, flush=True)


if __name__ == "__main__":
    main()
