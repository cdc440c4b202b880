"""Settings of solvers and nets under the names that --set has for them, on prototxts written by hand."""

from __future__ import annotations

from autodial.netparam.differences import Difference, Setting, differences, settings_of_nets, settings_of_solver
from autodial.proto import parse_net, parse_solver

CONV = 'layer { name: "%s" type: "Convolution" bottom: "x" top: "y" %s convolution_param { num_output: 4 pad: %s } }'


def test_settings_have_the_names_and_values_of_the_command_line() -> None:
    solver = parse_solver('base_lr: 0.1 lr_policy: "fixed" stepvalue: 3 stepvalue: 5 snapshot_format: HDF5 display: 7')
    assert settings_of_solver(solver, frozenset({"display"})) == {
        Setting("solver", "base_lr"): "0.1",
        Setting("solver", "lr_policy"): "fixed",
        Setting("solver", "stepvalue"): "[3, 5]",
        Setting("solver", "snapshot_format"): "HDF5",
    }
    net = parse_net(CONV % ("a", "param { lr_mult: 0.5 } param { decay_mult: 0 }", "1") + CONV % ("a", "", "2"))
    found = settings_of_nets([net])
    assert found[Setting("a", "param[0].lr_mult")] == "0.5" and found[Setting("a", "param[1].decay_mult")] == "0"
    assert found[Setting("a", "convolution_param.pad")] == "1"
    assert found[Setting("a (2)", "convolution_param.pad")] == "2"


def test_what_differs_alike_in_several_layers_is_one_difference() -> None:
    names = ("a", "b", "c", "d", "e")
    nets = [parse_net("".join(CONV % (name, "", pad) for name in names)) for pad in ("1", "2")]
    settings = [settings_of_nets([net]) for net in nets]
    assert differences(settings) == [Difference("convolution_param.pad of a, b, c and 2 more", ("1", "2"))]
    assert differences([settings[0]] * 2) == []
    (long,) = differences([settings_of_nets([parse_net(CONV % ("n" * 200, "", pad))]) for pad in ("1", "2")])
    assert long.name == f"{'n' * 100}....convolution_param.pad"


def test_a_layer_that_is_missing_is_one_difference() -> None:
    nets = [parse_net(CONV % ("a", "", "1")), parse_net("")]
    assert differences([settings_of_nets([net]) for net in nets]) == [
        Difference("a.type", ("Convolution", "not set")),
    ]
