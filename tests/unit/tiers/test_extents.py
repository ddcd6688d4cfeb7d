import random

from legroom.tiers._extents import ALIGNMENT, Extents, rounded_down, rounded_up


def test_lengths_are_rounded_to_blocks():
    assert [rounded_up(n) for n in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]
    assert [rounded_down(n) for n in (0, 1, 4096, 4097)] == [0, 0, 4096, 4096]


def test_extents_agree_with_a_map_of_blocks():
    dice = random.Random(0)
    for _ in range(50):
        extents, blocks, held = Extents(), [False] * 400, []
        for _ in range(60):
            if held and dice.random() < 0.45:
                offset, count = held.pop(dice.randrange(len(held)))
                extents.give_back(offset * ALIGNMENT, count * ALIGNMENT)
                blocks[offset : offset + count] = [False] * count
            else:
                count = dice.randint(1, 9)
                offset = extents.find(count * ALIGNMENT) // ALIGNMENT
                lowest = next(
                    start for start in range(400) if not any(blocks[start : start + count])
                )
                assert offset == lowest
                extents.take(offset * ALIGNMENT, count * ALIGNMENT)
                blocks[offset : offset + count] = [True] * count
                held.append((offset, count))
            assert extents.num_bytes == sum(blocks) * ALIGNMENT


def test_giving_back_twice_does_nothing():
    extents = Extents()
    extents.take(0, ALIGNMENT)
    extents.take(ALIGNMENT, ALIGNMENT)
    extents.give_back(0, ALIGNMENT)
    extents.give_back(0, ALIGNMENT)
    assert extents.num_bytes == ALIGNMENT
    assert extents.end == 2 * ALIGNMENT
