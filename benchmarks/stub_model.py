"""A model endpoint that answers every chat completion at once with one fixed tool call.

    python benchmarks/stub_model.py

Prints its address and serves until its standard input closes. Reads no prompt; costs next to nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys

ACTIONS = ("move_right", "do", "move_left", "do", "noop")


def answer(actions: tuple[str, ...] = ACTIONS) -> bytes:
    """The whole HTTP response: one `interact_many` call of five actions."""
    function = {"name": "interact_many", "arguments": json.dumps({"actions": list(actions)})}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
    }
    body = json.dumps(
        {
            "id": "stub",
            "object": "chat.completion",
            "model": "stub",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 0, "completion_tokens": 0},
        }
    ).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one kept-alive connection until it is closed."""
    response = answer()
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
            writer.write(response)
            await writer.drain()
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        writer.close()


async def main() -> None:
    """Serve on a free port of this machine until standard input closes."""
    server = await asyncio.start_server(serve_connection, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
