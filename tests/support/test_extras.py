"""Tests of optional dependencies."""

import sys

import pytest

from tsplat.errors import MissingExtraError
from tsplat.support.extras import require


def test_require_accepts_installed_modules():
    require("json", "torch")


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("PIL", "pillow", "train"), ("imageio_ffmpeg", "imageio-ffmpeg", "video"), ("zstandard", "zstandard", "io")],
)
def test_require_names_package_and_extra(monkeypatch, module, package, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"{package} is not installed; run: pip install 'tsplat\[{extra}\]'"):
        require("json", module)


def test_require_names_all_missing_packages(monkeypatch):
    for module in ("PIL", "imageio_ffmpeg", "scipy"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as error:
        require("PIL", "json", "imageio_ffmpeg", "scipy")
    assert str(error.value) == (
        "the package pillow is not installed, the package imageio-ffmpeg is not installed, "
        "the package scipy is not installed; run: pip install 'tsplat[train,video]'"
    )


def test_require_reports_the_error_of_a_broken_module(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match=r"broken_module cannot be imported .*no_such_module"):
        require("broken_module")
