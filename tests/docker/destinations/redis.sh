#!/bin/bash
# As the entry point of Redis' image, which lets other containers connect without a password.
set -euo pipefail
exec "$@" --protected-mode no
