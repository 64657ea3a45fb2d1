"""One rank of tests/infra/test_vllm_engine.py: a run that samples from the stand-in for vllm.

    torchrun tests/infra/vllm_worker.py FOLDER FLAGS...

Trains like train.py in FOLDER, and records the rank's engine calls in asked-RANK.json.
"""

import json
import sys
from pathlib import Path

# Before torch: only the script's own folder is on the path.
sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from fake_vllm import engines, installed
from torch import distributed as dist

import train
from infra.ranks import end_ranks


def main() -> None:
    folder, *flags = sys.argv[1:]
    with installed():
        cfg = train.parse_config([*flags, "--engine", "vllm", "--output-dir", folder])
        train.train(cfg)
    (engine,) = engines
    asked = {
        "calls": engine.calls,
        "settings": {name: str(value) for name, value in engine.settings.items()},
        "seeds": engine.seeds,
        "streamed": [name for name, _ in engine.model.streamed],
    }
    (Path(folder) / f"asked-{dist.get_rank()}.json").write_text(json.dumps(asked))
    end_ranks()


if __name__ == "__main__":
    main()
