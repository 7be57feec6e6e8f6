"""What is learnt and what ships: the policy, its update, evaluation, the registry, and the cycle."""
