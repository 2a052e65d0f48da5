"""The two ways a run can end without a verdict: the input is wrong (exit 2), or we are (exit 70)."""

from __future__ import annotations


class InputError(ValueError):
    """Reports one wrong input in one sentence: what was given, what was expected, how to fix it.

    Args:
        given: What the user gave, with the name or path that identifies it.
        expected: What would have been accepted.
        fix: The action that repairs it.
    """

    def __init__(self, given: str, *, expected: str, fix: str) -> None:
        self.given = given
        self.expected = expected
        self.fix = fix
        super().__init__(f"{given}; expected {expected}; {fix}")


class NotMeasuredError(ValueError):
    """Says that there was nothing to measure (exit 4): passing on nothing is never allowed."""


class MissingLibraryError(NotMeasuredError):
    """Says that an optional library is not installed, so what needs it was not checked (exit 4).

    Args:
        library: Name on the package index.
        extra: The extra of this package that brings it; empty for none.
    """

    def __init__(self, library: str, *, extra: str = "") -> None:
        self.library = library
        how = f"pip install 'quantaudit[{extra}]'" if extra else f"pip install {library}"
        super().__init__(f"{library} is not installed, so it was not checked; {how}")
