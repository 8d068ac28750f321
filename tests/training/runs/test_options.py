"""Command-line options of ``tsplat train``."""

import dataclasses
import json
import re
import sys

import pytest
import torch

from tsplat import ArgumentError
from tsplat.strategies import DefaultStrategy, MCMCStrategy
from tsplat.training import RunConfig, ViewOptions, preset
from tsplat.training.configuration import to_json
from tsplat.training.presets import scale_schedule
from tsplat.training.runs.options import CPU_STEPS, Options, Resume, note_steps, parse, run_config, view_options

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
    adaptive = parse(["scene", "--out", "run", "--preset", "adaptive", "--strategy.absgrad", "--device", "cuda"])
    assert isinstance(adaptive, Options)
    assert adaptive.strategy == scale_schedule(DefaultStrategy(absgrad=True), RunConfig.steps)


def test_runs_without_a_gpu_have_fewer_steps_and_a_note(monkeypatch, tmp_path):
    words = ["scene", "--out", "run"]
    for available, steps in ((False, CPU_STEPS), (True, RunConfig.steps)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert run_config(parse(words)) == dataclasses.replace(preset(steps=steps), scene="scene")
        assert (note_steps(words) is not None) == (not available)
    on_cpu = [*words, "--device=cpu"]
    assert parse(on_cpu).steps == CPU_STEPS
    assert note_steps(on_cpu) == (
        "note: without a GPU, training takes 1,500 steps; to train longer, use --steps 7000 or --minutes M"
    )
    (tmp_path / "config.json").write_text(json.dumps(to_json(preset(steps=9))))
    for other in (["--steps", "1500"], ["--minutes", "1"], ["--config", str(tmp_path / "config.json")]):
        assert note_steps([*on_cpu, *other]) is None
    assert parse([*on_cpu, *other]).steps == 9
    assert note_steps(["--resume", "run"]) is None


def test_preset_without_a_choice_is_standard():
    options = parse(["scene", "--out", "run", "--steps", "400", "--max-gaussians", "5000"])
    assert isinstance(options, Options)
    assert run_config(options) == dataclasses.replace(preset("standard", 400), scene="scene", max_gaussians=5000)


def test_2d_gaussians_have_the_constants_of_2dgs(tmp_path):
    words = ["scene", "--out", "run", "--primitive", "2dgs"]
    options = parse([*words, "--preset", "adaptive", "--normal-weight", "0.1"])
    assert isinstance(options, Options) and options.normal_weight == 0.1
    assert (options.strategy.key_for_gradient, options.strategy.prune_opa) == ("gradient_2dgs", 0.05)
    (tmp_path / "config.json").write_text(json.dumps(to_json(dataclasses.replace(preset(), scene="scene"))))
    for start in ([], ["--config", str(tmp_path / "config.json")]):
        found = run_config(parse([*words, "--device", "cuda", *start]))
        expected = dict(device="cuda", primitive="2dgs", antialiased=False, normal_weight=0.05, distortion_weight=0.0)
        assert found == dataclasses.replace(preset(), scene="scene", **expected)
    assert parse(["--config", str(tmp_path / "config.json"), "--out", "run"]).primitive == "3dgs"


def test_minutes_replace_steps(tmp_path):
    words = ["scene", "--out", "run", "--max-gaussians", "5000"]
    assert parse([*words, "--minutes", "2.5"]).minutes == 2.5
    timed = parse([*words, "--minutes", "2.5"], 400)
    assert run_config(timed) == run_config(parse([*words, "--steps", "400"]))
    (tmp_path / "config.json").write_text(json.dumps(to_json(preset(steps=9))))
    for other in (["--steps", "9"], ["--config", str(tmp_path / "config.json")]):
        with pytest.raises(ArgumentError, match=f"--minutes: .* cannot be combined with {other[0]}"):
            parse([*words, "--minutes", "1", *other])


def test_help_names_arguments_and_what_is_required(capsys):
    with pytest.raises(SystemExit, match="0"):
        parse(["--help"])
    printed = capsys.readouterr().out
    assert "(default: '')" not in printed
    assert "[STR]" not in printed
    assert "{fixed}" not in printed  # what cannot be set, such as a random generator
    assert "--strategy.cap-max" in printed
    assert "the strategy's cap_max, if it is smaller" in " ".join(printed.replace("│", " ").replace("`", "").split())
    assert re.search(r"SCENE.*\(required\)", printed)
    assert re.search(r"--out RUN .*\(required\)", printed)


def test_options_of_the_view():
    words = [
        "--view",
        "--view-address",
        "0.0.0.0",
        "--view-port",
        "9000",
        "--view-open",
        "--view-paused",
        "--view-stay",
    ]
    expected = ViewOptions("0.0.0.0", 9000, open=True, paused=True, stay=True)
    assert view_options(parse(["scene", "--out", "run", *words])) == expected
    assert view_options(parse(["--resume", "run", *words])) == expected
    for command in (["scene", "--out", "run"], ["--resume", "run"]):
        assert view_options(parse(command)) is None
        assert view_options(parse([*command, "--view"])) == ViewOptions()
        with pytest.raises(ArgumentError, match="--view-port: only with --view"):
            view_options(parse([*command, "--view-port", "9000"]))
        with pytest.raises(ArgumentError, match="--view-port: expected an integer from 1 to 65535, found 65536"):
            view_options(parse([*command, "--view", "--view-port", "65536"]))


@pytest.mark.parametrize("command", [["scene", "--out", "run"], ["--resume", "run"]])
def test_page_stays_where_a_terminal_started_the_training(command, monkeypatch):
    def stays(*words):
        return view_options(parse([*command, *words])).stay

    assert not stays("--view")
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    assert stays("--view")
    assert not stays("--view", "--view-close")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert not stays("--view")
    assert stays("--view", "--view-stay")
    for words in (["--view-close"], ["--view", "--view-stay", "--view-close"]):
        with pytest.raises(ArgumentError, match="--view-close: only with --view, and not with --view-stay"):
            view_options(parse([*command, *words]))


def test_resume_does_not_take_settings():
    options = parse(["--resume", "run", "--stop-after", "5"])
    assert isinstance(options, Resume)
    assert (str(options.run), options.steps, options.stop_after, options.force) == ("run", None, 5, False)
    assert parse(["--resume", "run", "--steps", "9"]).steps == 9
    message = r"--seed: a run is resumed with the settings .* --stop-after N; .* --config run/config.json --out NEW_RUN"
    for words in (["--seed", "3"], ["--seed=3"]):
        with pytest.raises(ArgumentError, match=message):
            parse(["--resume", "run", *words])
    with pytest.raises(ArgumentError, match=r"--strategy\.cap-max: a run is resumed with"):
        parse(["--resume", "run", "--strategy.cap-max", "3"])
    with pytest.raises(ArgumentError, match="unrecognized arguments: --colors red"):
        parse(["--resume", "run", "--colors", "red"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("scene", "--out: expected a folder"),
        ("--out run", "SCENE: expected a folder"),
        ("scene --out run --steps 0", "steps"),
        ("scene --out run --means-rate -1", "--means-rate: expected a number of at least 0"),
        ("scene --out run --views-per-step -3", "--views-per-step: expected a positive int or 0, found -3"),
        ("scene --out run --max-size -3", "--max-size: expected a positive int or 0, found -3"),
        ("scene --out run --save-every -3", "--save-every: expected a positive int or 0, found -3"),
        ("scene --out run --stop-after 0", "--stop-after: expected a positive int, found 0"),
        ("--resume run --stop-after 0", "--stop-after: expected a positive int, found 0"),
        ("--resume run --steps -1", "--steps: expected a positive int, found -1"),
        ("scene --out run --background nan nan nan", "--background: expected three numbers from 0 to 1"),
        ("scene --out run --strategy.noise-lr nan", "--strategy.noise-lr: expected a finite number, found nan"),
        ("scene --out run --strategy.cap-max -1", "--strategy.cap-max: expected a positive int, found -1"),
        ("scene --out run --preset fixed --strategy.cap-max 3", "the preset fixed has no strategy"),
        ("scene --out run --preset default", "default was renamed to adaptive"),
        ("scene --out run --test-every 1", "--test-every: 1 holds out every view"),
        ("scene --out run --preset best", "preset"),
        ("scene --out run --colors red", "--colors"),
    ],
)
def test_invalid_options_are_rejected(arguments, message):
    with pytest.raises(ArgumentError, match=message) as error:
        parse(arguments.split())
    assert "tsplat train --help" in str(error.value)
