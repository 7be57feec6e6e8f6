"""Delivery slots that are still free."""


def delivery_slots(opening, closing, booked, length=60, capacity=2):
    """Free slots as (start, places left), in minutes of the day; `booked` are starts of bookings."""
    starts = []
    start = opening
    while start + length <= closing:
        starts.append(start)
        start += length
    taken = {}
    for moment in booked:
        slot = opening + (moment - opening) // length * length
        taken[slot] = taken.get(slot, 0) + 1
    free = [(slot, capacity - taken.get(slot, 0)) for slot in starts]
    open_slots = [pair for pair in free if pair[1] > 0]
    full = len(starts) - len(open_slots)
    return {"slots": open_slots, "full": full}


DOMAIN = "logistics"
CASES = [
    (480, 720, [480, 490, 600]),
    (540, 660, [], 45),
    (540, 675, [541, 600, 600, 630, 700], 45, 1),
    (600, 600, []),
    (0, 180, [60, 61, 119, 120], 60, 3),
    (480, 600, [479, 595], 30, 2),
]
SITES = [
    (
        "off-by-one",
        "start + length <= closing",
        "start < closing",
        "start + length < closing",
        "start + 2 * length <= closing",
    ),
    (
        "wrong-operator",
        "(moment - opening) // length * length",
        "(moment - opening + length // 2) // length * length",
        "(moment - opening) % length",
        "(moment - opening) // length",
    ),
    ("wrong-operator", "pair[1] > 0", "pair[1] == capacity", "pair[1] >= 0", "pair[1] < 1"),
]
