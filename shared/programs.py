"""What a task of `code_exec` says in its `metadata`: how the program is put together, and what tests it.

Field names are those of HumanEval's and MBPP's published rows, so that these can be used as they are.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Seconds = Annotated[float, Meta(gt=0)]


class ProgramCase(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input of the program, and the output that is right for it."""

    stdin: str = ""
    stdout: str


class ProgramTests(Struct, frozen=True, kw_only=True):
    """One of test, test_list and cases is needed.

    {"prompt": "def double(x):\\n", "entry_point": "double", "test": "def check(f):\\n    assert f(2) == 4"}

    prompt: what stands before the answer, when that goes on with it. test: statements, or a function named check that
    is given the program's. test_list: further statements, run one after the other. test_setup_code, test_imports: run
    before them. entry_point: the name that the program must define. cases: the program is run by itself with each input
    instead. timeout: seconds that it may take, instead of the metric's own. solution, canonical_solution: a right
    answer, for the built-in models.
    """

    prompt: str = ""
    entry_point: str = ""
    test: str = ""
    test_list: tuple[str, ...] = ()
    test_setup_code: str = ""
    test_imports: tuple[str, ...] = ()
    cases: tuple[ProgramCase, ...] = ()
    timeout: Seconds | None = None
    solution: str = ""
    canonical_solution: str = ""

    def __post_init__(self) -> None:
        if not (self.test.strip() or self.test_list or self.cases):
            raise ValueError("expected one of test, test_list and cases")
        if self.cases and (self.test.strip() or self.test_list):
            raise ValueError("cases stand instead of test and test_list")

    @property
    def tests(self) -> str:
        """All statements of the tests."""
        return "\n".join(filter(None, (*self.test_imports, self.test_setup_code, self.test, *self.test_list))) + "\n"

    @property
    def right(self) -> str:
        return self.solution or self.canonical_solution
