"""Probes: cheap scripted policies that play a reward in the simulated production, before any policy is trained on it.

- ``probe``: what a probe is, the registry, and the agent that acts one out
- ``library``: the probes that come with Palomar
- ``cases``: a probe made of an incident's logged interactions
- ``rollout``: the same requests, served by the honest probe and by each other one
- ``judgement``: what a spec pays each of them over the honest one, and what users get
"""
