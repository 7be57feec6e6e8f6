"""The simulated production: real code, real edits, real test runs; only the user is simulated.

- ``grammar``: words of prompts and completions
- ``catalogue``, ``modules/``: the code, its bugs and its tests
- ``requests``, ``expectation``: what users ask, and what that lets one expect
- ``patching``, ``sandbox``: edits applied, tests run
- ``users``, ``phrases``: how users react, and what they say
- ``demonstrations``: the teacher of the base policy
- ``simulation``: puts it together
"""
