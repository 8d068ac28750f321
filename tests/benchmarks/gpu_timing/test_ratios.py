"""Ratios of counts and predicted times."""

from benchmarks.gpu_timing.ratios import line, ratios


def test_ratios_of_counts_and_times():
    ours = {"warp_instructions": 10, "load_sectors": 30, "store_sectors": 4, "atomic_sectors": 0}
    theirs = {"warp_instructions": 40, "load_sectors": 20, "store_sectors": 6, "atomic_sectors": 2}
    counts = {"ratio_instructions": 0.25, "ratio_load_sectors": 1.5, "ratio_store_sectors": 0.5}
    assert ratios(ours, theirs) == counts
    found = ratios(ours | {"predicted_us": 3.0}, theirs | {"predicted_us": 5.0})
    assert found == counts | {"ratio_predicted": 0.6}
    assert line(found | {"peer": "gsplat 1.5.3"}).startswith(
        "tsplat / gsplat 1.5.3: warp instructions 0.250, sectors loaded 1.500,"
    )
