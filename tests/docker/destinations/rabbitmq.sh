#!/bin/bash
# As the entry point of RabbitMQ's image: the server, as its own user.
set -euo pipefail
chown -R rabbitmq /var/lib/rabbitmq
export HOME=/var/lib/rabbitmq RABBITMQ_LOGS=-
exec setpriv --reuid rabbitmq --regid rabbitmq --init-groups /usr/lib/rabbitmq/bin/rabbitmq-server
