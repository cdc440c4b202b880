"""What a training's record says about a file of weights, for the card of the exported file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from autodial.converters.card import TestScores, TrainedNet
from autodial.errors import InputError
from autodial.evaluation.domains import data_in_train, has_target_batch_norm, sources_of
from autodial.netparam.graph import Graph
from autodial.netparam.net_state import filter_net
from autodial.proto import Weights, read_weights
from autodial.proto import messages as pb
from autodial.report.data import data_nodes, label_tops, row_reader
from autodial.report.run import KeptWeights, LoggedSnapshot, Run
from autodial.system.hashing import file_hash
from autodial.training.run_record import holds_run
from autodial.training.solver import tests_end


def find_trained_net(names: str, logits: str) -> TrainedNet | None:
    """What is recorded of a net's weights by the run that wrote them; None as `find_record` has it.

    Args:
        names: the .caffemodel; of several with commas, nothing is recorded.
        logits: the blob of scores that is exported.
    """
    record = find_record(names)
    return None if record is None else _trained_net(record, read_weights(Path(names)), logits)


class Record(NamedTuple):
    """A run, and what its log says of a file of weights.

    Attributes:
        run: the run.
        written: the snapshot or the kept weights that the file is, or that it was made of by `recalibrate`.
        recalibrated_on: names of the images that its statistics were computed over by `recalibrate`; empty if it is
            `written` itself.
    """

    run: Run
    written: LoggedSnapshot | KeptWeights
    recalibrated_on: Sequence[str] = ()


def find_record(names: str) -> Record | None:
    """The run beside a file of weights whose log names the file; None if there is none.

    A run counts if its log names a snapshot, weights that `select` or `compare` kept, or what `recalibrate` made of
    such weights, with the file's SHA-256. Damaged runs are passed over.

    Args:
        names: the .caffemodel; of several with commas, nothing is recorded.
    """
    weights = Path(names)
    if not weights.is_file():
        return None
    sha256 = file_hash(weights)
    for folder in _run_folders(weights.absolute().parent):
        try:
            run = Run.read(folder)
        except InputError:
            continue
        written: dict[str, LoggedSnapshot | KeptWeights] = {}
        written.update((found.sha256, found) for found in reversed(run.snapshots))
        written.update((found.sha256, found) for found in reversed(run.kept_weights))
        if sha256 in written:
            return Record(run, written[sha256])
        for made in run.recalibrations:
            if made.sha256 == sha256 and made.of in written:
                return Record(run, written[made.of], made.images)
    return None


def _run_folders(folder: Path) -> Iterator[Path]:
    """The runs in a folder, or of the candidates in that of a selection, the newest first, and the folder itself."""
    runs = [path for path in (*folder.iterdir(), *folder.glob("candidates/*/*/run")) if holds_run(path)]
    yield from sorted(runs, key=lambda path: path.stat().st_mtime, reverse=True)
    if holds_run(folder):
        yield folder


def _trained_net(record: Record, weights: Weights, logits: str) -> TrainedNet:
    run, found = record.run, record.written
    kept = found if isinstance(found, KeptWeights) else None
    scores = _kept_scores(run, kept) if kept is not None else _scores(run, found.iteration, logits)
    return TrainedNet(
        iteration=found.iteration,
        seed=run.record["seed"],
        variants=run.record["variants"],
        **_training_lists(run),
        statistics=_statistics(run),
        alphas=_alphas(run, weights),
        recalibrated=kept is not None and kept.recalibrated,
        recalibrated_on=[Path(name).name or name for name in record.recalibrated_on],
        scores=scores,
        untested=_why_untested(run, found) if scores is None else None,
    )


def _alphas(run: Run, weights: Weights) -> dict[str, float]:
    """Alpha of the weights themselves, by Dial layer, clipped as a forward pass does; the log has those of displays."""
    least = 1 / (1 + sources_of(run.train_net))
    stored = {layer.name: layer.blobs[0] for layer in weights.layers if layer.blobs}
    found = {name: blob for name in run.dials if (blob := stored.get(name)) is not None}
    return {name: min(max(float(blob.flat[0]), least), 1.0) for name, blob in found.items()}


def _training_lists(run: Run) -> dict[str, Any]:
    """Names of the lists or databases of the sources, the target, and the target's labelled images, by field."""
    try:
        domains = data_in_train(run.train_net)
        labelled = label_tops(Graph(filter_net(run.train_net, pb.TRAIN).layer))
    except InputError:
        return {}
    if domains is None:
        return {}
    names = (_data_name(data.layer) for data in domains.sources)
    found: dict[str, Any] = {
        "sources": [name for name in names if name is not None],
        "target": _data_name(domains.target.layer),
    }
    known = {data.layer.name for data in (*domains.sources, domains.target)}
    for layer in (top.layer for top in labelled):
        if layer.name not in known:
            found |= {"labelled_target": _data_name(layer), "labelled_images": _rows(layer, run.train_folder)}
    return found


