"""Runs one command in several sandboxes at once, with asyncio.

    python many.py IMAGE
"""

import asyncio
import sys

from sandboxes import AsyncClient


async def part(client: AsyncClient, number: int) -> int:
    async with await client.create(sys.argv[1], timeout=300, env={"NUMBER": str(number)}) as sandbox:
        return int((await sandbox.commands.run("echo $((NUMBER * NUMBER))")).check().stdout)


async def main() -> None:
    async with AsyncClient() as client:
        squares = await asyncio.gather(*(part(client, number) for number in range(1, 5)))
    print("the sum of the squares is", sum(squares))


asyncio.run(main())
