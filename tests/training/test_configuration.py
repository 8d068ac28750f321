"""Configurations: presets, schedules and JSON files."""

import dataclasses
import json

import numpy as np
import pytest

from tsplat import ArgumentError
from tsplat.scene import FileError
from tsplat.strategies import DefaultStrategy, LongAxisStrategy, MCMCStrategy
from tsplat.training import RunConfig, preset, read_config
from tsplat.training.configuration import from_json, to_json
from tsplat.training.presets import PRESETS, scale_schedule


@pytest.mark.parametrize("name", PRESETS)
def test_json_round_trip(name, tmp_path):
    config = dataclasses.replace(preset(name), scene="a", steps=12, background=(0.5, 0.0, 1.0), depth_weight=0.25)
    (tmp_path / "config.json").write_text(json.dumps(to_json(config)))
    assert read_config(tmp_path / "config.json") == config


def test_integers_of_any_type_are_saved():
    values = dict(steps=12, views_per_step=2, downscale=4, keep=3)
    config = RunConfig(**{name: np.int64(value) for name, value in values.items()})
    assert json.dumps(to_json(config)) == json.dumps(to_json(RunConfig(**values)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stepz": 3}, "has no field 'stepz'"),
        ({"steps": "3"}, "steps: expected a value like 7000, found '3'"),
        ({"steps": True}, "steps"),
        ({"steps": 0}, "steps"),
        ({"background": [1, 2]}, "background"),
        ({"background": [0.0, float("nan"), 0.0]}, "background: expected three numbers from 0 to 1"),
        ({"background": [0.0, 0.0, 1.5]}, "background"),
        ({"means_rate": -1.0}, "means_rate"),
        ({"max_elongation": 0.5}, "max_elongation: expected 0, or at least 1, found 0.5"),
        ({"precision": "fp8"}, "precision"),
        ({"test_every": 1}, "test_every: 1 holds out every view"),
        ({"test_every": -1}, "test_every"),
        ({"strategy": {"kind": "best"}}, "strategy.kind: expected one of 'default', 'mcmc', .* found 'best'"),
        ({"strategy": {"kind": "mcmc", "cap": 3}}, "MCMCStrategy has no field 'cap'"),
        ({"strategy": {"kind": "mcmc", "noise_lr": float("inf")}}, "strategy.noise_lr: expected a value like"),
        ({"strategy": 3}, "strategy"),
        ({"scale_weight": 10**400}, "scale_weight: expected a value like"),
        ({"seed": 10**5000}, "seed: expected an integer from 0 to"),
        ({"x" * 5000: 1}, "has no field 'xxx"),
        ([], "JSON object"),
    ],
)
def test_invalid_values_are_rejected(values, message):
    with pytest.raises(ArgumentError, match=f"^file: .*{message}") as caught:
        from_json(values, "file")
    assert len(str(caught.value)) < 250


def test_invalid_files_are_rejected(tmp_path):
    (tmp_path / "a").write_text("{")
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    for name, message in (("a", "not readable"), ("b", "not readable"), ("c", "cannot be read")):
        with pytest.raises(FileError, match=message):
            read_config(tmp_path / name)


def test_fixed_preset_has_the_defaults():
    assert preset("fixed") == RunConfig(max_size=1600)


def test_presets_of_gsplats_strategies_have_the_constants_of_its_trainer():
    rates = ("means_rate", "scales_rate", "opacities_rate", "quats_rate", "sh0_rate", "shN_rate")
    expected = dict(zip(rates, (1.6e-4, 5e-3, 5e-2, 1e-3, 2.5e-3, 2.5e-3 / 20)), antialiased=False)
    mcmc = dict(start_opacity=0.5, start_scale=0.1, opacity_weight=0.01, scale_weight=0.01)
    adaptive = dict(start_opacity=0.1, start_scale=1.0, opacity_weight=0.0, scale_weight=0.0)
    for steps in (300, 30_000):
        assert expected | mcmc == {name: getattr(preset("mcmc", steps), name) for name in expected | mcmc}
        assert expected | adaptive == {name: getattr(preset("adaptive", steps), name) for name in expected | adaptive}


