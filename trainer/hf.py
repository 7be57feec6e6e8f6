"""The one door of the trainer to torch and transformers, so that their process-wide switches are set first.

Nothing here may talk to a network: a model is a path on this machine, or a package that carries one.
"""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import transformers
from accelerate import Accelerator, PartialState

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

__all__ = ["Accelerator", "PartialState", "torch", "transformers"]
