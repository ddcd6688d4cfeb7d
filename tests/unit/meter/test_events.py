from legroom.meter._events import AllocatorEvent, in_allocator_order


def event(time_ns, delta_bytes, total_bytes, address=1):
    return AllocatorEvent(time_ns, address, delta_bytes, total_bytes, operation=-1, position=0)


def test_events_of_one_moment_follow_the_count():
    born, freed, again = event(1, 8, 8), event(2, -8, 0), event(2, 8, 8)
    assert in_allocator_order([born, again, freed]) == [born, freed, again]


def test_order_stays_where_counts_do_not_chain():
    events = [event(1, 8, 100), event(2, 8, 50), event(2, 8, 30), event(3, -8, 7)]
    assert in_allocator_order(events) == events
