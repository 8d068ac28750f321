"""Command-line options of ``tsplat train``."""

import dataclasses
import json
import re
import subprocess
import sys

import pytest
import torch

from tsplat import ArgumentError
from tsplat.cli.train_options import COMMON, CPU_STEPS, _run_parser, note_steps, parse
from tsplat.strategies import DefaultStrategy, MCMCStrategy
from tsplat.training import RunConfig, ViewOptions, preset
from tsplat.training.configuration import FROZEN_NAMES, from_json, to_json
from tsplat.training.presets import PRESETS, for_surfels, scale_schedule


def test_options_change_the_preset_or_the_configuration_file(tmp_path):
    arguments = "scene --out run --preset mcmc --steps 30 --strategy.cap-max 77 --antialiased --background 1 0.5 0"
    options = parse(arguments.split())
    assert (options.out, options.stop_after) == ("run", None)
    expected = dataclasses.replace(
        preset("mcmc", 30),
        scene="scene",
        antialiased=True,
        background=(1.0, 0.5, 0.0),
        strategy=scale_schedule(MCMCStrategy(cap_max=77), 30),
    )
    assert options.settings == expected
    (tmp_path / "config.json").write_text(json.dumps(to_json(expected)))
    changed = parse(["--config", str(tmp_path / "config.json"), "--out", "run", "--steps", "31", "elsewhere"])
    assert changed.settings == dataclasses.replace(expected, steps=31, scene="elsewhere")
    adaptive = parse(["scene", "--out", "run", "--preset", "adaptive", "--strategy.absgrad", "--device", "cuda"])
    assert adaptive.settings.strategy == scale_schedule(DefaultStrategy(absgrad=True), RunConfig.steps)


