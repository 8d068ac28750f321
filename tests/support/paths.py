"""Where things are: the project and the shared data beside it."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
MODELS = DATA / "models"
SCENES = DATA / "scenes"
CASES = ROOT / "tests" / "cases"
