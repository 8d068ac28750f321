"""Paths of the project, its data, and saved test cases."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
MODELS = DATA / "models"
SCENES = DATA / "scenes"
CASES = ROOT / "tests" / "cases"

WITHOUT_TORCH = f"""
import sys, types
for name in ("tsplat", "tsplat.scene", "tsplat.scene.capture"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = ["/".join(({str(ROOT)!r}, *name.split(".")))]
"""
"""Code that allows importing modules without their packages, which import PyTorch and take seconds."""