def _rows(layer: pb.LayerParameter, base_dir: Path | None) -> int | None:
    """The number of rows of a data layer's list; None if it is no longer there."""
    try:
        return len(row_reader(layer, base_dir)[1].source)
    except InputError:
        return None


def _data_name(layer: pb.LayerParameter) -> str | None:
    for field in ("image_data_param", "data_param", "hdf5_data_param"):
        if layer.HasField(field):
            return Path(getattr(layer, field).source).name or None
    return None


def _statistics(run: Run) -> str | None:
    """The domain whose statistics the TEST phase normalizes with, as a file's metadata names it."""
    if has_target_batch_norm(run.test_net):
        return "target"
    layers = filter_net(run.test_net, pb.TEST).layer
    found = {
        "source" if layer.dial_param.test_stats == pb.DialParameter.SOURCE else "target"
        for layer in layers
        if layer.type == "Dial"
    }
    return None if not found else found.pop() if len(found) == 1 else "mixed"


def _scores(run: Run, iteration: int, logits: str) -> TestScores | None:
    """What the first test net scored at an iteration."""
    rows = [row for row in run.events if row["event"] == "test" and row["iteration"] == iteration]
    row = next((row for row in reversed(rows) if row.get("net", 0) == 0), None)
    if row is None or row.get("not_finite"):
        return None
    net = filter_net(run.test_net, pb.TEST)
    accuracy = _accuracy(net, row, logits)
    balanced = row.get("balanced_accuracy", {}).get(logits)
    if accuracy is None and balanced is None:
        return None
    data = _test_data(net)
    return TestScores(
        data=(_data_name(data) if data is not None else None) or "not known",
        images=_images(run, data),
        accuracy=accuracy,
        balanced_accuracy=balanced,
        recalls=row.get("recalls", {}).get(logits, ()),
    )


def _why_untested(run: Run, found: LoggedSnapshot | KeptWeights) -> str | None:
    """Why there are no scores, as a clause; None if a test has none for another reason."""
    solver = run.solver
    if isinstance(found, KeptWeights):
        return "labels of the target were not looked at"
    if not solver.test_iter:
        return "its solver states no test"
    if not tests_end(solver):
        intervals = f"test_interval ({solver.test_interval}) is larger than max_iter ({solver.max_iter})"
        return f"its solver's {intervals} and test_initialization is false"
    tested = {row["iteration"] for row in run.events if row["event"] == "test"}
    return None if found.iteration in tested else f"it tested other iterations than {found.iteration}"


def _kept_scores(run: Run, kept: KeptWeights) -> TestScores | None:
    """What weights scored that `select` or `compare` kept; None if labels were not looked at."""
    if kept.test is None:
        return None
    data = _test_data(filter_net(run.test_net, pb.TEST))
    name = None if data is None else _data_name(data)
    return TestScores(name or "not known", **kept.test)


def _test_data(net: pb.NetParameter) -> pb.LayerParameter | None:
    """The first data layer that names a list or database."""
    return next((node.param for node in data_nodes(Graph(net.layer)) if _data_name(node.param)), None)


def _accuracy(net: pb.NetParameter, row: Mapping[str, Any], logits: str) -> float | None:
    """The output of the Accuracy layer that looks at the most probable class alone."""
    for layer in net.layer:
        if layer.type == "Accuracy" and layer.bottom[0] == logits and layer.accuracy_param.top_k == 1:
            value = row["outputs"].get(layer.top[0])
            return value if isinstance(value, float) else None
    return None


def _images(run: Run, data: pb.LayerParameter | None) -> int | None:
    """The number of different images of a test, whose last batch may have begun the list again."""
    if data is None or not run.solver.test_iter:
        return None
    batch = data.image_data_param.batch_size if data.HasField("image_data_param") else data.data_param.batch_size
    tested = int(run.solver.test_iter[0] * batch)
    return min(tested, _rows(data, run.test_folder) or tested) or None
