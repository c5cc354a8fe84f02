"""Names of parameters come from the modules that are alive, the same on every rank."""

from __future__ import annotations

import torch
from torch import nn

from thinwire.inspect.names import names_of


class Generator(nn.Sequential):
    pass


class Critic(nn.Sequential):
    pass


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_names_of_a_model_are_its_own():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    assert names_of(list(model.parameters())) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_wrappers_leave_no_trace_and_parts_do_not_shorten_a_name():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    wrapped, apart = Wrapper(model), nn.ModuleList([model[0]])
    assert names_of(list(wrapped.parameters()))[0] == "0.weight"
    assert len(apart) == 1


def test_two_models_with_the_same_names_are_told_apart():
    one, two = Generator(nn.Linear(3, 4)), Critic(nn.Linear(4, 2))
    names = names_of([*two.parameters(), *one.parameters()])
    assert names == ["Critic.0.weight", "Critic.0.bias", "Generator.0.weight", "Generator.0.bias"]
    alike = [nn.Linear(2, 2), nn.Linear(2, 2)]
    names = names_of([alike[0].weight, alike[1].weight])
    assert len(set(names)) == 2
    assert all("weight" in name for name in names)


def test_parameters_without_a_module_have_place_and_shape():
    assert names_of([torch.ones(3, 4, requires_grad=True)]) == ["parameter 0 [3, 4]"]


def test_tied_parameters_have_one_name():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert sorted(names_of(list(model.parameters()))) == ["0.bias", "0.weight", "1.bias"]