@pytest.mark.parametrize(
    ("steps", "means", "others", "hurry", "weight"),
    [
        (375, 4.308869, 8.944272, 2, 1),
        (1500, 2.714418, 4.472136, 1, 1),
        (3750, 2, 2.828427, 1, 0.632456),
        (30_000, 1, 1, 1, 0.5),
        (60_000, 1, 1, 1, 0.5),
    ],
)
def test_standard_preset_has_higher_rates_in_short_runs(steps, means, others, hurry, weight):
    config, mcmc = preset("standard", steps), preset("mcmc", steps)
    expected = {
        "start_scale": 0.3,
        "antialiased": True,
        "rates_decay": 0.05,
        "gains": True,
        "max_elongation": 3.0,
        "visible_adam": "auto",
        "strategy": scale_schedule(LongAxisStrategy(growth=config.strategy.growth), steps, 96),
        "means_rate": pytest.approx(hurry * means * mcmc.means_rate),
        **{name: pytest.approx(hurry * getattr(mcmc, name)) for name in ("quats_rate", "opacities_rate")},
        **{name: pytest.approx(others * getattr(mcmc, name)) for name in ("scales_rate", "sh0_rate", "shN_rate")},
        "scale_weight": pytest.approx(weight * mcmc.scale_weight),
    }
    fields = {field.name for field in dataclasses.fields(config)}
    assert {name: getattr(config, name) for name in expected} == expected
    assert all(getattr(config, name) == getattr(mcmc, name) for name in fields - set(expected))
    assert preset(steps=steps) == config


@pytest.mark.parametrize(("steps", "growth"), [(300, 1.05**24), (7000, 1.05 ** (245 * 7 / 30)), (30_000, 1.05**245)])
def test_standard_preset_grows_as_mcmc_does(steps, growth):
    strategy = preset("standard", steps).strategy
    assert strategy.growth == pytest.approx(growth)
    assert sum(strategy.refines(step) for step in range(steps)) in (*range(81, 97), 244)


def test_unknown_preset_is_rejected():
    with pytest.raises(ArgumentError, match="preset"):
        preset("best")


def test_configurations_of_runs_with_the_former_preset_default_are_read():
    config = from_json({"strategy": {"kind": "default", "reset_every": 7}}, "config.json")
    assert config.strategy == DefaultStrategy(reset_every=7)


def test_schedule_is_scaled_to_short_runs():
    strategy = preset("adaptive", 1000).strategy
    assert isinstance(strategy, DefaultStrategy)
    schedule = (strategy.refine_start_iter, strategy.refine_stop_iter, strategy.refine_every, strategy.reset_every)
    assert schedule == (17, 500, 21, 100)
    assert preset("adaptive", 400).strategy.reset_every == 100
    assert preset("adaptive", 7000).strategy.reset_every == 700
    assert scale_schedule(DefaultStrategy(reset_every=30), 400).reset_every == 30
    assert (strategy.pause_refine_after_reset, strategy.refine_scale2d_stop_iter) == (0, 0)
    for steps in (30_000, 50_000):
        assert preset("mcmc", steps).strategy == MCMCStrategy()
    assert preset("mcmc", 1000).strategy.noise_injection_stop_iter == -1
    noise_ends = scale_schedule(MCMCStrategy(noise_injection_stop_iter=27_000), 1000).noise_injection_stop_iter
    assert noise_ends == 900
    assert sum(scale_schedule(MCMCStrategy(), 1500).refines(step) for step in range(1500)) == 24
    assert scale_schedule(MCMCStrategy(), 1).refine_every == 1


def test_strategies_that_files_cannot_name_are_errors():
    class Own(MCMCStrategy):
        pass

    with pytest.raises(ArgumentError, match=r"strategy: expected one that files can name, default, mcmc, .* found Own"):
        to_json(RunConfig(strategy=Own()))
