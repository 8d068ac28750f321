"""Configurations: presets, files that load again, and the options of the command line."""

import dataclasses
import json

import pytest

from tsplat import ArgumentError
from tsplat.scene import FileError
from tsplat.strategies import DefaultStrategy, MCMCStrategy
from tsplat.training import RunConfig, preset, read_config
from tsplat.training.config import from_json, laid_out, to_json
from tsplat.training.options import Options, Resume, parse, run_config


@pytest.mark.parametrize("name", ["fixed", "default", "mcmc"])
def test_a_configuration_file_loads_again(name, tmp_path):
    config = dataclasses.replace(preset(name), scene="a", steps=12, background=(0.5, 0.0, 1.0), depth_weight=0.25)
    (tmp_path / "config.json").write_text(json.dumps(to_json(config)))
    assert read_config(tmp_path / "config.json") == config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"stepz": 3}, "'stepz', which is no field"),
        ({"steps": "3"}, "steps: expected something like 7000, found '3'"),
        ({"steps": True}, "steps"),
        ({"steps": 0}, "steps"),
        ({"background": [1, 2]}, "background"),
        ({"means_rate": -1.0}, "means_rate"),
        ({"precision": "fp8"}, "precision"),
        ({"strategy": {"kind": "best"}}, "strategy: expected kind"),
        ({"strategy": {"kind": "mcmc", "cap": 3}}, "strategy: found 'cap'"),
        ({"strategy": 3}, "strategy"),
        ([], "JSON object"),
    ],
)
def test_what_a_configuration_cannot_be(values, words):
    with pytest.raises(ArgumentError, match=words):
        from_json(values, "file")


def test_files_that_are_no_configuration(tmp_path):
    (tmp_path / "a").write_text("{")
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    for name, words in (("a", "not a configuration"), ("b", "not a configuration"), ("c", "cannot be read")):
        with pytest.raises(FileError, match=words):
            read_config(tmp_path / name)


def test_options_are_fields_of_a_preset(tmp_path):
    pytest.importorskip("tyro")
    words = "scene --out run --preset mcmc --steps 30 --strategy.cap-max 77 --antialiased --background 1 0.5 0"
    options = parse(words.split())
    assert isinstance(options, Options)
    assert (options.out, options.stop_after) == ("run", None)
    expected = dataclasses.replace(
        preset("mcmc", 30),
        scene="scene",
        antialiased=True,
        background=(1.0, 0.5, 0.0),
        strategy=laid_out(MCMCStrategy(cap_max=77), 30),
    )
    assert run_config(options) == expected
    (tmp_path / "config.json").write_text(json.dumps(to_json(expected)))
    again = parse(["--config", str(tmp_path / "config.json"), "--out", "run", "--steps", "31", "elsewhere"])
    assert isinstance(again, Options)
    assert run_config(again) == dataclasses.replace(expected, steps=31, scene="elsewhere")
    default = parse(["scene", "--out", "run", "--preset", "default", "--strategy.absgrad"])
    assert isinstance(default, Options)
    assert default.strategy == laid_out(DefaultStrategy(absgrad=True), RunConfig.steps)


def test_resuming_takes_nothing_of_the_configuration():
    found = parse(["--resume", "run", "--stop-after", "5"])
    assert isinstance(found, Resume)
    assert (str(found.run), found.stop_after, found.force) == ("run", 5, False)
    with pytest.raises(ArgumentError, match="--steps 3"):
        parse(["--resume", "run", "--steps", "3"])


def test_the_defaults_of_a_run_are_its_type_s():
    assert preset("fixed") == RunConfig()
    with pytest.raises(ArgumentError, match="preset"):
        preset("best")
