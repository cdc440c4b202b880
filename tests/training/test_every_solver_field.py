"""Every field of a SolverParameter changes a run, or a warning or an error names it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from autodial.errors import InputError, WorkError
from autodial.proto import messages as pb
from autodial.proto import parse_net, parse_solver, to_text
from autodial.system.devices import warn_of_cpu
from autodial.training.monitor import Monitor, TestRow, TrainRow
from autodial.training.solver import Solver

NET = """
layer { name: "data" type: "DummyData" top: "x" top: "y"
  dummy_data_param { shape { dim: 4 dim: 3 } shape { dim: 4 dim: 2 } data_filler { type: "gaussian" std: 1 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
  inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "more" type: "Power" bottom: "ip" top: "ip" power_param { scale: 2 } include { stage: "more" } }
layer { name: "deep" type: "Power" bottom: "ip" top: "ip" power_param { scale: 3 } include { min_level: 1 } }
layer { name: "drop" type: "Dropout" bottom: "ip" top: "ip" }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "y" top: "loss" }
"""
COMMON = 'net: "net.prototxt" max_iter: 5 display: 2 test_iter: 1 test_interval: 2 snapshot: 3 snapshot_prefix: "snap" '
RATES = {
    "fixed": "",
    "step": "gamma: 0.5 stepsize: 2",
    "inv": "gamma: 0.5 power: 0.5",
    "multistep": "gamma: 0.5 stepvalue: 2",
}
CASES = [
    *(f'{COMMON} base_lr: 0.1 momentum: 0.5 lr_policy: "{policy}" {more}' for policy, more in RATES.items()),
    *(f'{COMMON} base_lr: 0.1 lr_policy: "fixed" type: "{kind}"' for kind in ("RMSProp", "Adam", "AdaGrad")),
    f'{COMMON} base_lr: 0.1 lr_policy: "fixed" weight_decay: 0.5',
    'train_net: "net.prototxt" max_iter: 5 display: 2 snapshot_prefix: "snap" base_lr: 0.1 lr_policy: "fixed"',
]
STRINGS = {
    "net": ("other.prototxt",),
    "train_net": ("other.prototxt",),
    "test_net": ("other.prototxt",),
    "lr_policy": ("exp", "poly", "sigmoid"),
    "regularization_type": ("L1",),
    "snapshot_prefix": ("elsewhere/snap",),
    "type": ("Nesterov",),
    "stage": ("more",),
}
NUMBERS = (2, 1, 3, 0, -1, 0.5, 0.25)
WITHOUT_EFFECT = (
    "layer_wise_reduce", "engine", "richness", "show_per_class_result", "solver_data_type", "store_blobs_in_old_format",
)  # fmt: skip
"""Fields that are about how several GPUs work together, what forks log, which kernels they use and how they store."""


class Run(Monitor):
    """What a run shows."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def displayed(self, row: TrainRow) -> None:
        self.rows.append((row.iteration, row.lr, row.loss, row.outputs))

    def tested(self, row: TestRow) -> None:
        self.rows.append((row.iteration, row.net, row.outputs))

    def saved(self, model: Path, state: Path) -> None:
        self.rows.append((str(model), str(state)))


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(NET)
    Path("other.prototxt").write_text(NET.replace("std: 1", "std: 2"))


def outcome(param: Any, caplog: pytest.LogCaptureFixture) -> str:
    """All that can be seen of a run that begins as `autodial train` begins one."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        try:
            solver, run = Solver(param, device="auto"), Run()
            solver.monitors.append(run)
            solver.load_weights(solver.own_weights)
            warn_of_cpu("auto", solver.device, prefer_gpu=param.solver_mode == pb.SolverParameter.GPU)
            solver.solve()
        except (InputError, WorkError) as error:
            assert "\n" not in str(error)
            return f"error {error}"
    blobs = [param.tensor.tolist() for param in solver.net.params]
    history = [tensor.tolist() for tensor in solver.update.history]
    return str([run.rows, blobs, history, caplog.messages])


def changed(param: Any, name: str) -> Iterator[Any]:
    """Copies of a SolverParameter with other values in one field."""
    field = param.DESCRIPTOR.fields_by_name[name]
    for value in values_of(field):
        copy = pb.SolverParameter()
        copy.CopyFrom(param)
        try:
            if field.has_presence and field.message_type is not None:
                getattr(copy, name).CopyFrom(value)
            elif field.has_presence:
                setattr(copy, name, value)
            else:
                del getattr(copy, name)[:]
                getattr(copy, name).extend([value])
        except (ValueError, TypeError):  # a number that the field can't hold
            continue
        if copy != param:
            yield copy


def values_of(field: Any) -> list[Any]:
    if field.message_type is not None:
        return {
            "NetParameter": [parse_net(Path("other.prototxt").read_text())],
            "NetState": [pb.NetState(stage=["more"]), pb.NetState(level=1), pb.NetState(phase=pb.TRAIN)],
        }[field.message_type.name]
    if field.enum_type is not None:
        return list(field.enum_type.values_by_number)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return [True, False]
    return list(STRINGS.get(field.name, ("other",)) if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else NUMBERS)


FIELDS = [field.name for field in pb.SolverParameter.DESCRIPTOR.fields]


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_honoured_or_named(name: str, caplog: pytest.LogCaptureFixture) -> None:
    def matters() -> bool:
        for text in CASES:
            param = parse_solver(text)
            before = outcome(param, caplog)
            assert not before.startswith("error"), before
            for other in changed(param, name):
                after = outcome(parse_solver(to_text(other)), caplog)
                if after != before and (name in after or not after.startswith("error")):
                    return True
        return False

    assert matters() != (name in WITHOUT_EFFECT)
