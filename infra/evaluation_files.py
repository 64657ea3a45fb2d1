"""An evaluation's files. Without them evaluate.py would sample every benchmark again after a stop.

There is a folder for each benchmark, with responses.jsonl. A line holds the text of its problem, so
a response belongs to its problem whatever becomes of the data set.
"""

from pathlib import Path

from infra.data_sets import FILES
from infra.errors import UserError
from infra.folder import read_lines, write_json
from infra.problems import load_problems


def load_benchmarks(cfg) -> dict[str, list[dict]]:
    """Output folder name -> problems, cut to --limit, for --benchmarks in an evaluate.Settings.

    A file's folder has the file's name without its path, since responses depend on the name.
    Raises UserError if two benchmarks would share a folder.
    """
    benchmarks = {}
    for name in filter(None, map(str.strip, cfg.benchmarks.split(","))):
        columns = (cfg.problem_column, cfg.answer_column)
        folder = Path(name).name if Path(name).suffix in FILES else name.replace("/", "-")
        if folder in benchmarks:
            raise UserError(f"--benchmarks: two would share the folder {folder}: rename one")
        whole = bool(cfg.reward)
        problems = load_problems(name, *columns, flag="--benchmarks", whole=whole)
        benchmarks[folder] = problems[: cfg.limit or None]
    return benchmarks


def saved_responses(folder: Path) -> dict[tuple[str, int], dict]:
    """(problem's text, sample) -> line, from responses.jsonl in `folder`."""
    lines = read_lines(folder / "responses.jsonl")
    return {(line["asked"], line["sample"]): line for line in lines}


def write_averages(averages: dict, folder: Path) -> None:
    """Write averages.json, and print its averages as a Markdown table."""
    write_json(folder / "averages.json", averages)
    n = averages["sampling"]["samples"]
    own = averages["reward"]  # --reward: its mean is no accuracy
    heads = (f"mean reward of {n}", f"best of {n}") if own else (f"avg@{n}", f"pass@{n}")
    digits = ".4f" if own else ".2%"
    print(f"| benchmark | problems | {' | '.join(heads)} | standard error |\n|---|---|---|---|---|")
    for name, result in averages["benchmarks"].items():
        cells = [name, str(result["problems"])]
        for key in ("avg", "pass", "stderr"):
            cells.append("-" if result[key] is None else f"{result[key]:{digits}}")
        print("| " + " | ".join(cells) + " |")
    average = f"{averages['average']:{digits}} ({folder / 'averages.json'})"
    print(f"question-weighted average: {average}")
