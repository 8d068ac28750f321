"""The generated page of measured and predicted times."""

import re

import pytest

from benchmarks import predicted_tables, report, time_plots

PREDICTIONS = {
    "small": {
        "tsplat": {("a100", "forward"): 19.24, ("a100", "backward"): 20.0, ("h100", "forward"): 15.0}
        | {("h100", "backward"): 16.5},
        "gsplat 1.5.3": {("a100", "forward"): 1068.0, ("a100", "backward"): 143.0},
        "Faster-GS 16x12": {("a100", "forward"): 1.5, ("a100", "backward"): 1.5}
        | {("h100", "forward + backward"): 2.0},
    }
}


def test_page_is_up_to_date():
    assert report.PAGE.read_text() == report.page(), "run python -m benchmarks.report"


def test_predicted_table_adds_passes_and_leaves_out_what_is_unknown():
    row = report.predicted_table(PREDICTIONS).splitlines()[-1]
    assert row == (
        "| small | 19.2 + 20 = 39.2 (31.5) |  | 1,068 + 143 = 1,211 | 1.5 + 1.5 = 3 (2) |"
    )  # fmt: skip


@pytest.mark.parametrize("gpu", ["a100", "h100"])
def test_both_passes_needs_both(gpu):
    assert report.both_passes({}, gpu) is None
    assert report.both_passes({(gpu, "forward"): 1.0, (gpu, "backward"): 2.0}, gpu) == 3.0


def test_records_have_both_passes_of_tsplat_on_both_gpus():
    predictions = report.by_scene(report.read_records())
    for scene, by_implementation in predictions.items():
        assert set(by_implementation) <= set(report.IMPLEMENTATIONS)
        for gpu in ("a100", "h100"):
            assert report.both_passes(by_implementation[report.TSPLAT], gpu), scene
    assert sum(len(by_implementation) > 1 for by_implementation in predictions.values()) == 10


def _records(scene, implementation, instructions, microseconds):
    counts = {"warp_instructions": instructions, "load_sectors": 30, "store_sectors": 20, "atomic_sectors": 5}
    return [
        {"implementation": implementation, "scene": scene, "gpu": gpu, "pass": phase, "predicted_us": microseconds}
        | counts
        for gpu in ("a100", "h100")
        for phase in ("forward", "backward")
    ]


def test_ratio_table_has_scenes_with_counts_of_both():
    records = _records("both", "tsplat", 40, 7) + _records("both", "gsplat 1.5.3", 100, 10)
    records += _records("alone", "tsplat", 40, 7)
    records += [
        {k: r[k] for k in ("implementation", "scene", "gpu", "pass", "predicted_us")}
        for r in _records("alone", "gsplat 1.5.3", 1, 1)
    ]
    rows = report.ratio_table(records).splitlines()[2:]
    assert rows == ["| both | 0.40 / 0.40 | 1.00 / 1.00 | 1.00 / 1.00 | 0.70 / 0.70 | 0.70 / 0.70 |"]


def test_details_table_has_tails_and_memory_of_tsplat():
    records = [
        {"scene": "a", "gpu": gpu, "pass": phase, "idle_tail": tail, "kept_bytes": 1_500_000}
        for gpu, phase, tail in (
            ("a100", "forward", 0.62), ("a100", "backward", 0.41), ("h100", "forward", 0.1), ("h100", "backward", 0.2)
        )
    ]  # fmt: skip
    other = {"scene": "b", "gpu": "a100", "pass": "forward", "idle_tail": 0.9, "implementation": "gsplat 1.5.3"}
    assert predicted_tables.details_table([*records, other]).splitlines()[2:] == ["| a | 62 / 41 | 10 / 20 | 1.5 |"]


def test_sensitivity_table_adds_passes():
    records = [
        {"scene": "a", "variation": variation, "pass": phase, "predicted_us": us}
        for variation, phase, us in ((None, "forward", 80.0), (None, "backward", 40.0), ("cold", "forward", 90.04))
    ]
    assert predicted_tables.sensitivity_table(records).splitlines()[2:] == ["| nothing | 120 |", "| cold | 90.0 |"]


def test_amd_table_compares_with_the_earlier_state():
    records = [
        {"scene": "a", "target": "gfx942", "pass": phase, "warp_instructions": now}
        | ({} if old is None else {"implementation": old})
        for old, phase, now in (
            (None, "forward", 2_000_000), (None, "backward", 4_000_000),
            ("tsplat 66fcafc", "forward", 1_000_000), ("tsplat 66fcafc", "backward", 9_000_000),
        )
    ]  # fmt: skip
    assert predicted_tables.amd_table(records).splitlines()[2:] == ["| a | 2.0 + 4.0 | 2.00 / 0.44, both 0.60 |"]


def test_plot_shows_scenes_with_several_implementations(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "PREDICTED_PLOT", tmp_path / "plot.svg")
    report.plot_predicted(PREDICTIONS | {"alone": {"tsplat": PREDICTIONS["small"]["tsplat"]}})
    labels = re.findall(r"<!-- (.*?) -->", (tmp_path / "plot.svg").read_text())
    assert "small" in labels and "1,211" in labels
    assert "alone" not in labels


def test_table_has_a_row_per_scene():
    names = (("triton", "forward", 1.234), ("triton", "forward + backward", 1234.5), ("torch", "forward", 100.0))
    records = [
        dict(scene=scene, backend=backend, what=what, n_intersections=4321, p50=time, p20=0, p80=0)
        for scene in ("a", "b")
        for backend, what, time in names
    ]
    rows = report.table(records).splitlines()[2:]
    assert rows == [f"| {scene} | 4,321 |  |  |  | 1.23 / 100 | 1,234 |" for scene in ("a", "b")]


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("100000 at 800x566, 2 px", "100,000 Gaussians,\n800×566"),
        ("kettle at 800x600", "kettle, trained model,\n101,407 Gaussians, 800×600"),
        ("garden-648x420-eval3d", "garden, 138,766 Gaussians,\n648×420, evaluated in 3D"),
        ("dense-tile", "one tile with a list\n100 times the median"),
        ("cloud-2dgs", "2,000 Gaussians,\n96×64, 2D Gaussians"),
        ("small", "small"),
    ],
)
def test_plots_describe_scenes(name, description):
    assert time_plots.describe_scene(name) == description


def test_plots_describe_all_recorded_scenes():
    scenes = {scene for scene, found in report.by_scene(report.read_records()).items() if len(found) > 1}
    scenes |= {record["scene"] for records in report.read_measurements().values() for record in records}
    assert all(time_plots.describe_scene(scene) != scene for scene in scenes)
