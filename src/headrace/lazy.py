"""How a package exports names without loading the modules that they come from.

if TYPE_CHECKING:
    from headrace.room.module import Name       # what type checkers see
else:
    __getattr__, __all__ = lazy_exports(__name__, {"module": ["Name"]})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(package: str, names: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], list[str]]:
    """The `__getattr__` and the `__all__` of `package`; `names` says what each of its modules exports.

    A module without names is itself what is exported.
    """
    module_of = {name: f"{package}.{module}" for module, given in names.items() for name in given}
    modules = {module for module, given in names.items() if not given}

    def load(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name]), name)

    return load, sorted({*module_of, *modules})
