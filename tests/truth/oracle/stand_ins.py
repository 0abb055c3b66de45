"""Modules that stand in for packages that are not installed and of which only names are needed."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from unittest.mock import MagicMock


class _Module(types.ModuleType):
    """A package in which every name is there."""

    __path__: tuple[str, ...] = ()
    __version__ = "3.0.0"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        made = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages that it was told, behind all others."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if name.partition(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        del module


def stand_in_for(*names: str) -> None:
    """Lets packages be imported that are not installed; one that is installed stays."""
    sys.meta_path.append(_Finder(names))


def without_triton() -> None:
    """Lets modules be imported that define kernels, or compile functions: neither is run here."""
    import torch
    import torch.utils.flop_counter  # asks for Triton as well, and takes no stand-in

    torch.compile = lambda model=None, **_: model if model is not None else (lambda other: other)
    stand_in_for("triton")
