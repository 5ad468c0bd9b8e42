"""Fields of tools that hold a callable, governed where they are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.instrumentor import Patches
from lgov_core.instrumentation.subclasses import on_subclass, subclasses_of

GovernorOf = Callable[[], Governor | None]

#: Makes the governed callable, from the tool, its own callable, and what gives the governor.
Govern = Callable[[Any, Any, GovernorOf], Any]

_NOTHING: Any = object()


def govern_fields(patches: Patches, base: type, wraps: Mapping[str, Govern], acting: GovernorOf) -> None:
    """Governs these fields of ``base`` and of the classes below it, which may have a property or a method instead."""

    def treat(cls: type) -> None:
        for name, govern in wraps.items():
            own = vars(cls).get(name, _NOTHING)
            if isinstance(own, dataclasses.Field):
                # A dataclass that is being defined: it will put the default in the place of this declaration.
                if own.default is not dataclasses.MISSING:
                    own.default = _GovernedField(name, govern, own.default, acting)
            elif not isinstance(own, _GovernedField) and (cls is base or own is not _NOTHING):
                patches.replace(cls, name, _GovernedField(name, govern, own, acting))

    for cls in subclasses_of(base):
        treat(cls)
    on_subclass(patches, base, treat)


class _GovernedField:
    """A field that gives the governed callable; the instance keeps what was stored.

    ``own`` is what the class has in its place: nothing, a default, a method or a property.
    """

    def __init__(self, name: str, govern: Govern, own: Any, acting: GovernorOf) -> None:
        self._name = name
        self._made = f"_lgov_{name}"
        self._govern = govern
        self._own = own
        self._acting = acting

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None or self._name not in vars(instance) or hasattr(type(self._own), "__set__"):
            found = self._of_class(instance, owner)
        else:
            found = vars(instance)[self._name]
        if instance is None or found is None or self._acting() is None:
            return found
        # The same object each time: the SDK compares what it approved with what it runs. Bound methods are only equal.
        made = vars(instance).get(self._made)
        if made is None or made[0] != found or made[1] is not instance:
            made = vars(instance)[self._made] = (found, instance, self._govern(instance, found, self._acting))
        return made[2]

    def _of_class(self, instance: Any, owner: type | None) -> Any:
        if self._own is _NOTHING:
            raise AttributeError(self._name)
        getter: Any = getattr(type(self._own), "__get__", None)
        return self._own if getter is None else getter(self._own, instance, owner)

    def __set__(self, instance: Any, value: Any) -> None:
        if hasattr(type(self._own), "__set__"):
            type(self._own).__set__(self._own, instance, value)
            return
        made = vars(instance).get(self._made)
        if made is not None and value is made[2]:  # stored as it was read
            value = made[0]
        vars(instance)[self._name] = self._own if value is self else value
