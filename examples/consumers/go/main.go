// A consumer that acts once on each event, though events come at least once: it
// adds up what each customer has ordered.
//
//	go run . localhost:9092 outbox.event.order billing postgres://postgres@localhost/billing id
//
// Brokers, topic, consumer group, database, and by what a repeated event is known:
// id, idempotency-key or position. The database has the tables of
// sql/consumer_dedupe.sql and examples/consumers/turnover.sql. An error ends it;
// started again, it resumes after the last offset that it committed.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	if len(os.Args) != 6 {
		log.Fatal("usage: consumer BROKERS TOPIC GROUP DATABASE id|idempotency-key|position")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	brokers, topic, group, database, by := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	if err := consume(ctx, brokers, topic, group, database, by); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// consume acts on each record and commits the offsets, until an error or the context's end.
func consume(ctx context.Context, brokers, topic, group, database, by string) error {
	db, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer db.Close(context.WithoutCancel(ctx))
	// No other schema can replace PostgreSQL's functions, operators and types.
	if _, err := db.Exec(ctx, `SET search_path = pg_catalog, pg_temp`); err != nil {
		return err
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(brokers, ",")...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		// Records of aborted transactions are not events: needed with exactly-once delivery.
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DisableAutoCommit(),
		// No other takes a partition over while its records are worked on.
		kgo.BlockRebalanceOnPoll(),
	)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	for {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, record := range fetches.Records() {
			if err := process(ctx, db, by, record); err != nil {
				return fmt.Errorf("%s/%d at %d: %w", record.Topic, record.Partition, record.Offset, err)
			}
		}
		// After the transactions: if this commit is lost, the records arrive again and are skipped.
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			return err
		}
		client.AllowRebalance()
	}
}

// process acts on a record unless somebody has, in one transaction.
func process(ctx context.Context, db *pgx.Conn, by string, record *kgo.Record) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		first, err := isFirst(ctx, tx, by, record)
		if err != nil || !first {
			return err
		}
		return act(ctx, tx, record)
	})
}

// isFirst reports whether the event was not processed yet. No other consumer can process it
// until the transaction ends.
func isFirst(ctx context.Context, tx pgx.Tx, by string, record *kgo.Record) (bool, error) {
	var sql string
	var values []any
	switch by {
	case "id":
		sql = `INSERT INTO public.processed_events (consumer, event_id) VALUES ('billing', $1)
		       ON CONFLICT DO NOTHING`
		values = []any{header(record, "id")}
	case "idempotency-key":
		// A header, or a member of the payload. An event with neither is an error here.
		sql = `INSERT INTO public.processed_events (consumer, event_id)
		       VALUES ('billing', nullif(coalesce($1, $2::text::jsonb ->> 'idempotencyKey'), ''))
		       ON CONFLICT DO NOTHING`
		values = []any{header(record, "idempotency_key"), string(record.Value)}
	case "position":
		sql = `INSERT INTO public.processed_positions AS seen
		         (consumer, topic, partition, last_position)
		       VALUES ('billing', $1, $2, $3)
		       ON CONFLICT (consumer, topic, partition)
		       DO UPDATE SET last_position = excluded.last_position
		         WHERE seen.last_position < excluded.last_position`
		values = []any{record.Topic, record.Partition, header(record, "walpost.position")}
	default:
		return false, fmt.Errorf("deduplicate by id, idempotency-key or position, not by %s", by)
	}
	done, err := tx.Exec(ctx, sql, values...)
	return done.RowsAffected() == 1, err
}

// act does what the event is to cause, in the same transaction.
func act(ctx context.Context, tx pgx.Tx, record *kgo.Record) error {
	// An order that is placed names its customer, and one that is paid does not.
	sql := `INSERT INTO public.turnover AS sum (customer, orders, total_cents)
	        SELECT placed ->> 'customer', 1, (placed ->> 'total_cents')::bigint
	          FROM (SELECT $1::text::jsonb AS placed) AS event
	         WHERE placed ->> 'customer' IS NOT NULL
	        ON CONFLICT (customer)
	        DO UPDATE SET orders = sum.orders + 1,
	                      total_cents = sum.total_cents + excluded.total_cents`
	_, err := tx.Exec(ctx, sql, string(record.Value))
	return err
}

// header is the text of a header, of several with that name the last, as Kafka's own client
// takes it; nil, which is NULL to the database, where there is none, or where it is null or empty.
func header(record *kgo.Record, name string) *string {
	for _, one := range slices.Backward(record.Headers) {
		if one.Key == name {
			if len(one.Value) == 0 {
				return nil
			}
			value := string(one.Value)
			return &value
		}
	}
	return nil
}
