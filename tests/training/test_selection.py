"""Training on the Gaussians that a view may show: the same bits as with all of them."""

import dataclasses
import pickle

import pytest
import torch

from tests.support.slow import slow_after
from tests.support.training_scenes import APART, PLACES, make_places
from tsplat.runtime import spare_rows
from tsplat.scene import look_at
from tsplat.strategies import LongAxisStrategy, MCMCStrategy
from tsplat.training import Config, Trainer, evaluate, evaluation, selection, view_gradients, view_passes
from tsplat.training.view_gradients import ViewGradients

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("frozen_objects")]

REFINED = dict(cap_max=340, refine_start_iter=4, refine_every=6, refine_stop_iter=20)
CONFIG = Config(
    steps=24, strategy=LongAxisStrategy(**REFINED), backend="triton", gains=True, opacity_weight=0.01,
    scale_weight=0.01, visible_adam="on", random_background=True, sh_interval=5,
)  # fmt: skip
CONFIGS = {
    "visible": CONFIG,
    "all updated": dataclasses.replace(CONFIG, strategy=MCMCStrategy(**REFINED), visible_adam="off"),
    "moments in bf16": dataclasses.replace(CONFIG, adam_moments="bf16"),
    "all updated, in bf16": dataclasses.replace(
        CONFIG, strategy=MCMCStrategy(**REFINED), visible_adam="off", adam_moments="bf16"
    ),
    "all updated, no weights": dataclasses.replace(
        CONFIG, strategy=None, visible_adam="off", opacity_weight=0.0, scale_weight=0.0, freeze=("colors",)
    ),
    "needles": dataclasses.replace(CONFIG, strategy=None, max_elongation=2.0, antialiased=True, gains=False),
}


@pytest.fixture(autouse=True)
def small_selections(monkeypatch):
    """Selects few rows, too, and returns the numbers of rows of the views that were rendered; None for all."""
    found, differentiate = [], ViewGradients._differentiate

    def noted(self, kind, inputs, capacities):
        found.append(kind.n_rows)
        return differentiate(self, kind, inputs, capacities)

    monkeypatch.setattr(selection, "ROWS_MIN", 8)
    monkeypatch.setattr(selection, "ROW_GRADIENT_VALUES_MIN", 9)
    monkeypatch.setattr(ViewGradients, "_differentiate", noted)
    return found


@pytest.fixture
def places():
    return make_places()


def states(trainer, steps):
    """The state after each step."""
    found = []
    for _ in range(steps):
        progress = trainer.advance()
        tensors, figures = trainer.state()
        found.append(({name: tensor.clone() for name, tensor in tensors.items()}, figures, progress.loss))
    return found


def assert_same(found, expected):
    for (tensors, figures, loss), (tensors_expected, figures_expected, loss_expected) in zip(
        found, expected, strict=True
    ):
        assert figures == figures_expected and tensors.keys() == tensors_expected.keys()
        assert torch.equal(loss, loss_expected)
        different = [name for name in tensors if not torch.equal(tensors[name], tensors_expected[name])]
        assert not different, f"after {figures['step']} steps"


