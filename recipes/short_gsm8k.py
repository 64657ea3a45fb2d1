"""GSM8K's problems of one or two calculations, with a prompt that asks for short answers.

    python recipes/short_gsm8k.py TRAIN TEST FOLDER  # writes train.jsonl, test.jsonl and prompt.txt

TRAIN and TEST are train.jsonl and test.jsonl of openai/grade-school-math. Their worked solutions
mark each calculation by <<...>>. docs/running.md trains on them, with `--stop '\\n'`.
"""

import json
import sys
from pathlib import Path

HELD_OUT = 200  # problems of FOLDER/test.jsonl, the first of TEST
PROMPT = """\
Question: A pen costs $2, and a book 3 times as much. What do both cost?
Answer: 3*2=6. 2+6=8. The answer is 8.

Question: {problem}
Answer:"""


def short(path: Path) -> list[str]:
    """The lines of a file whose solutions have one or two calculations."""
    lines = path.read_text().splitlines()
    return [line for line in lines if 1 <= json.loads(line)["answer"].count("<<") <= 2]


def main(train: str, test: str, out: str) -> None:
    """Write the two sets of problems, and the prompt with its worked example."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    problems, held_out = short(Path(train)), short(Path(test))[:HELD_OUT]
    for name, lines in (("train", problems), ("test", held_out)):
        (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))
    (folder / "prompt.txt").write_text(PROMPT)
    print(f"{folder}: {len(problems)} problems to train on, {len(held_out)} held out")


if __name__ == "__main__":
    main(*sys.argv[1:])
