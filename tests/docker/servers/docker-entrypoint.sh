#!/bin/bash
# As the entry point of PostgreSQL's image: the first start makes the cluster and the
# database, runs what is in /docker-entrypoint-initdb.d, and only then listens beyond the socket.
set -euo pipefail
export PATH=/opt/postgresql/bin:$PATH PGDATA=/var/lib/postgresql/18/docker
if [ "$(id -u)" = 0 ]; then
    mkdir -p /run/postgresql
    chown postgres /var/lib/postgresql /run/postgresql
    exec setpriv --reuid postgres --regid postgres --init-groups "$0" "$@"
fi
if [ ! -e "$PGDATA/PG_VERSION" ]; then
    mkdir -p "$PGDATA"
    initdb --username=postgres --pwfile=<(echo "$POSTGRES_PASSWORD") --auth-local=trust --auth-host=scram-sha-256
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl --wait -o "-c listen_addresses='' -c unix_socket_directories=/tmp" start
    psql -h /tmp -U postgres -v ON_ERROR_STOP=1 -c "CREATE DATABASE \"$POSTGRES_DB\""
    for file in /docker-entrypoint-initdb.d/*.sql; do
        psql -h /tmp -U postgres -d "$POSTGRES_DB" -v ON_ERROR_STOP=1 -f "$file"
    done
    pg_ctl --wait stop
fi
exec "$@" -c "listen_addresses=*" -c unix_socket_directories=/tmp
