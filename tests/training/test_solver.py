"""The training loop: order, tests, displays, snapshots, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from autodial import proto
from autodial.errors import InputError, WorkError
from autodial.proto import messages as pb
from autodial.proto import parse_solver, read_solver
from autodial.training.monitor import Monitor, TestRow, TrainRow
from autodial.training.solver import Solver

Edit = Callable[[str, str, str], None]


class Events(Monitor):
    def __init__(self) -> None:
        self.rows: list[TrainRow] = []
        self.tests: list[TestRow] = []
        self.order: list[str] = []

    def displayed(self, row: TrainRow) -> None:
        self.rows.append(row)
        self.order.append(f"display {row.iteration}")

    def tested(self, row: TestRow) -> None:
        self.tests.append(row)
        self.order.append(f"test {row.iteration}")

    def saved(self, model: Path, state: Path) -> None:
        self.order.append(f"save {model.stem.rpartition('_')[2]}")

    def iterated(self, solver: Solver) -> None:
        self.order.append(str(solver.iter))


def watched(**options: Any) -> tuple[Solver, Events]:
    solver, events = Solver.from_file("solver.prototxt", **options), Events()
    solver.monitors.append(events)
    return solver, events


def test_order_of_events_is_caffes(project: Path) -> None:
    solver, events = watched()
    solver.solve()
    assert events.order == [
        *("test 0", "display 0", "1", "2", "display 2", "3", "4", "save 4"),
        *("test 4", "display 4", "5", "6", "display 6", "7", "8", "save 8", "test 8"),
    ]


def test_flags_that_leave_out_the_first_test_and_last_snapshot(project: Path) -> None:
    settings = ["solver.test_initialization=false", "solver.snapshot_after_train=false", "solver.snapshot=0"]
    solver, events = watched(overrides=settings)
    solver.solve()
    assert [event for event in events.order if event.startswith(("test", "save"))] == ["test 4", "test 8"]
    assert not Path("snapshots").exists()


@pytest.mark.parametrize(
    ("interval", "initialization", "tests"),
    [(3, True, [0, 3, 6, 8]), (3, False, [3, 6, 8]), (100, True, [0, 8]), (100, False, []), (2**31 - 1, False, [])],
)
def test_the_last_iteration_is_tested(project: Path, interval: int, initialization: bool, tests: list[int]) -> None:
    settings = [f"solver.test_interval={interval}", f"solver.test_initialization={str(initialization).lower()}"]
    solver, events = watched(overrides=settings)
    solver.solve()
    assert [event for event in events.order if event.startswith("test")] == [f"test {iter_}" for iter_ in tests]


def test_alphas_that_are_fixed_do_not_count_in_the_clipped_norm(project: Path) -> None:
    """The gradients of all that learns are clipped to the norm 0.1, and a step of rate 1 is these gradients."""
    settings = ["momentum=0", "weight_decay=0", "iter_size=1", "base_lr=1", "clip_gradients=0.1"]
    lengths = {}
    for variant in ("fixed-alpha", None):
        solver = Solver.from_file(
            "solver.prototxt",
            overrides=[f"solver.{setting}" for setting in settings],
            variants=[] if variant is None else [variant],
        )
        before = [param.tensor.detach().clone() for param in solver.net.params]
        solver.step(1)
        solver.close()
        pairs = zip(solver.net.params, before, strict=True)
        steps = [p.tensor.detach() - old for p, old in pairs if (p.layer, p.index) == ("conv/dial", 0) or p.lr_mult]
        lengths[variant] = [float(step.norm()) for step in steps]
        assert math.hypot(*lengths[variant]) == pytest.approx(0.1, rel=1e-4)
    # where alpha learns, its part of the norm is the others' loss
    assert lengths["fixed-alpha"][2] == 0 and lengths[None][2] > 0.001


def test_displayed_rows(project: Path) -> None:
    solver, events = watched()
    losses = []
    forward_backward = solver.forward_backward

    def recorded(pass_: int) -> Any:
        outputs = forward_backward(pass_)
        losses.append(float(outputs["loss-source"].detach() + 0.1 * outputs["loss-target"].detach()))
        return outputs

    solver.forward_backward = recorded  # type: ignore[method-assign]
    solver.step(8)
    per_iteration = [(a + b) / 2 for a, b in zip(losses[::2], losses[1::2], strict=True)]  # iter_size: 2
    for row in events.rows:
        window = per_iteration[max(0, row.iteration - 2) : row.iteration + 1]  # average_loss: 3
        assert row.loss == pytest.approx(sum(window) / len(window), rel=1e-5)
        last = row.outputs["loss-source"][0] + 0.1 * row.outputs["loss-target"][0]
        assert last == pytest.approx(losses[2 * row.iteration + 1], rel=1e-5)
        assert set(row.alphas) == {"conv/dial"}
        assert row.loss_weights == pytest.approx({"loss-source": 1, "loss-target": 0.1})
    assert [row.lr for row in events.rows] == pytest.approx([0.05, 0.05, 0.025, 0.025])
    assert [row.images_per_s is None for row in events.rows] == [True, False, False, False]


def test_test_averages_over_the_first_batches_with_the_train_nets_blobs(project: Path) -> None:
    solver = Solver.from_file("solver.prototxt")
    solver.step(3)
    (net,) = solver.test_nets
    source = net.layer("test").source
    accuracy, loss = 0.0, 0.0
    for j in range(2):
        images, labels = (torch.from_numpy(array) for array in source.batch(j))
        # the TEST phase by hand, on the train net's blobs
        blobs = {name: solver.net.layer(name).blobs for name in ("conv", "conv/dial", "fc")}
        hidden = torch.conv2d(images, *blobs["conv"])
        _, means, variances, normalizer = blobs["conv/dial"]
        mean, variance = means[1] / normalizer, variances[1] / normalizer
        hidden = torch.relu((hidden - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt())
        logits = hidden.flatten(1) @ blobs["fc"][0].T + blobs["fc"][1]
        accuracy += float((logits.argmax(1) == labels).float().mean()) / 2
        loss += float(torch.nn.functional.cross_entropy(logits, labels.long()).detach()) / 2
    results = solver.test()
    assert set(results) == {"accuracy", "loss-test"}
    assert float(results["accuracy"]) == pytest.approx(accuracy)
    assert float(results["loss-test"]) == pytest.approx(loss, rel=1e-4)
    assert solver.test()["loss-test"] == results["loss-test"]


def test_all_lr_mult_0_gathers_statistics_alone(project: Path) -> None:
    settings = [
        f"{layer}.param[{i}].lr_mult=0"
        for layer, blobs in (("conv", 2), ("conv/dial", 1), ("fc", 2))
        for i in range(blobs)
    ]
    solver = Solver.from_file("solver.prototxt", overrides=settings)
    before = [param.tensor.clone() for param in solver.net.params]
    solver.step(2)
    changed = [
        (param.layer, param.index)
        for param, old in zip(solver.net.params, before, strict=True)
        if not torch.equal(param.tensor, old)
    ]
    assert changed == [("conv/dial", 1), ("conv/dial", 2), ("conv/dial", 3)]


def test_weights_from_several_files(project: Path) -> None:
    solver = Solver.from_file("solver.prototxt")
    weights = solver.net.weights()
    layers = {layer.name: layer for layer in weights.layers}
    for name, values in (("one", {"conv": 1, "fc": 1}), ("two", {"fc": 2})):
        chosen = []
        for layer, value in values.items():
            layers[layer].blobs = [blob * 0 + value for blob in layers[layer].blobs]
            chosen.append(layers[layer])
        proto.write_weights(proto.Weights(name, list(chosen)), f"{name}.caffemodel")
    assert solver.load_weights(["one.caffemodel", "two.caffemodel"]) == ["conv/dial"]
    assert solver.net.layer("conv").blobs[0].unique().tolist() == [1]
    assert solver.net.layer("fc").blobs[0].unique().tolist() == [2]
    assert solver.test_nets[0].layer("fc").blobs[0].unique().tolist() == [2]


def test_the_solvers_own_weights(project: Path, edit: Edit, tmp_path_factory: pytest.TempPathFactory) -> None:
    """BVLC's field `weights`: repeated, with commas, and relative to the solver's folder, too."""
    edit("solver.prototxt", "net:", 'weights: "one.caffemodel, two.caffemodel" weights: "three.caffemodel" net:')
    names = ("one", "two", "three")
    assert read_solver("solver.prototxt").weights == ["one.caffemodel, two.caffemodel", "three.caffemodel"]
    solver = Solver.from_file("solver.prototxt")
    with pytest.raises(InputError, match=r'^solver\.prototxt: weights: "one\.caffemodel" does not exist'):
        _ = solver.own_weights
    for name in names:
        Path(f"{name}.caffemodel").touch()
    assert [path.name for path in solver.own_weights] == [f"{name}.caffemodel" for name in names]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        elsewhere = Solver.from_file(project / "solver.prototxt")
        assert elsewhere.own_weights == [project / f"{name}.caffemodel" for name in names]


def test_divergence_stops_with_the_snapshots_before_it(project: Path) -> None:
    solver = Solver.from_file("solver.prototxt", overrides=["solver.base_lr=1e30", "solver.snapshot=1"])
    with pytest.raises(WorkError, match=r"training has diverged; lower base_lr or the loss_weight of an EntropyLoss"):
        solver.solve()
    for path in Path("snapshots").glob("*.caffemodel"):
        for layer in proto.read_weights(path).layers:
            assert all(bool(torch.from_numpy(blob).isfinite().all()) for blob in layer.blobs)


def test_full_gpu_memory_is_one_sentence(project: Path) -> None:
    class Full(Solver):
        def forward_backward(self, pass_: int) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    with pytest.raises(WorkError, match="the GPU's memory is full: lower batch_size"):
        Full.from_file("solver.prototxt").step(1)


def test_failed_snapshot_leaves_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solver = Solver.from_file("solver.prototxt")
    solver.step(1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(proto, "write_state", full)
    with pytest.raises(WorkError, match="stripes_iter_1 can't be written: No space left"):
        solver.snapshot()
    assert list(Path("snapshots").iterdir()) == []


def test_snapshots_default_to_the_solvers_name(project: Path, edit: Edit) -> None:
    edit("solver.prototxt", 'snapshot_prefix: "snapshots/stripes"', "")
    assert Solver.from_file("solver.prototxt").param.snapshot_prefix == "solver"
    (project / "folder").mkdir()
    edit("solver.prototxt", "random_seed: 5", 'random_seed: 5 snapshot_prefix: "folder/"')
    assert Solver.from_file("solver.prototxt").param.snapshot_prefix == str(Path("folder/solver"))


def test_unwritable_snapshot_folder_is_found_before_training(project: Path) -> None:
    (project / "file").touch()
    solver = Solver.from_file("solver.prototxt", overrides=["solver.snapshot_prefix=file/x"])
    with pytest.raises(InputError, match="snapshots can't be written to file"):
        solver.check()


def test_nets_of_their_own_for_train_and_test(project: Path, edit: Edit) -> None:
    (project / "nets").mkdir()
    (project / "net.prototxt").rename(project / "nets/net.prototxt")
    edit("solver.prototxt", 'net: "net.prototxt"', 'train_net: "nets/net.prototxt" test_net: "nets/net.prototxt"')
    solver = Solver.from_file("solver.prototxt")
    assert len(solver.test_nets) == 1
    solver.step(1)
    assert solver.test_nets[0].layer("fc").blobs[0] is solver.net.layer("fc").blobs[0]


def test_states_choose_stages(project: Path, edit: Edit) -> None:
    edit("net.prototxt", 'layer { name: "accuracy"', 'layer { name: "accuracy" exclude { stage: "quick" }')
    edit(
        "net.prototxt", 'bottom: "label" top: "accuracy" include { phase: TEST } }', 'bottom: "label" top: "accuracy" }'
    )
    edit("solver.prototxt", "random_seed: 5", "random_seed: 5 test_iter: 1 test_state {} test_state { stage: 'quick' }")
    edit("solver.prototxt", "solver_mode: CPU", "solver_mode: CPU train_state { stage: 'quick' }")
    solver = Solver.from_file("solver.prototxt")
    assert ["accuracy" in net.outputs for net in solver.test_nets] == [True, False]
    assert "accuracy" not in solver.net.outputs


BASE = 'base_lr: 1 lr_policy: "fixed" '


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BASE, "train net must be given once, .*, and is given by none of them"),
        (BASE + 'net: "a" train_net: "b"', "is given by net and train_net"),
        (BASE + 'net: "nowhere.prototxt"', 'net: "nowhere.prototxt" does not exist'),
        (BASE + 'net: "a" iter_size: 0', "iter_size must be at least 1, and is 0"),
        (BASE + 'net: "a" average_loss: 0', "average_loss must be at least 1, and is 0"),
        (BASE + 'net: "a" max_iter: -5', "max_iter must be at least 0, and is -5"),
        (BASE + 'net: "a" test_iter: 3', "test_iter is given, and test_interval, how often to test, is missing"),
        (BASE + 'net: "a" test_iter: 0 test_interval: 1', "test_iter must be at least 1, and is 0"),
        (
            BASE + 'train_net: "net.prototxt" test_iter: 1 test_interval: 1',
            "test_iter is given for 1 test net, and there are 0",
        ),
        (BASE + 'net: "net.prototxt" test_state {}', "test_state is given for 1 test net, and there are 0"),
        (BASE + 'net: "a" snapshot: 5', "snapshot is given, and snapshot_prefix, where snapshots go, is missing"),
        (BASE + 'net: "a" regularization_type: "L3"', 'regularization_type "L3" does not exist; it is L1 or L2'),
        (
            BASE + 'net: "a" eval_type: "detection"',
            "eval_type, which only other versions of Caffe have, is not supported",
        ),
        (BASE + 'net: "a" type: "Lion"', 'type "Lion" is not supported; supported solver types: SGD'),
        ('net: "a" lr_policy: "fixed"', "base_lr is missing"),
    ],
)
def test_what_is_refused(project: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"my.prototxt: .*{message}"):
        Solver(parse_solver(text), name="my.prototxt")


def test_net_errors_name_the_file_and_the_phase(project: Path, edit: Edit) -> None:
    edit("net.prototxt", "num_output: 3", "num_output: 3 axis: 7")
    with pytest.raises(InputError, match=r'net.prototxt, TRAIN phase: layer "fc" \(InnerProduct\)'):
        Solver.from_file("solver.prototxt")


def test_net_without_loss_is_refused(project: Path) -> None:
    net = pb.NetParameter()
    net.layer.add(name="x", type="Input", top=["x"]).input_param.shape.add(dim=[1, 2])
    param = parse_solver(BASE)
    param.net_param.CopyFrom(net)
    solver = Solver(param)  # whose parameters a script may give gradients to
    for train in (solver.check, solver.solve, lambda: solver.step(1)):
        with pytest.raises(InputError, match="the train net has no loss layer"):
            train()


def test_input_layers_need_a_program(project: Path) -> None:
    param = parse_solver(BASE)
    data = param.net_param.layer.add(name="x", type="Input", top=["x"])
    data.input_param.shape.add(dim=[4, 2])
    param.net_param.layer.add(name="loss", type="EntropyLoss", bottom=["x"], top=["loss"])
    with pytest.raises(InputError, match=r'layer "x" \(Input\) gets its data from a Python program'):
        Solver(param).step(1)


def test_fields_without_effect_are_said(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    Solver.from_file("solver.prototxt", overrides=["solver.debug_info=true", "solver.snapshot_diff=true"])
    assert [record.getMessage() for record in caplog.records] == [
        "snapshot_diff is ignored: snapshots hold no gradients",
        "debug_info is ignored: there is no trace of every blob",
    ]


def test_missing_max_iter(project: Path, edit: Edit) -> None:
    edit("solver.prototxt", "max_iter: 8", "")
    solver = Solver.from_file("solver.prototxt")
    solver.step(1)
    with pytest.raises(InputError, match="max_iter, the number of iterations to train for, is missing"):
        solver.check()
