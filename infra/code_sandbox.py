"""What a run asks of programs/, whose refusals are a user's mistakes: UserError, in one line."""

from collections.abc import Callable

from infra.errors import UserError
from infra.ranks import speaks
from programs import ProgramsError, problems, verify_code
from programs.sandbox.client import start_sandbox


def or_user_error(function: Callable, *arguments):
    """function(*arguments). Raises UserError for its ProgramsError."""
    try:
        return function(*arguments)
    except ProgramsError as error:
        raise UserError(str(error)) from error


def prepare_sandbox(mode: str) -> None:
    """Start this process's sandbox as --code-sandbox says; the first rank prints its walls."""
    line = or_user_error(start_sandbox, mode)
    if speaks():
        print(line, flush=True)


def rewards(responses: list[str], tests: list[list[dict]]) -> list[float]:
    """The reward of each response by its own tests: programs/verify_code.py."""
    return or_user_error(verify_code.rewards, responses, tests)


def checked_tests(tests, where: str) -> list[dict]:
    """The tests in a cell of a user's own set: programs/problems.py."""
    return or_user_error(problems.checked_tests, tests, where)
