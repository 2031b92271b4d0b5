"""From code back to its source."""

import ast
import json
import linecache

import torch

from stayfinite.investigate.body.source import file_kind, function_source, source_tree


class Owner:
    def method(self):
        return self.__hidden  # mangled by the class around it

    @torch.no_grad()
    def decorated(self, x):
        return x


def test_a_function_is_found_by_its_code():
    source = function_source(Owner.method.__code__)
    assert isinstance(source.node, ast.FunctionDef) and source.class_name == "Owner"
    assert "_Owner__hidden" in ast.unparse(source.node)


def test_a_decorated_function_is_found():
    assert function_source(Owner.decorated.__wrapped__.__code__).node.name == "decorated"


def test_lambdas_on_one_line_are_told_apart():
    one, two = lambda x: x + 1, lambda x: x + 2
    assert ast.unparse(function_source(one.__code__).node) == "lambda x: x + 1"
    assert ast.unparse(function_source(two.__code__).node) == "lambda x: x + 2"


def test_code_without_source_is_not_known():
    space = {}
    exec("def made(x): return x", space)
    assert function_source(space["made"].__code__) is None
    assert source_tree("<nowhere>") is None


def test_files_belong_to_somebody():
    kinds = [file_kind(f) for f in (__file__, torch.__file__, json.__file__, linecache.__file__)]
    assert kinds == ["user", "torch", "stdlib", "stdlib"]
