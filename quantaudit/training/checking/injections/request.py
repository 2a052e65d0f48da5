"""What is asked for on the command line: which mismatch, from which step on, with which options."""

from __future__ import annotations

import re

from quantaudit.core.errors import InputError
from quantaudit.core.serial import Frozen

_FORM = re.compile(r"(?P<name>[a-z0-9-]+)@(?P<step>\d+)(?::(?P<options>.+))?")
_EXPECTED = "NAME@STEP or NAME@STEP:key=value,key=value, such as stale@5 or another-rule@0:scheme=mxfp4-floor"


class InjectionRequest(Frozen):
    """One injection.

    Attributes:
        name: Its name.
        step: First step at which it happens, 0-based.
        options: Its options, unparsed.
    """

    name: str
    step: int
    options: dict[str, str] = {}

    def in_words(self) -> str:
        """Returns the text that this was parsed from."""
        options = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}@{self.step}" + (f":{options}" if options else "")


def parse_request(text: str) -> InjectionRequest:
    """Parses the text of one `--inject`.

    Raises:
        InputError: If it has another form, or names an option twice.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise InputError(f"--inject {text}", expected=_EXPECTED, fix="write the name, @, and the first step")
    options: dict[str, str] = {}
    for part in (found["options"] or "").split(","):
        key, equals, value = part.partition("=")
        if part and (not equals or not key or not value or key in options):
            raise InputError(
                f"--inject {text}: the option {part!r}", expected=_EXPECTED, fix="write it as key=value, once"
            )
        if part:
            options[key] = value
    return InjectionRequest(name=found["name"], step=int(found["step"]), options=options)