def test_runs_without_a_gpu_have_fewer_steps_and_a_note(monkeypatch, tmp_path):
    words = ["scene", "--out", "run"]
    for available, steps in ((False, CPU_STEPS), (True, RunConfig.steps)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert parse(words).settings == dataclasses.replace(preset(steps=steps), scene="scene")
        assert (note_steps(words) is not None) == (not available)
    on_cpu = [*words, "--device=cpu"]
    assert parse(on_cpu).settings.steps == CPU_STEPS
    assert note_steps(on_cpu) == (
        "note: 1,500 steps are the default without a GPU; for a better model, use --steps 7000 or --minutes M"
    )
    (tmp_path / "config.json").write_text(json.dumps(to_json(preset(steps=9))))
    for other in (["--steps", "1500"], ["--minutes", "1"], ["--config", str(tmp_path / "config.json")]):
        assert note_steps([*on_cpu, *other]) is None
    assert parse([*on_cpu, *other]).settings.steps == 9
    assert note_steps(["--resume", "run"]) is None


def test_preset_without_a_choice_is_standard():
    options = parse(["scene", "--out", "run", "--steps", "400", "--max-gaussians", "5000"])
    assert options.settings == dataclasses.replace(preset("standard", 400), scene="scene", max_gaussians=5000)


def test_2d_gaussians_have_the_constants_of_2dgs(tmp_path):
    words = ["scene", "--out", "run", "--primitive", "2dgs"]
    options = parse([*words, "--preset", "adaptive", "--normal-weight", "0.1"])
    assert options.settings.normal_weight == 0.1
    assert (options.settings.strategy.key_for_gradient, options.settings.strategy.prune_opa) == ("gradient_2dgs", 0.05)
    (tmp_path / "config.json").write_text(json.dumps(to_json(dataclasses.replace(preset(), scene="scene"))))
    for start in ([], ["--config", str(tmp_path / "config.json")]):
        found = parse([*words, "--device", "cuda", *start]).settings
        expected = dict(device="cuda", primitive="2dgs", antialiased=False, normal_weight=0.05, distortion_weight=0.0)
        assert found == dataclasses.replace(preset(), scene="scene", **expected)
    assert parse(["--config", str(tmp_path / "config.json"), "--out", "run"]).settings.primitive == "3dgs"


def test_minutes_replace_steps(tmp_path):
    words = ["scene", "--out", "run", "--max-gaussians", "5000"]
    assert parse([*words, "--minutes", "2.5"]).minutes == 2.5
    timed = parse([*words, "--minutes", "2.5"], 400)
    assert timed.settings == parse([*words, "--steps", "400"]).settings
    (tmp_path / "config.json").write_text(json.dumps(to_json(preset(steps=9))))
    for other in (["--steps", "9"], ["--config", str(tmp_path / "config.json")]):
        with pytest.raises(ArgumentError, match=f"--minutes: .* cannot be combined with {other[0]}"):
            parse([*words, "--minutes", "1", *other])


def test_help_shows_the_most_used_options(capsys):
    with pytest.raises(SystemExit, match="0"):
        parse(["--help"])
    printed = capsys.readouterr().out
    assert re.findall(r"^  (--[\w.-]+)", printed, re.M) == [*COMMON, "--help-all"]
    assert printed.endswith("\nexamples:\n  tsplat train scene --out run\n" + "".join(printed.splitlines(True)[-2:]))
    for example in re.findall(r"^  tsplat train (.+)$", printed.partition("examples:")[2], re.M):
        parse(example.split())
    words = " ".join(printed.split())
    assert "photographs are downscaled. (default: 1)" in words and "(default: off) --sky INT" in words
    assert "options:" in printed and "strategy." not in printed.partition("options:")[2]


@pytest.mark.parametrize("words", [[], ["--preset", "adaptive"], ["--preset", "fixed"], ["--primitive", "2dgs"]])
def test_help_of_all_options_is_that_of_the_parser(words, capsys):
    name = words[1] if words[:1] == ["--preset"] else "standard"
    base = preset(name, RunConfig.steps)
    expected = _run_parser(for_surfels(base) if "2dgs" in words else base, name).format_help()
    with pytest.raises(SystemExit, match="0"):
        parse([*words, "--help-all"])
    assert capsys.readouterr().out == expected


@pytest.mark.slow
def test_help_of_all_options_starts_without_pytorch():
    code = """
import sys
sys.modules["torch"] = None  # importing it raises
from tsplat.cli.train_options import parse
parse(["--help-all"])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 1 and "--adam-moments" in found.stdout and "--strategy." not in found.stdout


def test_help_names_arguments_and_what_is_required(capsys):
    with pytest.raises(SystemExit, match="0"):
        parse(["--help-all"])
    printed = capsys.readouterr().out
    assert "(default: )" not in printed
    assert "generator" not in printed  # which cannot be set
    assert "--strategy.cap-max" in printed
    assert "A smaller cap_max of the strategy" in " ".join(printed.split())
    assert re.search(r"SCENE.*\(required\)", printed)
    assert re.search(r"--out RUN .*\(required\)", printed)


def test_options_name_models_and_frozen_parts(tmp_path):
    words = ["scene", "--out", "run", "--steps", "300"]
    found = parse([*words, "--init", "a.ply", "--freeze", "positions", "--init", "b", "--freeze", "colors"]).settings
    expected = dict(scene="scene", init=("a.ply", "b"), freeze=("positions", "colors"))
    assert found == dataclasses.replace(preset("refine", 300), **expected)
    assert from_json(json.loads(json.dumps(to_json(found))), "file") == found
    (tmp_path / "config.json").write_text(json.dumps(to_json(found)))
    assert parse(["--config", str(tmp_path / "config.json"), "--out", "run"]).settings == found
    standard = parse([*words, "--init", "a.ply", "--preset", "standard"]).settings
    assert standard == dataclasses.replace(preset("standard", 300), scene="scene", init=("a.ply",))
    all_but_poses = [word for part in FROZEN_NAMES for word in ("--freeze", part)]
    assert parse([*words, "--init", "a.ply", *all_but_poses, "--pose-refinement"]).settings.pose_refinement
    for others, message in (
        (["--freeze", "positions"], "--freeze: positions cannot stay as they are with a strategy"),
        (["--init", "a.ply", "--start-opacity", "0.3"], "--start-opacity: not with --init"),
        (["--init", "a.ply", "--freeze", "means"], "--freeze"),
    ):
        with pytest.raises(ArgumentError, match=message):
            parse([*words, *others])


def test_every_option_is_described():
    for name in PRESETS:
        for action in _run_parser(preset(name), name)._actions:
            assert len(action.help.partition("(default")[0]) > 10, action.option_strings


def test_spellings_of_options(tmp_path):
    settings = parse(["--out", "run", "--no-antialiased", "--means_rate=0.5", "--strategy.verbose", "scene"]).settings
    assert (settings.scene, settings.antialiased, settings.means_rate) == ("scene", False, 0.5)
    assert settings.strategy.verbose
    colored = dataclasses.replace(settings, background=(1.0, 0.0, 0.5), sh_degree=2, init=("a.ply",))
    (tmp_path / "config.json").write_text(json.dumps(to_json(colored)))
    words = ["--config", str(tmp_path / "config.json"), "--out", "run"]
    assert parse(words).settings == colored
    words += ["--background", "None", "--sh-degree", "None", "--init", "b.ply", "--strategy.no-verbose"]
    changes = dict(background=None, sh_degree=None, init=("a.ply", "b.ply"))
    changes["strategy"] = dataclasses.replace(settings.strategy, verbose=False)
    assert parse(words).settings == dataclasses.replace(colored, **changes)


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
    assert parse(["scene", "--out", "run", *words]).view == expected
    assert parse(["--resume", "run", *words]).view == expected
    for command in (["scene", "--out", "run"], ["--resume", "run"]):
        assert parse(command).view is None
        assert parse([*command, "--view"]).view == ViewOptions()
        with pytest.raises(ArgumentError, match="--view-port: only with --view"):
            parse([*command, "--view-port", "9000"])
        with pytest.raises(ArgumentError, match="--view-port: expected an integer from 1 to 65535, found '65536'"):
            parse([*command, "--view", "--view-port", "65536"])


@pytest.mark.parametrize("command", [["scene", "--out", "run"], ["--resume", "run"]])
def test_page_stays_where_a_terminal_started_the_training(command, monkeypatch):
    def stays(*words):
        return parse([*command, *words]).view.stay

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
            parse([*command, *words])


def test_resume_does_not_take_settings():
    options = parse(["--resume", "run", "--stop-after", "5"])
    assert (str(options.resume), options.steps, options.stop_after, options.force) == ("run", None, 5, False)
    assert parse(["--resume", "run", "--steps", "9"]).steps == 9
    message = (
        r"--seed: a run is resumed with its original settings, .* --stop-after N; "
        r".* --config run/config\.json --out NEW_RUN --seed \.\.\."
    )
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
        ("scene --out run --stop-after 0", "--stop-after: expected an integer from 1 to .*, found '0'"),
        ("--resume run --stop-after 0", "--stop-after: expected an integer from 1 to .*, found '0'"),
        ("--resume run --steps -1", "--steps: expected an integer from 1 to .*, found '-1'"),
        ("scene --out run --background nan nan nan", "--background: expected three numbers from 0 to 1"),
        ("scene --out run --strategy.noise-lr nan", "--strategy.noise-lr: expected a finite number, found nan"),
        ("scene --out run --strategy.cap-max -1", "--strategy.cap-max: expected a positive int, found -1"),
        ("scene --out run --preset fixed --strategy.cap-max 3", "the preset fixed has no strategy"),
        ("scene --out run --test-every 1", "--test-every: 1 holds out every view"),
        ("scene --out run --preset best", r"--preset: invalid choice: 'best' \(choose from .*'refine'\);"),
        ("scene --out run --colors red", "unrecognized arguments: --colors red"),
        ("scene --out run --antialised", "did you mean --antialiased instead of --antialised"),
        ("scene --out run --strategy.cap-max many", "--strategy.cap-max: expected an integer, found 'many'"),
        ("scene --out run --strategy.reset-every 3", "unrecognized arguments: --strategy.reset-every 3"),
        ("scene --out run --background 1 2", "--background: expected 3 arguments"),
        ("scene --out run --freeze hands", "--freeze: invalid choice: 'hands'"),
        ("scene other --out run", "unrecognized arguments: other"),
    ],
)
def test_invalid_options_are_rejected(arguments, message):
    with pytest.raises(ArgumentError, match=message) as error:
        parse(arguments.split())
    assert "tsplat train --help" in str(error.value)
