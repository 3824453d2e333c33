"""Places and pays orders, and writes an event for each in the transaction that changes the order.

    pip install -r requirements.txt
    DATABASE_URL=postgres://postgres@localhost/shop python3 writer_psycopg.py 20

The database has the outbox of `walpost init` and the table of examples/writers/shop.sql. An order
that the database refuses is reported and skipped.
"""

import os
import sys

import psycopg
from psycopg.types.json import Jsonb


class NotPlaced(Exception):
    """There is no such order to pay."""


def write(database, count):
    """Places and pays the orders 1 to `count`."""
    placed = paid = 0
    with psycopg.connect(database, autocommit=True) as connection:
        # No other schema can replace PostgreSQL's functions, operators and types.
        connection.execute("SET search_path = pg_catalog, pg_temp")
        for order in range(1, count + 1):
            try:
                place(connection, order, f"customer {order % 7}", order * 100)
                placed += 1
            except psycopg.Error as error:
                print(f"order {order} is not placed: {error}", file=sys.stderr)
            try:
                pay(connection, order, order * 100)
                paid += 1
            except (psycopg.Error, NotPlaced) as error:
                print(f"order {order} is not paid: {error}", file=sys.stderr)
    print(f"placed {placed}, paid {paid}")


def place(connection, order, customer, total_cents):
    """The order and its event, one statement after the other."""
    with connection.transaction():
        connection.execute(
            "INSERT INTO public.orders (id, customer, total_cents) VALUES (%s, %s, %s)",
            [order, customer, total_cents],
        )
        publish(connection, "order", order, "order_placed",
                {"customer": customer, "total_cents": total_cents})


def pay(connection, order, total_cents):
    """The change and its event in one round trip: in a pipeline, statements do not wait for the
    results of those before them."""
    with connection.transaction():
        with connection.pipeline():
            changed = connection.execute(
                "UPDATE public.orders SET status = 'paid' WHERE id = %s AND status = 'placed'",
                [order],
            )
            publish(connection, "order", order, "order_paid", {"total_cents": total_cents})
        # The pipeline has sent both, and received their results.
        if changed.rowcount == 0:
            # The transaction is rolled back, with the event.
            raise NotPlaced("there is no such order to pay")


def publish(connection, aggregate_type, aggregate_id, event_type, payload):
    """Writes an event, in the connection's open transaction."""
    connection.execute(
        """INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
           VALUES (%s, %s, %s, %s, %s)""",
        [aggregate_type, str(aggregate_id), event_type, Jsonb(payload), Jsonb({"source": "shop"})],
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: DATABASE_URL=... writer_psycopg.py COUNT")
    write(os.environ["DATABASE_URL"], int(sys.argv[1]))
