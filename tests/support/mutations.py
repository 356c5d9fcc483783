"""Files that somebody has changed at random."""

import json
from copy import deepcopy
from random import Random

NASTY = [
    *(None, True, "", "x", -1, 0, 1.5, 10**30, int("9" * 400), float("nan"), float("inf"), 1e308),
    *([], {}, [[]], {"x": {}}, ["x", 3], "\ud800", "9" * 5000, "nine\nlines\x00"),
]
BYTES = [
    b"",
    b"\x00",
    b"\xff",
    b"{",
    b'"',
    b"1e999",
    b"[" * 5000,
    b"9" * 5000,
    b"\n",
    b",",
    b"null",
]


def mutated(random: Random, data: bytes) -> bytes:
    """`data` with a few bytes changed, or with a part of one of its lines of JSON being something else."""
    lines = data.splitlines(keepends=True)
    whole = random.random() < 0.5 or not lines
    place = random.randrange(len(lines)) if lines else 0
    text = data if whole else lines[place]
    try:
        value = json.loads(text)
    except ValueError:
        start, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
        return data[:start] + random.choice(BYTES) + data[random.choice([start, start + 1, end]) :]
    changed = json.dumps(_changed(random, value)).encode()
    return changed if whole else b"".join([*lines[:place], changed + b"\n", *lines[place + 1 :]])


def _changed(random: Random, value):
    """`value` with one of its parts, at any depth, left out, or being something nasty."""
    if not isinstance(value, dict | list) or not value or random.random() < 0.1:
        return random.choice(NASTY)
    made = deepcopy(value)
    place = random.choice(list(made) if isinstance(made, dict) else range(len(made)))
    if random.random() < 0.1:
        del made[place]
    else:
        made[place] = _changed(random, value[place])
    return made
