"""Places and pays orders with SQLAlchemy, and writes an event for each in the transaction that
changes the order.

    pip install -r requirements.txt
    DATABASE_URL=postgresql+psycopg://postgres@localhost/shop python3 writer_sqlalchemy.py 20

The database has the outbox of `walpost init` and the table of examples/writers/shop.sql. An order
that the database refuses is reported and skipped.
"""

import os
import sys
import uuid

from sqlalchemy import (BigInteger, Text, cast, create_engine, event, func, insert, literal, select,
                        update)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, reconstructor

HEADERS = {"source": "shop"}


class Base(DeclarativeBase):
    """The mapped classes."""


class OutboxEvent(Base):
    """A row of the outbox. The session inserts them; nothing updates or reads them."""

    __tablename__ = "outbox"
    __table_args__ = {"schema": "public"}

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    aggregate_type: Mapped[str]
    aggregate_id: Mapped[str]
    event_type: Mapped[str]
    payload: Mapped[dict] = mapped_column(JSONB)
    headers: Mapped[dict] = mapped_column(JSONB)


class Order(Base):
    """A row of public.orders, with the events of its changes."""

    __tablename__ = "orders"
    __table_args__ = {"schema": "public"}

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    customer: Mapped[str]
    total_cents: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[str] = mapped_column(default="placed")

    def __init__(self, **columns):
        super().__init__(**columns)
        self.events = []
        self.record("order_placed", {"customer": self.customer, "total_cents": self.total_cents})

    @reconstructor
    def loaded(self):
        """Called instead of __init__ for an order that comes from the database."""
        self.events = []

    def record(self, event_type, payload):
        """Notes an event, which the next flush writes."""
        self.events.append((event_type, payload))


@event.listens_for(Session, "before_flush")
def write_events(session, _context, _instances):
    """Adds the events of all changed orders to the flush: the same transaction."""
    for order in [*session.new, *session.dirty]:
        if isinstance(order, Order):
            for event_type, payload in order.events:
                session.add(OutboxEvent(aggregate_type="order", aggregate_id=str(order.id),
                                        event_type=event_type, payload=payload, headers=HEADERS))
            order.events.clear()


def write(database, count):
    """Places and pays the orders 1 to `count`."""
    # No other schema can replace PostgreSQL's functions, operators and types.
    engine = create_engine(database, connect_args={"options": "-c search_path=pg_catalog,pg_temp"})
    placed = paid = 0
    for order in range(1, count + 1):
        try:
            place(engine, order, f"customer {order % 7}", order * 100)
            placed += 1
        except SQLAlchemyError as error:
            print(f"order {order} is not placed: {error}", file=sys.stderr)
        try:
            if pay(engine, order):
                paid += 1
            else:
                print(f"order {order} is not paid: there is no such order", file=sys.stderr)
        except SQLAlchemyError as error:
            print(f"order {order} is not paid: {error}", file=sys.stderr)
    print(f"placed {placed}, paid {paid}")


def place(engine, order, customer, total_cents):
    """A new object: its event is written when the session flushes, at the latest at the commit."""
    with Session(engine) as session, session.begin():
        session.add(Order(id=order, customer=customer, total_cents=total_cents))


def pay(engine, order):
    """The change and its event in one statement; whether there was such an order to pay."""
    paid = (
        update(Order)
        .where(Order.id == order, Order.status == "placed")
        .values(status="paid")
        .returning(Order.id, Order.total_cents)
        .cte("paid")
    )
    payload = func.jsonb_build_object("total_cents", paid.c.total_cents)
    event_row = select(func.gen_random_uuid(), literal("order"), cast(paid.c.id, Text),
                       literal("order_paid"), payload, literal(HEADERS, JSONB))
    columns = ["id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers"]
    written = insert(OutboxEvent).from_select(columns, event_row).cte("written")
    with Session(engine) as session, session.begin():
        return session.execute(select(paid.c.id).add_cte(written)).first() is not None


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: DATABASE_URL=... writer_sqlalchemy.py COUNT")
    write(os.environ["DATABASE_URL"], int(sys.argv[1]))
