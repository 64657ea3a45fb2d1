"""Runs train.py with stand-ins for the rewards, which differ within a group.

    python tests/hashed_rewards.py FLAGS...

In tests, a response is too short to state an answer. So all rewards of a group would be 0, and an
update would have no gradient. Here a reward is a hash of the response's text, between 0 and 1.
"""

import sys
from pathlib import Path
from unittest.mock import patch
from zlib import crc32

# This comes before any import from the project: only the script's own folder is on the path.
sys.path.insert(0, str(Path(__file__).parent.parent))

import train
from infra import grading


def hashes(responses: list[str], problems: list[dict], truncated: list[bool]) -> list[float]:
    return [crc32(text.encode()) / 2**32 for text in responses]


def rewarded(rewards=hashes):
    """A context in which train.py gives these rewards."""
    return patch.object(grading, "grade_all", rewards)


if __name__ == "__main__":
    with rewarded():
        train.main()
