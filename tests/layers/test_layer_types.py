"""Which layer types there are, and what is said about those that there aren't."""

from __future__ import annotations

import pytest

from autodial.errors import InputError
from autodial.layers import layer_class, registry
from autodial.layers.base import NOT_SUPPORTED


def test_a_class_knows_its_type() -> None:
    assert all(cls.type_name == name for name, cls in registry.items())
    assert layer_class("Parameter").type_name == "Parameter"


@pytest.mark.parametrize("name", ["BatchReindex", "Filter", "LSTM", "RNN", "Recurrent", "SPP", "WindowData"])
def test_types_that_are_left_out_come_with_a_way_around(name: str) -> None:
    with pytest.raises(InputError, match=f'layer type "{name}" is not supported: '):
        layer_class(name)


def test_no_type_is_both() -> None:
    assert not registry.keys() & NOT_SUPPORTED.keys()


def test_an_unknown_type_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r'"Convolutoin" is not supported; supported types: AbsVal, .*, Tile'):
        layer_class("Convolutoin")
