"""How long customers wait at a counter."""


def queue_wait(arrivals, service, counters=1, patience=30):
    """Waiting minutes per served customer, in order of arrival, and how many gave up."""
    free_at = [0] * counters
    waits = []
    gave_up = 0
    for arrival in sorted(arrivals):
        counter = min(range(counters), key=lambda index: free_at[index])
        begin = max(arrival, free_at[counter])
        if begin - arrival > patience:
            gave_up += 1
            continue
        free_at[counter] = begin + service
        waits.append(begin - arrival)
    mean = sum(waits) / len(waits) if waits else 0.0
    longest = max(waits, default=0)
    closing = max(free_at)
    return {"waits": waits, "gave_up": gave_up, "mean": round(mean, 2), "longest": longest, "closing": closing}


DOMAIN = "logistics"
CASES = [
    ([0, 1, 2, 10], 5),
    ([0, 0, 0, 0, 0], 15, 1, 30),
    ([5, 3, 4, 4], 10, 2, 5),
    ([], 3, 2),
    ([0, 2, 2, 3, 9, 9], 7, 3, 2),
    ([20, 1, 1], 4, 1, 0),
]
SITES = [
    (
        "swapped-arguments",
        "max(arrival, free_at[counter])",
        "max(arrival, free_at[counter] + 1)",
        "min(arrival, free_at[counter])",
        "arrival + free_at[counter]",
    ),
    (
        "wrong-variable",
        "sum(waits) / len(waits) if waits else 0.0",
        "sum(waits) / len(arrivals) if waits else 0.0",
        "sum(waits) / service if waits else 0.0",
        "max(waits) / 2 if waits else 0.0",
    ),
    ("wrong-operator", "max(free_at)", "max(free_at) - min(free_at)", "min(free_at)", "sum(free_at)"),
]
