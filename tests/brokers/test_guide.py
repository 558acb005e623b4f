"""The code of the guide brokers.md runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.brokers.producers import RedisProducer
from tests.brokers.test_intake import drained

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "brokers.md"


def codes() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


def run(code: str, producer: RedisProducer, place: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "guide"}
    code = code.replace("redis://localhost:6379/0", producer.url).replace(f"shop/{place}", f"shop/{producer.place}")
    exec(compile(code, "docs/guides/brokers.md", "exec"), names)
    return names


async def test_the_codes_of_the_guide_run(redis_producer: RedisProducer, second_redis_producer: RedisProducer) -> None:
    orders, mail, cached = codes()
    app = run(orders, redis_producer, "ORDERS")["app"]
    app.move("sqlite://:memory:")
    await redis_producer.send([json.dumps({"order": "7"}).encode()])
    async with app, app.intakes():
        await drained(app, redis_producer)
        ((task,), _) = await app.list()
        assert (task.task, task.input) == ("ship", {"order": "7"})
        names = run(mail, second_redis_producer, "MAIL")
        names["app"] = app
        await names["mail"](type("Message", (), {"data": {"order": task.task_id}, "id": "m1"}))
        assert len(await app.store.inbox(task.task_id)) == 1
    assert run(cached, redis_producer, "")["exchange_rate"].cache == 600
