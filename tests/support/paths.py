"""Paths of the project, of the data beside it, and of saved test cases."""

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
"""Code that imports no packages when their modules are imported, as PyTorch takes seconds."""
