"""Evaluation suites, one file each; the folder is walked, so that a new file needs no other edit."""
