"""Detectors, one file each; see `palomar.detectors.detector`."""
