"""`install()` and ``python -m tsplat.compat.gsplat``."""

import re

import pytest

from tsplat.scene import read_ply

SCRIPT = """
import sys
import gsplat
from gsplat.rendering import rasterization
from gsplat.strategy.ops import relocate
from gsplat.cuda._torch_impl import _eval_sh_bases_fast
import helper
if __name__ == "__main__":
    print(gsplat.__version__, rasterization.__module__, relocate.__name__, helper.NAME, sys.argv)
"""

RUN = "import runpy; runpy.run_module('tsplat.compat.gsplat', run_name='__main__')"
"""As ``python -m tsplat.compat.gsplat``."""

TRAINING = """
import sys
import torch
from gsplat import export_splats
from gsplat.rendering import rasterization
from gsplat.strategy import DefaultStrategy

torch.manual_seed(0)
n = 60
params = torch.nn.ParameterDict(
    dict(
        means=torch.randn(n, 3) * 0.5 + torch.tensor([0.0, 0.0, 3.0]),
        scales=torch.full((n, 3), -2.0),
        quats=torch.randn(n, 4),
        opacities=torch.zeros(n),
        sh0=torch.randn(n, 1, 3),
        shN=torch.zeros(n, 3, 3),
    )
)
optimizers = {name: torch.optim.Adam([p], lr=0.02) for name, p in params.items()}
strategy = DefaultStrategy(refine_start_iter=1, refine_every=4, grow_grad2d=1e-7, prune_opa=0.3)
strategy.check_sanity(params, optimizers)
state = strategy.initialize_state(scene_scale=1.0)
K = torch.tensor([[[30.0, 0, 16], [0, 30.0, 12], [0, 0, 1]]])
target = torch.rand(1, 24, 32, 3)
losses = []
for step in range(10):
    colors, alphas, info = rasterization(
        params["means"], params["quats"], params["scales"].exp(), params["opacities"].sigmoid(),
        torch.cat([params["sh0"], params["shN"]], 1), torch.eye(4)[None], K, 32, 24, sh_degree=1, packed=False,
    )
    strategy.step_pre_backward(params, optimizers, state, step, info)
    loss = (colors - target).square().mean()
    loss.backward()
    for optimizer in optimizers.values():
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    strategy.step_post_backward(params=params, optimizers=optimizers, state=state, step=step, info=info, packed=False)
    losses.append(float(loss))
assert losses[-1] < losses[0], losses
assert len(params["means"]) != n
splats = [params[name] for name in ("means", "scales", "quats", "opacities", "sh0", "shN")]
export_splats(*splats, save_to=sys.argv[1])
print(len(params["means"]))
"""


@pytest.mark.slow
def test_modules_are_imported_under_the_name_gsplat(forks):
    result = forks.run("""
from tsplat.compat.gsplat import install
install()
install()
import gsplat, gsplat.cuda._wrapper, gsplat.strategy.default
from gsplat import rasterization
from gsplat.strategy import DefaultStrategy
from gsplat.utils import depth_to_normal
from gsplat.losses import l1_loss
from gsplat.losses_fused import FusedGaussianLosses
import tsplat, tsplat.compat.gsplat, tsplat.strategies
assert gsplat is tsplat.compat.gsplat
assert rasterization is tsplat.rasterization
assert gsplat.strategy.default.DefaultStrategy is DefaultStrategy is tsplat.strategies.DefaultStrategy
assert gsplat.cuda._wrapper is tsplat.compat.gsplat.cuda._wrapper
assert gsplat.l1_loss is l1_loss
assert gsplat.FusedGaussianLosses is FusedGaussianLosses
assert gsplat.__version__ == "1.5.3"
try:
    import gsplat.nothing
except ModuleNotFoundError:
    print("no gsplat.nothing")
""")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout == "no gsplat.nothing\n"


@pytest.mark.slow
@pytest.mark.parametrize("installed", [True, False])
def test_fused_ssim_is_there_where_it_is_not_installed(tmp_path, forks, installed):
    if installed:
        (tmp_path / "fused_ssim.py").write_text("fused_ssim = 'their own'")
    result = forks.run(
        """
import sys
sys.path.insert(0, sys.argv[1])
from tsplat.compat.gsplat import install
install()
install()
from fused_ssim import fused_ssim
if fused_ssim != "their own":
    import torch
    from gsplat.losses import ssim_loss
    one, two = torch.rand(1, 3, 16, 17, requires_grad=True), torch.rand(1, 3, 16, 17)
    value = fused_ssim(one, two, padding="valid")
    value.backward()
    assert one.grad.any()
    assert abs(float(value + ssim_loss(one, two)) - 1) < 1e-6
    fused_ssim = "tsplat's"
print(fused_ssim)
""",
        tmp_path,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.strip() == ("their own" if installed else "tsplat's")


def test_importing_the_package_installs_nothing(forks):
    result = forks.run("import sys, tsplat.compat.gsplat; assert 'gsplat' not in sys.modules")
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("imported", ["gsplat", "gsplat.utils"])
def test_install_raises_after_gsplat_was_imported(forks, imported):
    result = forks.run(
        """
import sys, types
name = sys.argv[1]
sys.modules[name] = types.ModuleType(name)
before = dict(sys.modules)
from tsplat.compat.gsplat import AlreadyImportedError, install
try:
    install()
except AlreadyImportedError as error:
    assert isinstance(error, RuntimeError)
    print(error)
names = [name for name in sys.modules if name.split(".")[0] == "gsplat"]
assert names == [name] and sys.modules[name] is before[name], names
""",
        imported,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert re.match(r"gsplat: 1 of its modules are imported already; call .*install\(\) before", result.stdout)


def test_runner_runs_a_script_with_its_arguments(tmp_path, forks):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("NAME = 'helper'")
    arguments = [str(tmp_path / "script.py"), "--steps", "3"]
    result = forks.run(RUN, *arguments)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout == f"1.5.3 tsplat.rasterization relocate helper {arguments}\n"


@pytest.mark.parametrize("module", ["package", "package.main"])
def test_runner_runs_a_module_with_its_arguments(tmp_path, forks, module):
    folder = tmp_path / "package"
    folder.mkdir()
    for name in ("__main__.py", "main.py"):
        (folder / name).write_text(SCRIPT + "    assert sys.modules['__main__'].gsplat is gsplat\n")
    (tmp_path / "helper.py").write_text("NAME = 'helper'")
    result = forks.run(f"import tsplat; {RUN}", "-m", module, "--steps", "3", cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    path = folder / ("__main__.py" if module == "package" else "main.py")
    assert result.stdout == f"1.5.3 tsplat.rasterization relocate helper {[str(path), '--steps', '3']}\n"


@pytest.mark.slow
def test_training_script_for_gsplat_runs_unchanged(tmp_path, forks):
    (tmp_path / "train.py").write_text(TRAINING)
    result = forks.run(RUN, tmp_path / "train.py", tmp_path / "model.ply")
    assert result.returncode == 0, result.stderr[-3000:]
    assert len(read_ply(tmp_path / "model.ply")) == int(result.stdout)
