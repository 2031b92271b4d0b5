"""Operators of other libraries: they are named like torch's own, and memory that they fill is no old memory."""

import pytest
import torch
from tests.locate.test_slice import birth, located, roles

from stayfinite import Guard


@pytest.fixture(scope="module")
def library():
    """Registered as a compiled extension does it: the operators inside of theirs are seen by nobody."""
    library = torch.library.Library("stayfinite_test", "FRAGMENT")
    for schema, function in OPERATORS.items():
        library.define(schema)
        library.impl(schema.partition("(")[0], function, "CPU")
    yield torch.ops.stayfinite_test
    library._destroy()


def log_of_sum(x):
    return x.abs().sum(1, keepdim=True).log()


def shares_into(x, result):
    result.copy_(x / x.sum(1, keepdim=True))


def add_to(x, result):
    result.add_(x)


def grow_old(x, value):
    x.fill_(value)


OPERATORS = {
    "log_of_sum(Tensor x) -> Tensor": log_of_sum,
    "shares_into(Tensor x, Tensor(a!) result) -> ()": shares_into,
    "add_to(Tensor x, Tensor(a!) result) -> ()": add_to,
    "grow_old(Tensor x, float value) -> ()": grow_old,  # unsaid, like what was in the memory before
}


def with_a_row_of_zeros():
    x = torch.ones(4, 3)
    x[2] = 0
    return x


def test_an_operator_of_a_library_is_the_birth(library):
    def body(x):
        return (library.log_of_sum(x) * x).sum()

    location = located(body, x=with_a_row_of_zeros())
    assert birth(location).op == "stayfinite_test.log_of_sum"
    assert location.source == "return (library.log_of_sum(x) * x).sum()"


@pytest.mark.parametrize("old", [0.0, float("nan")])
def test_memory_that_an_operator_of_a_library_fills_is_not_read_before(library, old):
    def body(x):
        result = torch.empty_like(x)
        library.grow_old(result, old)
        library.shares_into(x, result)
        return result.sum()

    location = located(body, x=with_a_row_of_zeros())
    assert roles(location)[0] == ("stayfinite_test.shares_into", "birth")


def test_what_such_an_operator_makes_finite_is_not_looked_back_through(library):
    def body(x):
        result = torch.empty_like(x)
        library.shares_into(x, result)
        return (result / 0 * 0).sum()

    assert birth(located(body, x=torch.ones(4, 3))).op in ("aten.div", "aten.mul")


def test_a_bad_value_that_it_adds_to_is_followed(library):
    def body(x):
        result = torch.log(x - 1)
        library.add_to(x, result)
        return result.sum()

    assert birth(located(body, x=torch.ones(4, 3))).op == "aten.log"


def test_an_infinity_of_ordinary_numbers_is_no_overflow_there(library):
    """It may be a pole, of which nothing is known: no learning rate is blamed."""

    class Model(torch.nn.Linear):
        def forward(self, x):
            return super().forward(library.log_of_sum(x).expand(-1, 3) * x)

    model = Model(3, 1)
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for i in range(4):
        x = with_a_row_of_zeros() if i == 3 else torch.ones(4, 3)
        guard.step(lambda model, x: model(x).square().mean(), x)
    guard.close()
    (incident,) = guard.incidents
    assert incident.location.op == "stayfinite_test.log_of_sum"
    assert incident.diagnosis.cause is None
