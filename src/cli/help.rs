//! Texts in the commands' help.

pub(super) const EXIT_CODES: &str = "\
Exit codes:
   0  success
   1  runtime failure, or `check` found something that stops `run`
   2  usage error
   3  the slot, the publication or the server has changed: an operator must decide
   4  halted on an undeliverable event, or a dead letter is still undeliverable
  78  the configuration is invalid, or PostgreSQL or the destination is not set up for it";

pub(super) const CONFIGURATION: &str = "\
Configuration: a flag takes precedence over a WALPOST_* variable, the variable over the
file, the file over standard variables (DATABASE_URL, libpq's PG*,
KAFKA_BOOTSTRAP_SERVERS, RUST_LOG), and these over the default. If _FILE is appended to
the name of a WALPOST_* variable, the variable names a file that contains the value.
`walpost config` shows every value and where it was given.";

pub(super) const EXAMPLES: &str = "\
Examples:
  walpost init --apply --source postgres://postgres@db/shop --bootstrap-servers kafka:9092
  walpost check --source postgres://walpost@db/shop --bootstrap-servers kafka:9092
  walpost run --source postgres://walpost@db/shop --bootstrap-servers kafka:9092";

pub(super) const SIGNALS: &str = "\
Signals: on SIGTERM or SIGINT, walpost delivers and confirms in-flight records, then
exits. On a second signal it exits at once. SIGHUP reloads log level, secrets and
certificates.";

pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  walpost run --source postgres://walpost@db/shop --bootstrap-servers kafka:9092
  walpost run --until current    # deliver the backlog, then exit";

pub(super) const ADOPT_EXAMPLES: &str = "\
Examples:
  walpost adopt             # show both positions
  walpost adopt --apply     # continue from the slot's position";

pub(super) const SKIP_EXAMPLES: &str = "\
Examples:
  walpost skip --position 0000000001926E68/00000002
  walpost skip --position 0000000001926E68/00000002 --apply
  walpost skip --position 0000000001926E68/00000002 --undo --apply";

pub(super) const CHECK_EXAMPLES: &str = "\
Examples:
  walpost check --source postgres://walpost@db/shop --bootstrap-servers kafka:9092
  walpost check --offline --config walpost.toml";

pub(super) const STATUS_EXAMPLES: &str = "\
Examples:
  walpost status
  walpost status --watch
  walpost status --json | jq .daemon.delivery_lag_seconds";

pub(super) const STATUS_ENDS: &str = "\
Asks the running walpost at the address in admin.listen; any will do if neither source, slot
nor publication is configured. If none answers, asks PostgreSQL, which does not know whether
the events that it sends are delivered.
Exit code 0 if walpost reports that it delivers, 1 if it does not or if that is unknown.";

pub(super) const TAIL_EXAMPLES: &str = "\
Examples:
  walpost tail                         # events from now on
  walpost tail --from-slot --limit 10  # what `run` would publish next";

pub(super) const TAIL_LINE: &str = "\
Each line is a JSON object: {\"topic\": text, \"key\": text, \"value\": text or null,
\"timestamp\": milliseconds since 1970, \"headers\": {name: text or null, …}}.
Bytes that are not text are printed as {\"hex\": \"…\"}.";

pub(super) const IMPORT_EXAMPLES: &str = "\
Examples:
  walpost import-debezium connector.json > walpost.toml
  walpost import-debezium application.properties
  curl http://connect:8083/connectors/NAME | walpost import-debezium -

The report is in the comments of the output. Options that cannot be honoured are also
reported on standard error. For the migration, step by step, see docs/from-debezium.md";

pub(super) const IMPORT_EXIT_CODES: &str = "\
Exit codes:
   0  every option is converted, or not needed
   1  an option cannot be honoured, or the file cannot be read
   2  usage error";

pub(super) const REPLAY_EXAMPLES: &str = "\
Examples:
  walpost replay --id 5f0c2d6e-8a51-4b0c-9d0e-0f3f6a0a7d11 --source postgres://owner@db/shop
  walpost replay --since 2026-11-24T10:00Z --until 2026-11-24T11:00Z
  walpost replay --position 00000016B374D848/00000000..00000016B3750000/00000002 --read-topic order
  walpost replay --since yesterday --mark --apply";

pub(super) const REPLAY_ACTS: &str = "\
Deletes the chosen rows and inserts them again, in transactions of up to 1,000 rows, ordered by
time and id, or with --position by the positions. `walpost run` then publishes them as it does new rows, behind those that were
committed before. Events with the same time are in the order of their ids, which need not be that
in which they were written: see --order-by. Connect as the owner of the table: walpost's own role
may not write to it. Consumers that deduplicate by id ignore the events, unless --new-ids is
given. Rows that are no longer in the table, and logical messages, cannot be replayed.";

pub(super) const PRUNE_EXAMPLES: &str = "\
Examples:
  walpost prune --dry-run                            # count only
  walpost prune --older-than 30d --max-duration 10min
  walpost prune --archive-to audit.outbox
  walpost prune --archive-command /usr/local/bin/archive  # it gets the rows as lines of JSON
  walpost prune --partitions-ahead 14d               # of a partitioned table: makes and drops partitions";

pub(super) const PRUNE_ACTS: &str = "\
Deletes rows that are older than --older-than and proved to be delivered: by walpost's own position, and by
what every logical slot of the database has confirmed. Nothing is deleted on a server that was started
since `walpost run` has compared it with that position, or with another publication or configuration
of the outbox than its. Where no position is kept (RabbitMQ, HTTP, SQS, Kafka without a state topic), the
slot alone tells: that needs --by-slot-alone, and a walpost at work. Rows from before the slot are
kept, unless they were published too (`init --existing-rows`, `recover --all`). Reads the table once,
and needs no index. Needs SELECT, DELETE and UPDATE of a column on the table, and to read the position;
it disturbs no other walpost, and can be interrupted and run again.
Of a partitioned table it makes partitions ahead and drops those of which every row may be deleted; that
needs the rights of the table's owner. Of a table of pg_partman it only names those that are safe to drop.";

pub(super) const RECOVER_EXAMPLES: &str = "\
Examples:
  walpost recover                                    # report only
  walpost recover --apply
  walpost recover --since '2026-11-24T10:00Z' --list";

pub(super) const RECOVER_ACTS: &str = "\
For a slot that was lost or made again, a failover without it, or a restored backup. Stop `run`
first. Compares the rows of the outbox with what is published, by the events' ids, and reports how many
are there, how many are missing, and which events are published that no table has. With --apply, publishes
the missing ones before the slot is read, ordered by time; can be interrupted and run again.
Not found: rows that are deleted by now, logical messages, and rows whose records may be deleted.
For Kafka with a state topic, Redis and NATS; with other destinations --publish-since compares
nothing. Needs SELECT on the outbox, and records with the header `id`.
Exit code 0 if nothing is missing, or all of it is published.";

pub(super) const DEAD_LETTERS_EXAMPLES: &str = "\
Examples:
  walpost replay-dead-letters --dry-run
  walpost replay-dead-letters --cause too_large --limit 10";

pub(super) const DEAD_LETTERS_ENDS: &str = "\
Records a dead letter as done in the consumer group once the brokers acknowledge its record,
and does not publish it again. A dead letter that is still undeliverable is reported and kept,
with the later ones of the same key. Exits at the end that the topic had at startup, with a
summary line. Exit code 4 if a dead letter is still undeliverable.";
