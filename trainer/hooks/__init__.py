"""Hooks for trainers that are not ours: they poll what the gate decided, and stop, save, or change reward weights.

They run inside a foreign trainer's process, so they need nothing but the standard library and the trainer itself:
`decisions` reads, `weights` reads reward weights, `ranks` lets all processes act alike, `watching` says what to do, and
`trl` and `verl` are thin. docs/hooks.md has the code to paste.
"""
