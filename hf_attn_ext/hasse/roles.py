"""Roles of positions: the letter in a position's name, such as ``"F3"``, and the colour in pictures.

Each mask declares its roles where it is registered (:func:`.register_mask`). Masks that share a role declare the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hf_attn_ext.errors import AttnExtError, short

BLUE, TEAL, GREEN, RED, ORANGE = "#30459c", "#0b7a75", "#1d7a3f", "#c8384c", "#c46a00"


@dataclass(frozen=True)
class Role:
    """Letter and colour of the positions of a role.

    Attributes:
        letter: printable prefix of the positions' names; "" gives names without a prefix.
        colour: ``"#rrggbb"``, or None for a colour that no other role of the picture has.

    Example:
        >>> Role("F", GREEN)
        Role(letter='F', colour='#1d7a3f')
    """

    letter: str = ""
    colour: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.letter, str) or not self.letter.isprintable():
            raise AttnExtError(f"a role's letter must be a string of one line, got {short(self.letter)}")
        colour = self.colour
        if colour is not None and not (isinstance(colour, str) and re.fullmatch("#[0-9a-fA-F]{6}", colour)):
            raise AttnExtError(f"a role's colour must be '#rrggbb' or None, got {short(colour)}")


TOKEN = Role("w", BLUE)  # the role of a text's own tokens
_ROLES: dict[str, dict[str, Role]] = {"token": {"": TOKEN}}  # of each role, what each mask declares


def declare_roles(mask: str, roles: Mapping[str, Role]) -> None:
    """Register the roles of a mask; they replace all roles that it declared before.

    Raises:
        AttnExtError: a value that is not a :class:`Role`, or a role that another mask declares differently.
    """
    for name, role in roles.items():
        if not isinstance(name, str) or not isinstance(role, Role):
            raise AttnExtError(f"mask {mask!r}: roles must map names to Role, got {short(name)}: {short(role)}")
        for other, known in _ROLES.get(name, {}).items():
            if other != mask and known != role:
                raise AttnExtError(
                    f"mask {mask!r}: role {name!r} is {known} in mask {other!r}, got {role}; use that or another name"
                )
    for declared in _ROLES.values():
        declared.pop(mask, None)
    for name, role in roles.items():
        _ROLES.setdefault(name, {})[mask] = role


def role_of(name: str) -> Role:
    """Return the role of a name; a role without letter and colour where no mask declares it."""
    return next(iter(_ROLES.get(name, {}).values()), Role())
