"""Reads events of walpost by an independent client of each protocol, and prints them as JSON lines.

    read.py KIND PORT COUNT

For `http` it is the receiver: it listens on the port. It ends after COUNT events.
"""

import asyncio
import base64
import json
import os
import sys
from urllib.parse import unquote

WAIT = 60


def show(topic, key, id, event_type, headers):
    event = {"topic": topic, "key": key, "id": id, "type": event_type, "headers": headers}
    print(json.dumps(event), flush=True)


async def read_nats(port, count):
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{port}")
    messages = await client.jetstream().subscribe("outbox.>", ordered_consumer=True)
    for _ in range(count):
        message = await messages.next_msg(timeout=WAIT)
        headers = message.headers
        key = headers.get("walpost.key")
        if key is None:
            key = base64.b64decode(headers["walpost.key.base64"]).decode()
        topic = headers.get("walpost.topic", message.subject)
        show(topic, key, headers["id"], headers["event_type"], headers)
    await client.close()


def read_rabbitmq(port, count):
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    for _, properties, _ in channel.consume("outbox.0", inactivity_timeout=WAIT):
        headers = properties.headers
        topic, key = headers["walpost.topic"], headers["walpost.key"]
        show(topic, key, properties.message_id, headers["event_type"], headers)
        count -= 1
        if count == 0:
            break
    channel.cancel()
    connection.close()


def read_redis(port, count):
    import redis

    client = redis.Redis(port=port, decode_responses=True, protocol=2)
    last = "0"
    while count > 0:
        (_, entries), = client.xread({"outbox": last}, count=100, block=WAIT * 1000)
        for last, fields in entries:
            prefix = "header:"
            headers = {n[len(prefix):]: v for n, v in fields.items() if n.startswith(prefix)}
            show(fields["topic"], fields["key"], headers["id"], headers["event_type"], headers)
            count -= 1


def read_sqs(port, count):
    import boto3

    client = boto3.client(
        "sqs",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="elasticmq",
        aws_access_key_id="bed",
        aws_secret_access_key="bed",
    )
    url = client.get_queue_url(QueueName="outbox.fifo")["QueueUrl"]
    while count > 0:
        answer = client.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            MessageAttributeNames=["All"],
            WaitTimeSeconds=20,
        )
        for message in answer["Messages"]:
            found = message["MessageAttributes"].items()
            headers = {name: value["StringValue"] for name, value in found}
            headers.update(json.loads(headers.pop("walpost.headers", "[]")))
            topic, key = headers["walpost.topic"], headers["walpost.key"]
            show(topic, key, headers["id"], headers["event_type"], headers)
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            count -= 1


def read_http(port, count):
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Lock, Thread

    from cloudevents.core.bindings.http import HTTPMessage, from_http_event
    from standardwebhooks import Webhook

    webhook = Webhook(os.environ["RECEIVER_SECRET"])
    lock, finished = Lock(), Lock()
    finished.acquire()
    left = count

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            nonlocal left
            body = self.rfile.read(int(self.headers["content-length"]))
            names = [name.lower() for name in self.headers.keys()]
            assert len(names) == len(set(names)), names
            headers = dict(self.headers.items())
            webhook.verify(body, headers)
            event = from_http_event(HTTPMessage(headers, body))
            assert unquote(self.headers["webhook-id"]) == event.get_id()
            assert unquote(self.headers["walpost-key"]) == event.get_subject()
            decoded = {name.lower(): unquote(value) for name, value in headers.items()}
            topic = decoded["walpost-topic"]
            self.send_response(204)
            self.end_headers()
            with lock:
                show(topic, event.get_subject(), event.get_id(), event.get_type(), decoded)
                left -= 1
                if left == 0:
                    finished.release()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Receiver)
    Thread(target=server.serve_forever, daemon=True).start()
    assert finished.acquire(timeout=2 * WAIT), f"{left} events are missing"


def main():
    kind, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if kind == "nats":
        asyncio.run(read_nats(port, count))
    else:
        {
            "http": read_http,
            "rabbitmq": read_rabbitmq,
            "redis": read_redis,
            "sqs": read_sqs,
        }[kind](port, count)


main()
