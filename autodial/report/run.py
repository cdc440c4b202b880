"""A run's folder as the report needs it: what was run, and the curves of what was logged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from autodial import proto
from autodial.errors import InputError
from autodial.netparam.net_state import filter_net
from autodial.proto import messages as pb
from autodial.training.run_record import LOG, RECORD, KeptTest, Start, read_events, read_starts

Kind = Literal["train", "test"]


@dataclass
class Curve:
    """A number by iteration.

    Attributes:
        name: the output blob's or the layer's.
        kind: what logged the number.
        weight: the number's weight in the loss; None if it has none.
        iterations: ascending.
        values: one per iteration; None where the number was not finite.
    """

    name: str
    kind: Kind = "train"
    weight: float | None = None
    iterations: list[int] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)

    def add(self, iteration: int, value: float | None) -> None:
        self.iterations.append(iteration)
        self.values.append(value)

    def points(self) -> Iterator[tuple[int, float | None]]:
        """Iterations with their values."""
        return zip(self.iterations, self.values, strict=True)

    @property
    def last(self) -> float | None:
        """The last value, None if it was not finite."""
        return self.values[-1]


@dataclass
class Recalls:
    """Recalls by iteration.

    Attributes:
        name: the blob of scores.
        iterations: ascending.
        values: by iteration, each class's recall in [0, 1]; None for a class without labels.
    """

    name: str
    iterations: list[int]
    values: list[list[float | None]]

    def add(self, iteration: int, values: list[float | None]) -> None:
        self.iterations.append(iteration)
        self.values.append(values)


@dataclass(frozen=True)
class LoggedSnapshot:
    """What the log says of a snapshot: its iteration, its file of weights, and the SHA-256 of that file."""

    iteration: int
    model: Path
    sha256: str


@dataclass(frozen=True)
class KeptWeights:
    """What the log says of weights that `select` or `compare` kept.

    Attributes:
        iteration: number of updates.
        sha256: of the file.
        recalibrated: whether its statistics were computed once more, over all images.
        test: what it scored; None if labels were not looked at.
    """

    iteration: int
    sha256: str
    recalibrated: bool
    test: KeptTest | None


@dataclass(frozen=True)
class LoggedRecalibration:
    """What the log says of weights with new statistics.

    Attributes:
        sha256: of the file.
        of: the SHA-256 of the run's weights that it was made of.
        images: names of the images that the statistics were computed over.
    """

    sha256: str
    of: str
    images: Sequence[str]


@dataclass(frozen=True)
class Run:
    """What `autodial train` left of a run, in a folder that may still be written to.

    Attributes:
        folder: the run's.
        starts: the records of run.json, from the first start to the last.
        events: the lines of the log; where a resumed run repeated iterations, the later lines.
        solver: the solver of the last start.
        train_net, test_net: the nets of the last start, variants and settings applied; they differ if the solver
            names two nets.
        train_folder, test_folder: the folders of the nets' files; None where they are not known.
    """

    folder: Path
    starts: Sequence[Start]
    events: Sequence[Mapping[str, Any]]
    solver: pb.SolverParameter
    train_net: pb.NetParameter
    test_net: pb.NetParameter
    train_folder: Path | None
    test_folder: Path | None

    @classmethod
    def read(cls, folder: Path) -> Run:
        """Read a run's folder.

        Raises:
            InputError: the folder is not a run's, or a file in it is damaged.
        """
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder: name the run folder that `autodial train` wrote")
        for name in (RECORD, LOG):
            if not (folder / name).is_file():
                raise InputError(
                    f"{folder} is not a run's folder, as {name} is missing: name the folder that `autodial train` wrote"
                )
        path = folder / RECORD
        starts = read_starts(folder)
        last = starts[-1]
        nets = [proto.parse_net(text, f"{path}, the net") for text in last["nets"]]
        names = last.get("net_folders", [None] * len(nets))
        if len(names) != len(nets):
            raise InputError(f"{path} is damaged: it has {len(nets)} nets and {len(names)} folders of them")
        folders = [None if name is None else Path(name) for name in names]
        return cls(
            folder=folder,
            starts=starts,
            events=read_events(folder),
            solver=proto.parse_solver(last["solver"], f"{path}, the solver"),
            train_net=nets[0],
            test_net=nets[-1],
            train_folder=folders[0],
            test_folder=folders[-1],
        )

    @property
    def record(self) -> Start:
        """The record of the last start in run.json."""
        return self.starts[-1]

    @property
    def name(self) -> str:
        """The net's name, or else the folder's."""
        return self.train_net.name or self.folder.resolve().name

    @property
    def reached(self) -> int:
        """The last logged iteration."""
        return max((event["iteration"] for event in self.events), default=0)

    @property
    def finished(self) -> bool:
        """Whether training reached max_iter, as far as the log tells."""
        # without a last snapshot, the last displayed iteration is the end
        ahead = 0 if self.solver.snapshot_after_train else self.solver.display
        return bool(self.reached + ahead >= self.solver.max_iter)

    @property
    def dials(self) -> list[str]:
        """Names of the TEST phase's Dial layers, from the net's input to its output."""
        layers = filter_net(self.test_net, pb.TEST).layer
        return [layer.name for layer in layers if layer.type == "Dial"]

    @property
    def images_per_iteration(self) -> str:
        """Batch sizes of the TRAIN phase's data layers, by layer, in words."""
        sizes = [
            f"{layer.name} {getattr(layer, field).batch_size}"
            for layer in filter_net(self.train_net, pb.TRAIN).layer
            for field in ("image_data_param", "data_param", "hdf5_data_param", "memory_data_param")
            if layer.HasField(field)
        ]
        times = f", {self.solver.iter_size} times" if self.solver.iter_size > 1 else ""
        return f"{' + '.join(sizes) or 'not known'}{times}"

    @property
    def collapses(self) -> list[Mapping[str, Any]]:
        """The alarms that the target's predictions had collapsed (autodial.training.collapse)."""
        return [event for event in self.events if event["event"] == "collapse"]

    @property
    def broken_tests(self) -> list[Mapping[str, Any]]:
        """The tests in which scores were not finite."""
        return [row for row in self._rows("test") if row.get("not_finite")]

    @property
    def resumed_at(self) -> list[int]:
        """The iterations from which the run was resumed."""
        return [event["iteration"] for event in self.events if event["event"] == "start"][1:]

    @property
    def seconds(self) -> float | None:
        """Seconds from each start to the last line that it logged, added up; None if the log has no times."""
        total = 0.0
        started = None
        later = ("weights", "recalibration")  # after the training
        events = [event for event in self.events if event["event"] not in later]
        for event, following in zip_longest(events, events[1:]):
            if "time" not in event:
                return None
            if event["event"] == "start":
                started = datetime.fromisoformat(event["time"])
            if started is not None and (following is None or following["event"] == "start"):
                total += (datetime.fromisoformat(event["time"]) - started).total_seconds()
        return total

    @property
    def snapshots(self) -> list[LoggedSnapshot]:
        """The snapshots that were written, the newest first."""
        return [
            LoggedSnapshot(event["iteration"], Path(event["model"]), event["sha256"])
            for event in reversed(self.events)
            if event["event"] == "snapshot"
        ]

    @property
    def kept_weights(self) -> list[KeptWeights]:
        """The weights that `select` or `compare` kept, as they were last measured first."""
        return [
            KeptWeights(event["iteration"], event["sha256"], event["recalibrated"], event["test"])
            for event in reversed(self.events)
            if event["event"] == "weights"
        ]

    @property
    def recalibrations(self) -> list[LoggedRecalibration]:
        """The files that `recalibrate` made of the run's weights, the newest first."""
        return [
            LoggedRecalibration(event["sha256"], event["of"], event["images"])
            for event in reversed(self.events)
            if event["event"] == "recalibration"
        ]

    def alphas(self) -> list[Curve]:
        """Alpha by Dial layer, from the net's input to its output."""
        return self._mappings("alphas")

    def diversity(self) -> list[Curve]:
        """Diversity of the target's predictions by EntropyLoss layer (`autodial.training.collapse`)."""
        return self._mappings("diversity")

    def learning_rate(self) -> Curve:
        """The solver's learning rate, before any lr_mult."""
        return self._curve("lr")

    def loss(self) -> Curve:
        """The weighted sum of the losses, averaged over average_loss iterations."""
        return self._curve("loss")

    def _curve(self, key: str) -> Curve:
        curve = Curve(key)
        for row in self._rows("train"):
            curve.add(row["iteration"], row[key])
        return curve

    def _mappings(self, key: str) -> list[Curve]:
        curves: dict[str, Curve] = {}
        for row in self._rows("train"):
            for name, value in row.get(key, {}).items():
                curves.setdefault(name, Curve(name)).add(row["iteration"], value)
        return list(curves.values())

    def outputs(self) -> list[Curve]:
        """Every logged output blob that is one number, those of training first."""
        curves: dict[tuple[str, int, str], Curve] = {}
        for kind in ("train", "test"):
            for row in self._rows(kind):
                for name, value in row["outputs"].items():
                    if isinstance(value, list):
                        continue
                    net = row.get("net", 0)
                    shown = f"{name} (test net {net})" if net else name
                    curve = Curve(shown, kind, row["loss_weights"].get(name))
                    curves.setdefault((kind, net, name), curve).add(row["iteration"], value)
        return list(curves.values())

    def accuracies(self) -> list[Curve]:
        """The outputs of Accuracy layers."""
        return [curve for curve in self.outputs() if self._is_accuracy(curve)]

    def balanced_accuracies(self) -> list[Curve]:
        """Balanced accuracy (the classes' mean recall) in tests, by blob of scores; tests without labels have none."""
        curves: dict[str, Curve] = {}
        for name, iteration, value in self._by_scores("balanced_accuracy"):
            if value is not None:
                curves.setdefault(name, Curve(f"balanced accuracy of {name}", "test")).add(iteration, value)
        return list(curves.values())

    def recalls(self) -> list[Recalls]:
        """Each class's recall in tests, by blob of scores."""
        found: dict[str, Recalls] = {}
        for name, iteration, values in self._by_scores("recalls"):
            found.setdefault(name, Recalls(name, [], [])).add(iteration, values)
        return list(found.values())

    def _by_scores(self, key: str) -> Iterator[tuple[str, int, Any]]:
        """Name, iteration and value of what each test logged under a key for its blobs of scores."""
        for row in self._rows("test"):
            net = row.get("net", 0)
            for blob, value in row.get(key, {}).items():
                yield f"{blob} (test net {net})" if net else blob, row["iteration"], value

    def losses(self) -> list[Curve]:
        """The other outputs."""
        return [curve for curve in self.outputs() if not self._is_accuracy(curve)]

    def _is_accuracy(self, curve: Curve) -> bool:
        layers = (self.train_net if curve.kind == "train" else self.test_net).layer
        tops = {top for layer in layers if layer.type == "Accuracy" for top in layer.top}
        return curve.name.partition(" (test net ")[0] in tops

    def _rows(self, kind: Kind) -> Iterator[Mapping[str, Any]]:
        return (event for event in self.events if event["event"] == kind)
