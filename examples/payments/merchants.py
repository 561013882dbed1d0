"""The risk of merchants, looked up in PostgreSQL: a function on asyncio."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import psycopg

from examples.payments.payments import Euros
from examples.payments.version_1 import Alert
from statebackend import AsyncContext, AsyncFunction, RuntimeContext


class RatedAlert(NamedTuple):
    """An alert with the risk of its merchant, if that is known."""

    card: str
    reason: str
    payment: str
    at: datetime
    amount: Euros
    merchant: str
    risk: str | None


class RateMerchant(AsyncFunction[Alert, RatedAlert]):
    """Adds the risk of the merchant to each alert."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    async def open(self, context: RuntimeContext) -> None:
        self._connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)

    async def async_invoke(self, alert: Alert, context: AsyncContext) -> list[RatedAlert]:
        found = await self._connection.execute("SELECT risk FROM merchants WHERE merchant = %s", (alert.merchant,))
        row: Any = await found.fetchone()
        return [RatedAlert(*alert, None if row is None else row[0])]

    async def close(self) -> None:
        await self._connection.close()
