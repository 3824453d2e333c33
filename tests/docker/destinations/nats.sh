#!/bin/bash
# As the entry points of NATS' images: its command line, or the server with the options given.
set -euo pipefail
if [ "${1:-}" != nats ]; then
    set -- nats-server "$@"
fi
exec "$@"
