"""An attribute is found with what it is, own or inherited."""

import types

from stayfinite.patches.attribute import Attribute, describe


def test_own_and_inherited_attributes_are_told_apart():
    class Base:
        def f(self):
            return 1

    class Child(Base):
        pass

    assert Attribute(Base, "f").is_own
    assert not Attribute(Child, "f").is_own
    assert Attribute(Child, "f").raw is Base.__dict__["f"]


def test_a_module_that_makes_its_names_when_asked_can_be_patched():
    lazy = types.ModuleType("lazy")
    lazy.__getattr__ = {"f": len}.__getitem__
    found = Attribute(lazy, "f")
    assert not found.is_own
    lazy.f = found.wrapped(lambda x: -1)
    assert lazy.f([]) == -1
    assert found.current() is lazy.f
    found.put_back()
    assert "f" not in vars(lazy) and found.current() is len


def test_owners_are_described_by_name():
    assert describe(types) == "types"
    assert describe(Attribute) == "stayfinite.patches.attribute.Attribute"
    assert describe(object()) == "an object of builtins.object"
