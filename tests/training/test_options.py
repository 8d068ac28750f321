"""Command-line options of ``tsplat train``."""

import dataclasses
import json

import pytest

from tsplat import ArgumentError
from tsplat.strategies import DefaultStrategy, MCMCStrategy
from tsplat.training import RunConfig, preset
from tsplat.training.configuration import scale_schedule, to_json
from tsplat.training.options import Options, Resume, parse, run_config

pytest.importorskip("tyro")


def test_options_change_the_preset_or_the_configuration_file(tmp_path):
    arguments = "scene --out run --preset mcmc --steps 30 --strategy.cap-max 77 --antialiased --background 1 0.5 0"
    options = parse(arguments.split())
    assert isinstance(options, Options)
    assert (options.out, options.stop_after) == ("run", None)
    expected = dataclasses.replace(
        preset("mcmc", 30),
        scene="scene",
        antialiased=True,
        background=(1.0, 0.5, 0.0),
        strategy=scale_schedule(MCMCStrategy(cap_max=77), 30),
    )
    assert run_config(options) == expected
    (tmp_path / "config.json").write_text(json.dumps(to_json(expected)))
    changed = parse(["--config", str(tmp_path / "config.json"), "--out", "run", "--steps", "31", "elsewhere"])
    assert isinstance(changed, Options)
    assert run_config(changed) == dataclasses.replace(expected, steps=31, scene="elsewhere")
    default = parse(["scene", "--out", "run", "--preset", "default", "--strategy.absgrad"])
    assert isinstance(default, Options)
    assert default.strategy == scale_schedule(DefaultStrategy(absgrad=True), RunConfig.steps)


def test_resume_does_not_take_settings():
    options = parse(["--resume", "run", "--stop-after", "5"])
    assert isinstance(options, Resume)
    assert (str(options.run), options.stop_after, options.force) == ("run", 5, False)
    with pytest.raises(ArgumentError, match="--steps 3"):
        parse(["--resume", "run", "--steps", "3"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("scene", "--out: expected a folder"),
        ("--out run", "SCENE: expected a folder"),
        ("scene --out run --steps 0", "steps"),
        ("scene --out run --means-rate -1", "--means-rate: expected a number of at least 0"),
        ("scene --out run --strategy.cap-max 3", "the preset fixed has no strategy"),
        ("scene --out run --preset best", "preset"),
        ("scene --out run --colors red", "--colors"),
    ],
)
def test_invalid_options_are_rejected(arguments, message):
    with pytest.raises(ArgumentError, match=message) as error:
        parse(arguments.split())
    assert "tsplat train --help" in str(error.value)
