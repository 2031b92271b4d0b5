"""One file per format. A reader turns a mapped file into a tree without running its code."""

from __future__ import annotations

from . import arrays, gguf, legacy, nested, plain, safetensors, torchzip
from .base import Contents, Reader, find_reader, register_reader, unregister_reader

__all__ = ["Contents", "Reader", "find_reader", "register_reader", "unregister_reader"]

register_reader(Reader("safetensors", safetensors.matches, safetensors.read))
register_reader(Reader("pickle", plain.matches, plain.read))
register_reader(Reader("npy", arrays.matches, arrays.read))
register_reader(Reader("gguf", gguf.matches, gguf.read))
register_reader(Reader("torch legacy", legacy.matches, legacy.read))
register_reader(Reader("torch zip", torchzip.matches, torchzip.read))
nested.embed(torchzip.matches, torchzip.read_embedded)
nested.embed(legacy.matches, legacy.read_embedded)
