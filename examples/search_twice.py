"""A function: search with the whole query, then with the longest half of its words, and fuse the two lists by rank.

Try it, without a key:

    sextant run --program examples/search_twice.py:answer --task congress -P k=200
"""


async def answer(query, search, k=100):
    words = sorted(set(query.split()), key=len, reverse=True)
    lists = [await search(query, k), await search(" ".join(words[: len(words) // 2]), k)]
    points = {}
    for found in lists:
        for rank, hit in enumerate(found, start=1):
            points[hit.doc_id] = points.get(hit.doc_id, 0.0) + 1 / (60 + rank)
    return sorted(points, key=points.get, reverse=True)
