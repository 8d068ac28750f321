"""gsplat's kernels on the emulator: they agree with tsplat's where gsplat's wheel and nvcc are at hand.

Nothing is downloaded here. The wheel is used if TSPLAT_GSPLAT_WHEEL names it, or if `python -m benchmarks.dynamic_cost
--peer gsplat` has put it into the cache before.
"""

import dataclasses

import pytest
import torch

from benchmarks.cases import dense_tile
from benchmarks.gpu_timing import gsplat_footprints, gsplat_kernels, peer, scenes
from tests.emulator.targets import needs_emulator

pytest.importorskip("triton", reason="needs Triton")


@pytest.fixture(scope="module")
def wheel():
    try:
        gsplat_kernels.find_nvcc()
        return gsplat_kernels.find_wheel()
    except gsplat_kernels.UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def runs(wheel):
    """tsplat's run on a tiny scene, gsplat's, and what gsplat computed."""
    run = scenes.execute(dense_tile(sparse=60, dense=10, width=64, height=48), traced=False)
    return run, *gsplat_kernels.execute(run.composited, wheel=wheel, traced=True)


@needs_emulator
@pytest.mark.long
def test_images_and_gradients_agree_with_those_of_tsplat(runs):
    run, _, result = runs
    found = peer.differences(run.composited.results(), result)
    assert set(found) == {"colors", "alphas", "v_means2d", "v_conics", "v_opacities", "v_features"}
    assert max(found.values()) < 1e-5, found


@needs_emulator
@pytest.mark.long
@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("with_eval3d", {"v_means", "v_quats", "v_scales"}),
        ("surfels", {"normals", "distortions", "v_normals", "v_means2d", "v_transforms"}),
    ],
)
def test_other_footprints_agree_with_those_of_tsplat(wheel, option, names):
    """Evaluation in 3D, and 2D Gaussians with normals and distortion."""
    scene = dense_tile(sparse=60, dense=10, width=64, height=48) | {option: True}
    run = scenes.execute(scene, traced=False)
    peer_run, result = gsplat_kernels.execute(run.composited, wheel=wheel, traced=False)
    found = peer.differences(run.composited.results(), result)
    assert set(found) == names | {"colors", "alphas", "v_opacities", "v_features"}
    assert max(found.values()) < 1e-4, found
    assert [e.phase for e in peer_run.launches] == ["forward", "backward"]


def test_single_values_of_images_may_be_at_the_threshold_of_alpha():
    image, other = torch.ones(100_000), torch.full((100_000,), 1.0 + 1e-6)
    other[7] = 1.003
    assert peer.differences({"colors": other}, {"colors": image})["colors"] == pytest.approx(1e-6, rel=0.1)
    assert peer.differences({"v_means2d": other}, {"v_means2d": image})["v_means2d"] == pytest.approx(3e-3, rel=1e-3)
    other[8] = 1.002
    assert peer.differences({"colors": other}, {"colors": image})["colors"] == pytest.approx(2e-3, rel=1e-3)
    other[7] = 1.005
    assert peer.differences({"colors": other}, {"colors": image})["colors"] == pytest.approx(5e-3, rel=1e-3)


def test_kernels_along_rays_are_compiled_for_pinhole_cameras():
    parameters = "".join(f"    {parameter},\n" for parameter in gsplat_footprints.CONSTANTS)
    source = f"__global__ void kernel(\n{parameters}    int32_t *last_ids\n) {{\n    work();\n}}\n"
    edited = gsplat_footprints.FOOTPRINTS["ray"].edit(source)
    assert "const CameraModelType,\n" in edited and "camera_model_type = CameraModelType::PINHOLE" in edited
    assert edited.index("constexpr") < edited.index("work()")


@needs_emulator
@pytest.mark.slow
def test_both_kernels_are_executed_and_traced(runs):
    _, other, _ = runs
    assert [(e.kernel, e.phase) for e in other.launches] == [
        ("rasterize_to_pixels_3dgs_fwd_kernel", "forward"),
        ("rasterize_to_pixels_3dgs_bwd_kernel", "backward"),
    ]
    assert all(e.trace is not None and e.trace.warps == 8 and e.trace.programs == 12 for e in other.launches)
    assert [e.counts["store sectors"] > 0 for e in other.launches] == [True, False]
    assert [e.counts["atomic sectors"] > 0 for e in other.launches] == [False, True]


@needs_emulator
@pytest.mark.slow
def test_other_images_are_refused(runs, wheel):
    run, _, result = runs
    colors = run.composited.colors + 0.01 * result["colors"].max()
    changed = dataclasses.replace(run, composited=dataclasses.replace(run.composited, colors=colors))
    with pytest.raises(peer.DifferentError, match="colors"):
        peer.execute(changed, wheel, traced=False)


def test_lists_have_every_tile_of_the_bounding_rectangle_front_to_back():
    generator = torch.Generator().manual_seed(0)
    width, height, n = 70, 40, 80
    means2d = 90 * torch.rand(n, 2, generator=generator) - 10
    radii = torch.randint(0, 20, (n, 2), generator=generator, dtype=torch.int32)
    depths = torch.randint(1, 9, (n,), generator=generator).float()
    starts, ids = gsplat_kernels.tile_lists(means2d, radii, depths, width, height)

    expected = []
    for y in range(3):
        for x in range(5):
            low, high = 16 * torch.tensor([x, y]), 16 * torch.tensor([x + 1, y + 1])
            overlaps = ((means2d - radii < high) & (means2d + radii > low) & (radii > 0)).all(-1)
            rows = overlaps.nonzero().flatten().tolist()
            expected.append(sorted(rows, key=lambda row: (depths[row], row)))
    assert starts.diff().tolist() == [len(rows) for rows in expected]
    assert ids.tolist() == [row for rows in expected for row in rows]
    assert max(starts.diff()) > 10


def test_launcher_and_headers_of_pytorch_are_left_out():
    text = (
        "#include <ATen/core/Tensor.h>\n#include <c10/cuda/CUDAStream.h>\n#include <cooperative_groups.h>\n"
        '#include "Common.h"\n#include "Rasterization.h"\nnamespace gsplat {\n'
        "template <uint32_t CDIM, typename scalar_t>\n__global__ void kernel() {}\n"
        "template <uint32_t CDIM>\nvoid launch_kernel(at::Tensor t) {}\n}\n"
    )
    source = gsplat_kernels.kernel_source(text, "kernel", 4)
    assert "ATen" not in source and "c10" not in source and "Rasterization.h" not in source and "launch_" not in source
    assert "<cooperative_groups.h>" in source and '"Common.h"' in source
    assert source.endswith("auto *instance = &kernel<4, float>;\n}\n")


@pytest.mark.parametrize("content", [None, b"another wheel"])
def test_missing_or_other_wheel_is_refused(content, tmp_path, monkeypatch):
    path = tmp_path / "gsplat.whl"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(gsplat_kernels.WHEEL_VARIABLE, str(path))
    with pytest.raises(gsplat_kernels.UnavailableError, match=r"gsplat\.whl"):
        gsplat_kernels.find_wheel(download=True)


def test_commands_say_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(gsplat_kernels.WHEEL_VARIABLE, str(tmp_path / "none.whl"))
    with pytest.raises(SystemExit) as exit:
        peer.prepare("gsplat")
    assert exit.value.code == peer.UNAVAILABLE
    assert "none.whl" in capsys.readouterr().out


def test_kernels_need_nvcc(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(gsplat_kernels.UnavailableError, match="nvcc is not in PATH"):
        gsplat_kernels.find_nvcc()
