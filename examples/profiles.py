"""Profiles: set, get, list, delete, and paging through many keys.

python -m examples.profiles [TARGET]
"""

import kvorum
from examples.stage import play


async def example(kv: kvorum.Kv) -> str:
    await kv.delete_prefix(("singer",))
    await kv.set(("singer", "nina"), {"name": "Nina Simone", "born": 1933})
    done = await kv.set(("singer", "ella"), {"name": "Ella Fitzgerald", "born": 1917})

    listed = [entry.key async for entry in kv.list(("singer",))]
    assert listed == [("singer", "ella"), ("singer", "nina")]  # in the order of the keys

    ella = await kv.get(("singer", "ella"))
    assert ella.value["born"] == 1917
    assert ella.versionstamp == done.versionstamp

    await kv.delete(("singer", "ella"))
    assert not (await kv.get(("singer", "ella"))).exists

    # A large prefix, page by page. `cursor` is for a list that goes on as it was; `start` for one from any key.
    for begin in range(0, 2_500, 500):
        operation = kv.atomic()
        for number in range(begin, begin + 500):
            operation.set(("singer", "choir", number), {"voice": "SATB"[number % 4]})
        await operation.commit()
    pages, cursor = [], ""
    while True:
        rows = kv.list(("singer", "choir"), limit=1_000, cursor=cursor)
        pages.append([entry.key[-1] for entry in await rows.page()])
        if not rows.has_more:
            break
        cursor = rows.cursor
    assert [len(page) for page in pages] == [1_000, 1_000, 500]
    assert sum(pages, []) == [*range(2_500)]  # noqa: RUF017
    last = await kv.list(("singer", "choir"), start=("singer", "choir", 2_498)).page()
    assert [entry.key[-1] for entry in last] == [2_498, 2_499]
    return f"profiles: ok, {sum(map(len, pages)):,} voices in {len(pages)} pages"


if __name__ == "__main__":
    play(example)
