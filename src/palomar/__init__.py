"""Palomar: an observatory for reward engineers who train coding agents by real-time RL.

The five packages below import one way only: ``data <- reward <- detectors <- trainer <- app``.
"""

__version__ = "0.1.0"
