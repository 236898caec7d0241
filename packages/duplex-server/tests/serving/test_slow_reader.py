"""A client that stops reading: told, dropped, its memory and its slot given back, and nobody else the worse for it."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

from duplex_server.engine.outbox import MAX_BYTES


async def test_a_client_that_never_reads_loses_its_session_and_no_other_does(served: Any) -> None:
    async with served.session() as good, served.session(max_queue=1) as bad:
        await bad.by_hand()
        audio = base64.b64encode(bytes(3_000_000)).decode()
        item = {"id": "big", "type": "message", "role": "user", "content": [{"type": "input_audio", "audio": audio}]}
        await bad.say("conversation.item.create", item=item)
        await bad.until("conversation.item.done")
        session_id = bad.seen[0]["session"]["id"]
        runner = served.engine.sessions.get(session_id)
        handle = served.engine.get_session(session_id)
        most = 0
        async with asyncio.timeout(30):
            while not handle.ended:
                await bad.socket.send(json.dumps({"type": "conversation.item.retrieve", "item_id": "big"}))
                most = max(most, runner.outbox.waiting_bytes)
        assert most <= MAX_BYTES
        assert runner.outbox.waiting_bytes < 10_000
        assert served.engine.sessions.taken == 1
        await good.say("session.heartbeat")
        assert (await good.next())["type"] == "session.heartbeat_ack"
        last = await bad.rest()
        assert [event["type"] for event in last[-2:]] == ["error", "session.closed"]
        assert last[-2]["error"]["code"] == "slow_reader"
