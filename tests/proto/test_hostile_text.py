"""Texts whose reading could take time or memory that grows faster than they do."""

from __future__ import annotations

import time

import pytest

from autodial.errors import InputError
from autodial.net.net import Net
from autodial.netparam.overrides import apply_to_nets
from autodial.proto import messages as pb
from autodial.proto import parse_net, parse_solver

SIZE = 200_000
"""Characters. What grows with the square takes minutes for them, on any machine; what does not, a second or two."""
SECONDS = 20.0
UNITS = [
    '\\"', '"', "'", "\\", "\\x", "{", "}", "<", "[", ",", "-", "- ", ".", ".1", "1.", "1e", "9", "0x", "a", "a ", "#",
    "#\n", "\n", '"a" ', 'name: "a" ', "layer{", "layer{}", "layers{}", "layers{layer{}}", 'input: "a" ',
    "input_dim: 1 ", "input_shape{dim: 1}", "\u3000",
]  # fmt: skip
STARTS = ["", 'name: "', "input_dim: ", "layer { top: ", "layer { loss_weight: [", "layers { type: "]


@pytest.mark.parametrize("unit", UNITS)
def test_reading_takes_no_longer_than_the_text_is_long(unit: str) -> None:
    for start in STARTS:
        text = start + unit * (SIZE // len(STARTS) // len(unit))
        for parse in (parse_net, parse_solver):
            try:
                begun = time.process_time()
                parse(text)
            except InputError as error:
                assert len(str(error)) < 1000
            assert time.process_time() - begun < SECONDS / len(STARTS)


def test_a_string_that_is_never_closed_is_named() -> None:
    begun = time.process_time()
    with pytest.raises(InputError, match='<string>:1:7: name must be a string in quotes, not a string whose closing "'):
        parse_net('name: "' + '\\"' * (SIZE // 2) + '\nname: "b"')
    assert time.process_time() - begun < SECONDS


def test_the_type_behind_many_unknown_options_is_looked_for_once() -> None:
    options = "zz_param { } " * (SIZE // 13)
    begun = time.process_time()
    parse_net('layer { name: "x" ' + options + 'type: "Zork" }')
    assert time.process_time() - begun < SECONDS


def test_a_name_of_many_layers_is_looked_at_once_a_layer() -> None:
    layer = 'layer { name: "a" type: "ReLU" bottom: "x" top: "x" }'
    param = parse_net('layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 } } }' + 2000 * layer)
    begun = time.process_time()
    assert len(Net(param, pb.TEST).layer_names) == 2001
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("what", ["input_param", "dummy_data_param"])
def test_many_tops_are_looked_at_once(what: str) -> None:
    kind = "Input" if what == "input_param" else "DummyData"
    tops = " ".join(f'top: "{i}"' for i in range(20_000))
    param = parse_net(f'layer {{ name: "x" type: "{kind}" {tops} {what} {{ shape {{ dim: 1 }} }} }}')
    begun = time.process_time()
    assert len(Net(param, pb.TEST).blob_shapes) == 20_000
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    "path",
    [".a" * 500_000, "*a" * 500_000 + ".type", "a." * 500_000, "a[" * 500_000 + ".type", f"a.param[{'0' * 5000}].name"],
    ids=["names", "pattern", "fields", "brackets", "index"],
)
def test_long_paths_of_settings_are_refused_at_once(path: str) -> None:
    net = parse_net('layer { name: "a" type: "ReLU" }')
    begun = time.process_time()
    with pytest.raises(InputError) as error:
        apply_to_nets([f"{path}=1"], [net])
    assert time.process_time() - begun < SECONDS
    assert len(str(error.value)) < 1000
