"""infra/track.py: the data that --track sends, with stubs for the packages."""

import sys
from types import SimpleNamespace

import pytest
from infra.files import read_lines
from infra.track import start_tracking
from toy_runs import SMALL, refusal, train_small

import train
from infra import run as run_module
from infra import track


class Service:
    """A stub with the trackio and wandb functions that a run calls."""

    def __init__(self):
        self.started = []
        self.lines = []
        self.finished = 0

    def init(self, **settings):
        self.started.append(settings)

    def log(self, values, step):
        self.lines.append({"step": step, **values})

    def finish(self):
        self.finished += 1


@pytest.fixture
def service(monkeypatch):
    """One stub for both packages. The test itself calls the functions registered with atexit."""
    service = Service()
    service.at_exit = []
    monkeypatch.setitem(sys.modules, "trackio", service)
    monkeypatch.setitem(sys.modules, "wandb", service)
    monkeypatch.setattr(track.atexit, "register", service.at_exit.append)
    return service


def config(tracker):
    return train.parse_config(["--output-dir", "runs/mine", "--track", tracker])


@pytest.mark.parametrize("tracker", ["trackio", "wandb"])
def test_a_tracked_run_is_named_after_its_folder_and_id(tracker, service):
    send = start_tracking(config(tracker), "1f2e", step=0)
    (settings,) = service.started
    assert settings["name"] == "mine-1f2e"
    assert settings["resume"] == "allow"
    assert settings["config"]["method"] == "delta"
    assert settings.get("id", "1f2e") == "1f2e"
    send({"step": 3, "reward": 0.5})
    assert service.lines == [{"step": 3, "reward": 0.5}]
    (finish,) = service.at_exit
    finish()
    assert service.finished == 1


def test_a_run_sends_its_metrics(service, tmp_path):
    train_small(tmp_path / "run", "--track", "wandb", steps=2)
    written = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in written] == [0, 1, 2]
    assert service.lines == written


def test_tensorboard_gets_a_curve_per_metric_and_drops_repeated_steps(monkeypatch):
    scalars, opened = [], []

    class Writer:
        def __init__(self, folder, purge_step):
            opened.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            scalars.append((name, value, step))

        def flush(self):
            pass

    module = SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    send = start_tracking(config("tensorboard"), "1f2e", step=4)
    send({"step": 5, "reward": 0.5, "entropy": 0.25})
    assert opened == [("runs/mine", 5)]
    assert scalars == [("reward", 0.5, 5), ("entropy", 0.25, 5)]


def test_without_a_tracker_nothing_is_imported_or_sent(monkeypatch):
    for name in track.MODULES.values():
        monkeypatch.setitem(sys.modules, name, None)  # importing it would fail
    assert start_tracking(config("none"), "1f2e", step=0) is None


@pytest.mark.parametrize("tracker", ["trackio", "wandb", "tensorboard"])
def test_a_missing_package_is_reported_before_the_model_is_loaded(
    tracker, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, track.MODULES[tracker], None)  # as if not installed
    monkeypatch.setattr(run_module, "load_policy", None)
    command = [*SMALL, "--track", tracker, "--output-dir", tmp_path / "run"]
    said = refusal(train.main, command, capsys)
    assert f"--track {tracker} needs a package that is not installed" in said
    assert said.endswith(f"pip install {tracker}\n")
    assert not (tmp_path / "run").exists()
