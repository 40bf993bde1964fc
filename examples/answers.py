"""Request/reply: a caller sends a job and awaits its answer until a deadline; late answers go nowhere.

python -m examples.answers [TARGET]
"""

import asyncio

import kvorum
from examples.stage import beside, play
from kvorum.errors import RemoteError, RequestTimeout

QUEUE = "calculator"


async def example(kv: kvorum.Kv) -> str:
    queue = kv.queue(QUEUE)
    await queue.remove()
    await kv.delete_prefix(("answers",))
    let_go = asyncio.Event()

    async def calculate(message: kvorum.Message) -> object:
        numbers = message.value
        if not numbers:
            # Told to whoever asked, in the commit that ends the request. What is raised would be tried again instead.
            await message.atomic().reply_error("nothing to add up").ack().commit()
            return None
        if numbers == ["slow"]:
            await let_go.wait()
            return "late"
        if len(numbers) > 100:
            # The answer, an effect and the end of the request in one commit: all happen, or none does.
            total = sum(numbers)
            await message.atomic().set(("answers", "largest"), total).reply(total).ack().commit()
            return None
        return sum(numbers)  # `serve` sends it in the commit that acknowledges

    async with beside(queue.serve(calculate)):
        answers = await asyncio.gather(*(kv.request(QUEUE, [number, 1]) for number in range(50)))
        assert answers == [number + 1 for number in range(50)]
        assert await kv.request(QUEUE, list(range(200))) == 19_900
        assert (await kv.get(("answers", "largest"))).value == 19_900
        try:
            await kv.request(QUEUE, [])
        except RemoteError as error:
            assert "nothing to add up" in str(error)
        else:
            raise AssertionError("an answer to nothing")
        try:
            await kv.request(QUEUE, ["slow"], timeout=300)
        except RequestTimeout:
            pass  # the work may be done nevertheless: a deadline is not a promise
        else:
            raise AssertionError("an answer beyond its deadline")
        let_go.set()
        assert await kv.request(QUEUE, [2, 2]) == 4  # not "late"
    return f"answers: ok, {len(answers) + 2} answers, 1 error, 1 came too late"


if __name__ == "__main__":
    play(example)
