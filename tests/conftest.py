"""What tests of every part use."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from killing import Killing
from originals import RECORDS
from torchlib import keep_torchlib

from autodial.cli import main
from autodial.system.cpus import available_cpus

if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    # Before any test loads torch: processes that each keep all CPUs busy slow each other down.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cpus() // int(workers))))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A process per CPU for folders of tests; single files are quicker in one, and the attack makes one table."""
    files = all(Path(argument.partition("::")[0]).is_file() for argument in config.args)
    return 0 if files or config.option.markexpr == "attack" else available_cpus()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attack", "tests/attack, which -m attack runs")
    group.addoption("--attack-rounds", type=int, default=20, help="cases of each kind (20)")
    group.addoption("--attack-seed", type=int, default=0, help="another number makes other cases (0)")


def pytest_runtest_setup() -> None:
    keep_torchlib()


@pytest.fixture
def autodial(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`autodial(arguments...)`, as a command line does it, gives exit status, standard output and standard error."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["autodial", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return run


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the original's nets and solver for digits, with noise in place of MNIST and USPS."""
    import lmdb
    import numpy as np

    from autodial.proto import messages as pb

    root = tmp_path_factory.mktemp("digits")
    rng = np.random.default_rng(0)
    for name in ("mnist_train", "usps_train", "usps_test"):
        (root / "data" / f"{name}_lmdb").mkdir(parents=True)
        with lmdb.open(str(root / "data" / f"{name}_lmdb"), lock=False) as database, database.begin(write=True) as txn:
            for i in range(200):
                datum = pb.Datum(channels=1, height=28, width=28, data=rng.bytes(28 * 28), label=i % 10)
                txn.put(f"{i:08}".encode(), datum.SerializeToString())
    return shutil.copytree(RECORDS / "digits", root / "golden" / "digits")


@pytest.fixture(scope="session")
def killing() -> Iterator[Killing]:
    if not hasattr(os, "fork"):
        pytest.skip("needs os.fork")
    process = Killing()
    yield process
    process.close()


@pytest.fixture
def killed(killing: Killing) -> Callable[..., bool]:
    """`killed(moves, arguments...)` runs `autodial`, which ends as if killed when it is to rename one file more.

    Gives whether it came to that.
    """
    return lambda moves, *arguments: killing.run(moves, list(map(str, arguments)))
