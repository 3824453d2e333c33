#!/bin/bash
# As the entry point of Kafka's image: KAFKA_A_B=c is a.b=c of server.properties.
set -euo pipefail
mkdir -p /tmp/kafka
env | sed -n 's/^KAFKA_//p' | grep -v '^HEAP_OPTS=' | while IFS='=' read -r name value; do
    name=${name,,}
    echo "${name//_/.}=$value"
done >/tmp/kafka/server.properties
java() { command java -Dlog4j2.configurationFile=/opt/kafka/log4j2.properties -cp '/opt/kafka/libs/*' "$@"; }
[ -e "$KAFKA_LOG_DIRS/meta.properties" ] ||
    java kafka.tools.StorageTool format -t 4L6g3nShT-eMCtK--X86sw -c /tmp/kafka/server.properties
trap 'kill $!; wait $!' TERM
java "$KAFKA_HEAP_OPTS" kafka.Kafka /tmp/kafka/server.properties &
wait $!
