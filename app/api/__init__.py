"""`palomar serve`: the HTTP API for pipelines and programs. docs/api.md describes it.

It asks the same functions as the command line and gives the same records. Every refusal is one JSON object, and what
could not be answered is never a pass: a verdict comes with status 200 and in no other way.
"""
