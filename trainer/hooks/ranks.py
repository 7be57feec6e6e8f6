"""Lets all processes of a distributed training act alike: rank 0 looks, the others are told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def agreed(look: Callable[[], T]) -> T:
    """What ``look`` gives on rank 0, on every rank; called by all ranks at the same place of the loop.

    Only rank 0 calls ``look``, so the file need lie on its node only. What it raises is raised on every rank, so that
    none waits for ever. Without ``torch.distributed`` it is just called.
    """
    distributed: Any = None
    if "torch" in sys.modules:
        from torch import distributed
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return look()
    box: list[Any] = [None, None]
    failed: Exception | None = None
    if distributed.get_rank() == 0:
        try:
            box[0] = look()
        except Exception as exc:
            box[1], failed = f"{type(exc).__name__}: {exc}", exc
    distributed.broadcast_object_list(box, src=0)
    if box[1] is not None:
        raise RuntimeError(f"rank 0 could not look: {box[1]}") from failed
    found: T = box[0]
    return found
