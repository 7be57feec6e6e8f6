"""What importing the detectors must not cost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HEAVY = ("torch", "transformers", "streamlit", "lifelines")

PROBE = """
import importlib, pkgutil, sys
import palomar.detectors
for info in pkgutil.walk_packages(palomar.detectors.__path__, "palomar.detectors."):
    importlib.import_module(info.name)
print(" ".join(name for name in {heavy!r} if name in sys.modules))
"""


def test_importing_the_detectors_loads_no_heavy_library() -> None:
    import palomar

    source = str(Path(palomar.__file__).parents[1])
    result = subprocess.run(
        [sys.executable, "-c", PROBE.format(heavy=HEAVY)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": source},
    )
    assert result.stdout.strip() == ""