def with_all(gaussians, views, config):
    """The states of a run that renders all Gaussians."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view_gradients, "select", lambda *arguments: None)
        return states(Trainer(gaussians, views, config), config.steps)


@pytest.mark.parametrize("name", slow_after(2, CONFIGS))
def test_training_on_what_views_show_gives_the_same_bits(places, small_selections, name):
    config = CONFIGS[name]
    expected = with_all(*places, config)
    assert set(small_selections) == {None}
    small_selections.clear()
    assert_same(states(Trainer(*places, config), config.steps), expected)
    assert None not in small_selections and max(small_selections) < len(places[0]) / 2


@pytest.mark.parametrize("name", slow_after(2, CONFIGS))
def test_steps_of_several_views_give_the_same_bits_as_calls(places, small_selections, monkeypatch, name):
    config = dataclasses.replace(CONFIGS[name], views_per_step=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ViewGradients, "_no_passes_reason", lambda self: "here")
        expected = states(Trainer(*places, config), config.steps)
    assert not small_selections
    kept, store = [], ViewGradients._store_gradients

    def noted(self, rows, gradients, n):
        kept.append((rows, gradients["means"].shape))
        store(self, rows, gradients, n)

    monkeypatch.setattr(ViewGradients, "_store_gradients", noted)
    assert_same(states(Trainer(*places, config), config.steps), expected)
    assert None not in small_selections and len(kept) == config.steps
    assert all(shape == (len(rows), 3) and len(rows) < 0.7 * len(places[0]) for rows, shape in kept)


def test_replays_of_several_views_share_memory(places, monkeypatch):
    monkeypatch.setattr(view_passes, "SELECTIONS_MAX", 1e9)  # these images take more memory than the Gaussians
    gaussians, views = places
    larger = dataclasses.replace(
        views[0].camera, viewmat=look_at((APART / 2, -1.0, -40.0), (APART / 2, 0.0, 0.0)), name="two places"
    )
    config = dataclasses.replace(CONFIG, strategy=None, gains=False, sh_interval=50, views_per_step=2)
    trainer = Trainer(gaussians, [views[0], views[0].replaced(camera=larger)], config)
    states(trainer, 6)
    replays = [*trainer._view_gradients._passes._replays.values()]
    assert len(replays) == 2 and len({id(replay.scratch) for replay in replays}) == 1
    assert all(replay.n_bytes < len(replay.scratch) / 4 for replay in replays)


def test_threads_give_the_same_bits(places):
    expected = with_all(*places, CONFIG)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert_same(states(Trainer(*places, CONFIG), CONFIG.steps), expected)
    finally:
        torch.set_num_threads(threads)


def test_resumed_runs_give_the_same_bits(places):
    expected = with_all(*places, CONFIG)
    trainer = Trainer(*places, CONFIG)
    states(trainer, 9)
    resumed = Trainer(*places, CONFIG)
    resumed.restore(*trainer.state())
    assert_same(states(resumed, CONFIG.steps - 9), expected[9:])


def test_updates_reach_only_what_views_show(places):
    """A selection that misses what a view shows would leave it as it is."""
    gaussians, views = places
    trainer = Trainer(gaussians, views, dataclasses.replace(CONFIG, strategy=None, opacity_weight=0.0))
    before = trainer.gaussians.sh0.clone()
    trainer.advance()
    changed = (trainer.gaussians.sh0 != before).flatten(1).any(1)
    n_of_places = changed.view(-1, PLACES).sum(0)
    assert n_of_places.max() > 30 and n_of_places.count_nonzero() == 1


def test_views_of_most_of_the_scene_select_nothing(places, small_selections):
    gaussians, views = places
    one_place = gaussians.select(slice(0, None, PLACES))
    trainer = Trainer(one_place, views[:2], CONFIG)
    states(trainer, 4)
    assert set(small_selections) == {None} and not trainer._view_gradients._selects_rows


@pytest.mark.parametrize(
    "changes",
    [dict(clip_gradients=1e-3), dict(clip_gradients=1e-3, views_per_step=2), dict(pose_refinement=True)],
    ids=str,
)
def test_settings_without_selection(places, small_selections, changes):
    trainer = Trainer(*places, dataclasses.replace(CONFIG, **changes))
    states(trainer, 3)
    assert not [n_rows for n_rows in small_selections if n_rows]


def test_selections_of_several_sizes_take_no_more_memory_than_all_rows(places, monkeypatch):
    gaussians, views = places
    larger = dataclasses.replace(
        views[0].camera, viewmat=look_at((APART / 2, -1.0, -40.0), (APART / 2, 0.0, 0.0)), name="two places"
    )
    kept, found = {}, []
    default = view_passes.SELECTIONS_MAX
    for bound in (1e9, 0.0, default):
        monkeypatch.setattr(view_passes, "SELECTIONS_MAX", bound)
        config = dataclasses.replace(CONFIG, strategy=None, gains=False, sh_interval=50)
        trainer = Trainer(gaussians, [views[0], views[0].replaced(camera=larger)], config)
        found.append(states(trainer, 14)[-1:])
        assert_same(found[-1], found[0])
        kept[bound] = [replay.n_bytes for replay in trainer._view_gradients._passes._replays.values()]
    assert len(kept[1e9]) == 2 and len(kept[0.0]) == 1
    state = sum(tensor.nbytes for tensor in trainer._parameters.params.values())
    assert len(kept[default]) == 1 or sum(kept[default]) <= default * state


def test_evaluation_with_what_views_show_gives_the_same_images(places, monkeypatch):
    gaussians, views = places
    numbers, render = [], evaluation.render_views

    def noted(gaussians, *arguments, **options):
        numbers.append(len(gaussians))
        return render(gaussians, *arguments, **options)

    monkeypatch.setattr(evaluation, "render_views", noted)
    found = evaluate(gaussians, views, backend="triton", warm_up=True)
    assert max(numbers) < len(gaussians) / 2
    numbers.clear()
    monkeypatch.setattr(evaluation, "shown_by", lambda gaussians, _: gaussians)
    expected = evaluate(gaussians, views, backend="triton")
    assert set(numbers) == {len(gaussians)}
    assert all(torch.equal(one.image, other.image) for one, other in zip(found, expected, strict=True))
    assert found.psnr == expected.psnr


def test_refinements_in_place_give_the_same_bits(places, monkeypatch):
    expected = states(Trainer(*places, CONFIG), CONFIG.steps)
    monkeypatch.setattr(spare_rows, "_takes_only_addresses", lambda rows: True)
    trainer = Trainer(*places, CONFIG)
    address = trainer.gaussians.shN.data_ptr()
    assert_same(states(trainer, CONFIG.steps), expected)
    assert trainer.gaussians.shN.data_ptr() == address and len(trainer.gaussians) > len(places[0])
    copied = pickle.loads(pickle.dumps(trainer))
    assert copied.gaussians.shN.untyped_storage().nbytes() == copied.gaussians.shN.nbytes
    assert all(torch.equal(one, other) for one, other in zip(copied.state()[0].values(), trainer.state()[0].values()))
