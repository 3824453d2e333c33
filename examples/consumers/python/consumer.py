"""A consumer that acts once on each event, though events come at least once: it adds up
what each customer has ordered.

    pip install -r requirements.txt
    python3 consumer.py \\
        localhost:9092 outbox.event.order billing postgres://postgres@localhost/billing id

Brokers, topic, consumer group, database, and by what a repeated event is known: id,
idempotency-key or position. The database has the tables of sql/consumer_dedupe.sql and
examples/consumers/turnover.sql. An error ends it; started again, it resumes after the
last offset that it committed.
"""

import sys

import psycopg
from confluent_kafka import Consumer, KafkaException


def consume(brokers, topic, group, database, by):
    """Acts on each record and has its offset committed, until an error."""
    consumer = Consumer({
        "bootstrap.servers": brokers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        # Stored offsets are committed once a second, and when partitions are revoked.
        "enable.auto.offset.store": False,
        "auto.commit.interval.ms": 1000,
    })
    consumer.subscribe([topic])
    with psycopg.connect(database, autocommit=True) as connection:
        # No other schema can replace PostgreSQL's functions, operators and types.
        connection.execute("SET search_path = pg_catalog, pg_temp")
        while True:
            record = consumer.poll(1.0)
            if record is None:
                continue
            if record.error():
                raise KafkaException(record.error())
            with connection.transaction():
                if is_first(connection, by, record):
                    act(connection, record)
            # After the transaction: if the offset is lost, the record arrives again and is skipped.
            consumer.store_offsets(record)


def is_first(connection, by, record):
    """Whether the event was not processed yet. No other consumer can process it until the
    transaction ends."""
    if by == "id":
        sql = """INSERT INTO public.processed_events (consumer, event_id) VALUES ('billing', %s)
                 ON CONFLICT DO NOTHING"""
        values = [header(record, "id")]
    elif by == "idempotency-key":
        # A header, or a member of the payload. An event with neither is an error here.
        sql = """INSERT INTO public.processed_events (consumer, event_id)
                 VALUES ('billing', nullif(coalesce(%s, %s::text::jsonb ->> 'idempotencyKey'), ''))
                 ON CONFLICT DO NOTHING"""
        values = [header(record, "idempotency_key"), record.value().decode()]
    elif by == "position":
        sql = """INSERT INTO public.processed_positions AS seen
                   (consumer, topic, partition, last_position)
                 VALUES ('billing', %s, %s, %s)
                 ON CONFLICT (consumer, topic, partition)
                 DO UPDATE SET last_position = excluded.last_position
                   WHERE seen.last_position < excluded.last_position"""
        values = [record.topic(), record.partition(), header(record, "walpost.position")]
    else:
        raise ValueError(f"deduplicate by id, idempotency-key or position, not by {by}")
    return connection.execute(sql, values).rowcount == 1


def act(connection, record):
    """What the event is to cause, in the same transaction."""
    # An order that is placed names its customer, and one that is paid does not.
    sql = """INSERT INTO public.turnover AS sum (customer, orders, total_cents)
             SELECT placed ->> 'customer', 1, (placed ->> 'total_cents')::bigint
               FROM (SELECT %s::text::jsonb AS placed) AS event
              WHERE placed ->> 'customer' IS NOT NULL
             ON CONFLICT (customer)
             DO UPDATE SET orders = sum.orders + 1,
                           total_cents = sum.total_cents + excluded.total_cents"""
    connection.execute(sql, [record.value().decode()])


def header(record, name):
    """The text of a header, of several with that name the last, as Kafka's own client takes
    it; None, which is NULL to the database, where there is none, or where it is null or empty."""
    values = (value for key, value in reversed(record.headers() or []) if key == name)
    value = next(values, None)
    return value.decode() if value else None


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit("usage: consumer.py BROKERS TOPIC GROUP DATABASE id|idempotency-key|position")
    consume(*sys.argv[1:])
