"""Paths of the project, of the data beside it, and of saved test cases."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
MODELS = DATA / "models"
SCENES = DATA / "scenes"
CASES = ROOT / "tests" / "cases"
