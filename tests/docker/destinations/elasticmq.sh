#!/bin/bash
# As the entry point of ElasticMQ's image: the server, with the configuration in /opt.
set -euo pipefail
exec java -Xmx256m -Dconfig.file=/opt/elasticmq.conf -cp '/opt/elasticmq/*' org.elasticmq.server.Main
